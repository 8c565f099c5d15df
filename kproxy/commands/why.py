"""`kproxy why`: the story of a rebalance, a hang-up or a slow request."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from kproxy.commands.options import UsageError
from kproxy.commands.output import fail

_KEYS = ("group", "connection", "number")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.description = (
        "Tell in sentences what happened to a group (its rebalances), to a connection (who ended"
        " it, after what) or to one exchange (where its time went), from what is recorded, with the"
        " numbers of the exchanges to look at."
    )
    parser.usage = "%(prog)s FILE… group:NAME | connection:N | number:N"
    parser.add_argument(
        "files_and_what",
        metavar="FILE… group:NAME|connection:N|number:N",
        nargs="+",
        help="recordings, or folders of them; and what to tell the story of",
    )


def run(options: argparse.Namespace) -> int:
    """Run the command; return its exit code."""
    *files, what = options.files_and_what
    key, colon, value = what.partition(":")
    if key not in _KEYS or not colon or not value:
        raise UsageError(f"{what!r} is not group:NAME, connection:N or number:N")
    if not files:
        raise UsageError("name a recording before that")
    if key != "group" and not (value.isascii() and value.isdigit()):
        raise UsageError(f"{value!r} is not the number of a {key.replace('number', 'request')}")
    from kproxy.recording import RecordingError
    from kproxy.view.why import other_groups, show_why

    try:
        found = show_why([Path(each) for each in files], key, value, sys.stdout)
        if found:
            return 0
        others = other_groups([Path(each) for each in files], value) if key == "group" else ""
    except RecordingError as error:
        return fail(f"kproxy why: {error}")
    return fail(f"kproxy why: there is no {key} {value} in the recording{others}")
