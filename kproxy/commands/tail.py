"""`kproxy tail`: follow a recording that is still written."""

from __future__ import annotations

import argparse
import sys

from kproxy.commands.options import (
    UsageError,
    add_files_and_filter,
    add_local,
    declare,
    files_and_filter,
    local_filter,
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.description = (
        "Show the exchanges of a recording as they are written, the last ten first; Ctrl-C ends it,"
        " and so does the end of the recording. Files that go on with it are followed."
    )
    parser.usage = "%(prog)s [--all] FILE [FILTER]"
    text = "a recording, and which of its exchanges"
    add_files_and_filter(parser, "FILE [FILTER]", text)
    declare(parser.add_argument, "--all  begin with all that is recorded, not with the last ten")
    add_local(parser)


def run(options: argparse.Namespace) -> int:
    """Run the command; return its exit code."""
    files, wanted = files_and_filter(options.files_and_filter)
    if len(files) > 1:
        raise UsageError("it follows one recording")
    from kproxy.look.lines.show import LINES_BEFORE, show_tail

    path = files[0]
    if path.is_dir():
        raise UsageError(f"{path} is a folder; name the recording to follow")
    wanted = local_filter(wanted, files, options.local)
    lines_before = None if options.all else LINES_BEFORE
    show_tail(path, sys.stdout, wanted, lines_before, options.local)
    return 0
