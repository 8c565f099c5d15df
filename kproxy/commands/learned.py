"""`kproxy learned`: what may vary in the replays of a recording."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from kproxy.commands.options import declare, local_file
from kproxy.commands.output import fail
from kproxy.printable import printable


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.description = (
        "List what may vary in the replays of a recording, as it was learned (--learn) or written:"
        " a word in each line, and an example. What stands behind ? may be data, and is compared."
    )
    parser.add_argument("file", metavar="FILE", type=local_file, help="a recording")
    text = "--set FILE  take the list from this file, edited; - for stdin"
    declare(parser.add_argument, text, set=Path)


def run(options: argparse.Namespace) -> int:
    """Run the command; return its exit code."""
    from kproxy.look.lines.meaning import learned_in
    from kproxy.recording import RecordingError
    from kproxy.testing.learning import note_learned

    try:
        learned = learned_in(options.file)
        if options.set is not None:
            text = sys.stdin.read() if str(options.set) == "-" else options.set.read_text()
            learned = learned.edited(text)
            note_learned(options.file, learned)
    except RecordingError as error:
        return fail(f"kproxy learned: {error}")
    except ValueError as error:  # a text that is no UTF-8, too
        return fail(f"kproxy learned: {options.set}: {error}", 2)
    except OSError as error:
        return fail(f"kproxy learned: {error.filename or options.file}: {error.strerror}")
    for line in learned.lines():
        print(printable(line))
    if not learned.parts:
        how = "record it with --learn 2 (kproxy help testing)"
        print(f"kproxy learned: nothing was learned: {how}", file=sys.stderr)
    return 0
