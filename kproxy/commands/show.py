"""`kproxy show`: the exchanges of recordings, as lines or as JSON."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from kproxy.commands.output import fail


def add_options(parser: argparse.ArgumentParser) -> None:
    """Say what may be typed."""
    parser.description = (
        "Show the exchanges of a recording, in the order in which they were answered."
    )
    parser.add_argument(
        "files", metavar="FILE", nargs="+", type=Path, help="recordings, or folders of them"
    )
    parser.add_argument(
        "--json", action="store_true", help="one JSON object per exchange, with decoded bodies"
    )


def run(options: argparse.Namespace) -> int:
    """Show them."""
    from kproxy.recording.format import RecordingError
    from kproxy.view import show

    try:
        if options.json:
            show.show_json(options.files, sys.stdout)
        else:
            show.show_lines(options.files, sys.stdout)
    except RecordingError as error:
        return fail(f"kproxy show: {error}")
    return 0
