"""`kproxy report`: what stands out in recordings, as a page for a browser."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from kproxy.commands.options import add_files, new_file
from kproxy.commands.output import signals_raised
from kproxy.printable import printable

EPILOG = """
The page is one HTML file without scripts, which loads nothing: findings, worst harm first, each
with the command that shows it; charts over time, tables of errors, latency, groups and faults. It
is for its owner only (mode 0600): it names topics, clients and groups. An older report is replaced,
another file is not. kproxy analyze makes the same page, and tables, of recordings of any size.
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.description = "Write a page with what stands out in recordings, and what happened when."
    parser.epilog = EPILOG
    parser.usage = "%(prog)s FILE… --out FILE.html"
    add_files(parser)
    parser.add_argument(
        "--out",
        metavar="FILE.html",
        type=new_file,
        required=True,
        help="the file of the page; an older report there is replaced",
    )


def run(options: argparse.Namespace) -> int:
    """Run the command; return its exit code."""
    from kproxy.exchange.words.wording import count
    from kproxy.look.lines.progress import reading
    from kproxy.look.report.light import light_data
    from kproxy.look.report.page import page
    from kproxy.look.report.writing import check_target, write_report

    out: Path = options.out
    check_target(out)
    with signals_raised(), reading("report", options.files) as progress:
        data = light_data(options.files, progress.update, pictured=True)
        write_report(out, page(data, options.files))
    for notice in data.notices:
        print(printable(f"kproxy report: {notice}"), file=sys.stderr)
    print(printable(f"{count(data.totals['exchanges'], 'exchange')}: {out}"))
    return 0
