"""`kproxy recover`: complete a recording that was cut off."""

from __future__ import annotations

import argparse
from pathlib import Path

from kproxy.commands.output import fail
from kproxy.printable import printable


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.description = "Complete a recording that was cut off, in place; what it has is kept."
    parser.add_argument("file", metavar="FILE", type=Path, help="the recording")


def run(options: argparse.Namespace) -> int:
    """Run the command; return its exit code."""
    from kproxy.recording import RecordingError
    from kproxy.recording.recover import recover
    from kproxy.view.progress import reading

    try:
        with reading("recover", [options.file]) as progress:
            recovery = recover(options.file, progress.update)
        print(printable(str(recovery)))
    except RecordingError as error:
        return fail(f"kproxy recover: {error}")
    except OSError as error:
        return fail(f"kproxy recover: {options.file}: {error.strerror}")
    return 0
