"""`kproxy show`: the exchanges of recordings, as lines or as JSON."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from kproxy.commands.options import (
    UsageError,
    add_files_and_filter,
    add_local,
    declare,
    files_and_filter,
    local_filter,
)
from kproxy.commands.output import fail

EPILOG = """
a line:  time (UTC; with --local, local), number, connection and the broker that it leads to, client
id, what the broker took + what kproxy added in milliseconds, API and version, request → response.
The broker's time leaves out what a request waited behind an earlier one of its connection
(“queued”); ~501 contains a wait that the request asked for: a Fetch for records, the joining of a
group. – is not known.
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.description = (
        "Show the exchanges of a recording, in the order in which they were answered."
    )
    parser.epilog = EPILOG
    parser.usage = (
        "%(prog)s [--json | --frame N | --follow CONNECTION | --records TOPIC[:PARTITION]]\n"
        "                   [--all] [--by-request] FILE… [FILTER]"
    )
    add_files_and_filter(parser)
    declare(parser.add_argument, "--json  one JSON object per exchange, with decoded bodies")
    declare(
        parser.add_mutually_exclusive_group().add_argument,
        """
        --frame N  exchange N in full: each field beside its bytes; NAME#N of one of several
            recordings
        --follow CONNECTION  one connection from its beginning to its end, by request
        --records TOPIC[:PARTITION]  the records of a topic, each time that they pass
        """,
        frame=number,
        follow=connection,
        records=topic_partition,
    )
    declare(
        parser.add_argument,
        """
        --all  do not fold empty fetches and heartbeats
        --by-request  sort by when requests arrived; takes memory
        """,
    )
    add_local(parser)


def connection(text: str) -> str:
    """Parse the number of a connection: `--follow` is not that of tail."""
    try:
        return number(text)
    except ValueError as error:
        hint = "a file that grows is followed by `kproxy tail FILE`"
        raise ValueError(f"{error}; {hint}") from None


def number(text: str) -> str:
    """Parse N or NAME#N: the number of an exchange or a connection, of one recording."""
    if not re.fullmatch(r"(.*#)?0*[1-9][0-9]*", text, re.ASCII | re.DOTALL):
        raise ValueError(f"{text!r} is not N or NAME#N, as in 12 or shop#12")
    return text


def topic_partition(text: str) -> tuple[str, int | None]:
    """Parse TOPIC[:PARTITION]."""
    topic, colon, partition = text.partition(":")
    if not topic or (colon and not (partition.isascii() and partition.isdigit())):
        raise ValueError(f"{text!r} is not TOPIC[:PARTITION], as in orders:0")
    return topic, int(partition) if colon else None


def run(options: argparse.Namespace) -> int:
    """Run the command; return its exit code."""
    files, wanted = files_and_filter(options.files_and_filter)
    if options.json and (options.frame or options.follow):
        raise UsageError("--json goes with --records or alone; for one exchange, filter number:N")
    from kproxy.look.lines import show

    wanted = local_filter(wanted, files, options.local)
    if options.frame:
        if not show.show_frame(files, options.frame, sys.stdout, options.local):
            return fail(f"kproxy show: there is no exchange {options.frame}")
    elif options.follow:
        if not show.show_connection(files, options.follow, sys.stdout, wanted, options.local):
            return fail(f"kproxy show: there is no connection {options.follow}")
    elif options.records:
        topic, partition = options.records
        if not files[0].exists() and Path(topic).is_file():
            raise UsageError(f"--records {topic} is a file: name a topic first, --records TOPIC")
        show.show_records(files, topic, partition, sys.stdout, wanted, as_json=options.json)
    elif options.json:
        show.show_json(files, sys.stdout, wanted)
    else:
        show.show_lines(
            files,
            sys.stdout,
            wanted=wanted,
            folds=not options.all,
            by_request=options.by_request,
            local=options.local,
        )
    return 0
