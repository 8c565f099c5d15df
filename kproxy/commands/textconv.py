"""`kproxy textconv`: the meaning of a recording as text; `git diff` calls it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from kproxy.commands.output import fail
from kproxy.printable import printable


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.description = (
        "Write what a recording means: topics, records, groups, errors; no times, ids or polls."
        " `kproxy git-setup` has git call it."
    )
    parser.add_argument("file", metavar="FILE", type=Path, help="a recording")


def run(options: argparse.Namespace) -> int:
    """Run the command; return its exit code."""
    from kproxy.look.lines import meaning
    from kproxy.recording import RecordingError

    path: Path = options.file
    if not path.exists():
        return fail(f"kproxy textconv: {path} does not exist")
    if not path.stat().st_size:
        return 0  # git has one side of a new or a deleted file empty
    if reconfigure := getattr(sys.stdout, "reconfigure", None):
        reconfigure(encoding="utf-8", errors="backslashreplace")
    try:
        for line in meaning.lines([path]):
            print(line)
    except RecordingError as error:
        # An exit code other than 0 would end the whole `git diff`; the path is a temporary of git.
        print(printable(f"cannot be read: {error.what}"))
    return 0
