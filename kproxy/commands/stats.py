"""`kproxy stats`: recordings on one screen."""

from __future__ import annotations

import argparse
import sys

from kproxy.commands.options import add_files_and_filter, declare, files_and_filter


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.description = (
        "Count what is in recordings: by API, client and topic, with the time that the broker took"
        " (without queues and long polls) and what kproxy added; errors, rebalances, reconnects,"
        " retries, leader changes."
    )
    parser.usage = "%(prog)s [--headers] [--all] FILE… [FILTER]"
    add_files_and_filter(parser)
    declare(
        parser.add_argument,
        """
        --headers  look into no body: faster, but without errors, topics and records
        --all  list all, not the twelve most frequent
        """,
    )


def run(options: argparse.Namespace) -> int:
    """Run the command; return its exit code."""
    files, wanted = files_and_filter(options.files_and_filter)
    from kproxy.look.lines.stats_lines import ROWS_MAX, show_stats

    rows_max = None if options.all else ROWS_MAX
    show_stats(files, sys.stdout, wanted, not options.headers, rows_max)
    return 0
