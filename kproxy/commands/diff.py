"""`kproxy diff`: two recordings side by side."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from kproxy.commands import options as kinds
from kproxy.commands.analyze import factor
from kproxy.commands.checked import add_ignore_options, as_options, ignored
from kproxy.commands.options import declare
from kproxy.commands.output import fail, signals_raised
from kproxy.printable import printable


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.description = (
        "Say how recording B differs from A: records, groups, commits, transactions,"
        " requests of admins, errors, APIs and their versions, settings of clients, latency. Left"
        " out is what changes from run to run: times, ids, offsets, polls. Of folders, recordings"
        " of the same name are compared. The exit code is 0 when nothing differs, 1 when something"
        " does, 2 when they cannot be compared."
    )
    parser.add_argument(
        "before", metavar="A", type=kinds.local_file, help="a recording, or a folder of them"
    )
    parser.add_argument(
        "after", metavar="B", type=kinds.local_file, help="the same, to compare with it"
    )
    declare(
        parser.add_argument,
        """
        --compare LIST  what is compared: records, order (of the records of a key), topics, groups,
            commits, transactions, requests (of admins), errors, faults, consumed (records that only
            one side got), apis (and their versions), settings, latency, or all (default: all)
        --fail-above FACTOR = 2  a latency differs if p50, p95 or p99 of an API is so many times
            the other, and that is no chance (default %(default)s)
        --json  one JSON object per difference
        --html FILE  write a page for a browser, with two columns, as kproxy report does
        """,
        compare=_aspects,
        fail_above=factor,
        html=kinds.new_file,
    )
    add_ignore_options(parser.add_argument)


def _aspects(text: str) -> frozenset[str]:
    from kproxy.look.diff.compare import ASPECTS
    from kproxy.replay.compared import parse_aspects

    return parse_aspects(text.split(","), ASPECTS)


def run(options: argparse.Namespace) -> int:
    """Run the command; return its exit code."""
    from kproxy.look.diff.compare import ASPECTS
    from kproxy.look.diff.lines import lines, plain, total
    from kproxy.look.diff.page import page
    from kproxy.look.diff.reading import Comparing, diff
    from kproxy.look.lines.progress import reading
    from kproxy.look.report.writing import ReportError, check_target, write_report
    from kproxy.recording import RecordingError
    from kproxy.recording.notices import Notices
    from kproxy.replay.report import varying_text

    before: Path = options.before
    after: Path = options.after
    how = Comparing(ignored(options), options.compare or ASPECTS, options.fail_above)
    notices = Notices()
    try:
        if options.html is not None:
            check_target(options.html)
        with signals_raised(), reading("diff", [before, after]) as progress:
            found = diff([before], [after], how, notices, progress.update)
        if options.html is not None:
            write_report(options.html, page(found, str(before), str(after), notices.texts))
    except (RecordingError, ReportError) as error:
        return fail(f"kproxy diff: {error}", 2)
    for line in map(json.dumps, map(plain, found)) if options.json else lines(found):
        print(printable(line))
    sys.stdout.flush()
    varies = varying_text((word for each in found for word in each.ignore), as_options)
    for text in filter(None, (*notices.texts, total(found), varies)):
        print(printable(f"kproxy diff: {text}"), file=sys.stderr)
    return 1 if found else 0
