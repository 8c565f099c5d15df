"""`kproxy show`: the exchanges of recordings, as lines or as JSON."""

from __future__ import annotations

import argparse
import sys

from kproxy.commands.options import FilterHelp, files_and_filter
from kproxy.commands.output import fail


def add_options(parser: argparse.ArgumentParser) -> None:
    """Say what may be typed."""
    parser.description = (
        "Show the exchanges of a recording, in the order in which they were answered."
    )
    parser.formatter_class = FilterHelp
    parser.usage = "%(prog)s [--json] FILE… [FILTER]"
    parser.add_argument(
        "files_and_filter",
        metavar="FILE… [FILTER]",
        nargs="+",
        help="recordings, or folders of them; the filter begins with the first that is no file",
    )
    parser.add_argument(
        "--json", action="store_true", help="one JSON object per exchange, with decoded bodies"
    )


def run(options: argparse.Namespace) -> int:
    """Show them."""
    files, wanted = files_and_filter(options.files_and_filter)
    from kproxy.recording import RecordingError
    from kproxy.view import show

    try:
        if options.json:
            show.show_json(files, sys.stdout, wanted)
        else:
            show.show_lines(files, sys.stdout, wanted=wanted)
    except RecordingError as error:
        return fail(f"kproxy show: {error}")
    return 0
