"""`kproxy export`: recordings as files for other tools, or a smaller recording cut out of them."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from kproxy.commands.options import (
    UsageError,
    add_files_and_filter,
    declare,
    files_and_filter,
    local_file,
)
from kproxy.commands.output import fail, signals_raised
from kproxy.printable import printable
from kproxy.units import format_bytes

EPILOG = """
.jsonl has the lines of `kproxy show --json`. .parquet has a row per exchange with the same keys,
the bodies as JSON text; it needs kproxy-kafka[tables]. .mcap is a recording: what the filter means,
and what a replay of that needs (how the same clients began, topics, sessions). .html is the page of
`kproxy web` in one file, to send to somebody: it opens from a disk, loads nothing, and holds at
most 10,000 exchanges. It is not written if it holds what looks like a secret (`kproxy scan`).
.pcapng is for Wireshark: decrypted, with the numbers of exchanges as comments.
"""
SUFFIXES = (".html", ".jsonl", ".parquet", ".mcap", ".pcapng")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.description = "Write recordings, or what a filter means of them, to a new file."
    parser.epilog = EPILOG
    parser.usage = "%(prog)s FILE… [FILTER] --to FILE.{html,jsonl,parquet,mcap,pcapng}"
    add_files_and_filter(parser)
    parser.add_argument(
        "--to",
        metavar="FILE.{html,jsonl,parquet,mcap,pcapng}",
        type=target,
        required=True,
        help="where to; the end of its name says what it becomes, and it must not be there yet",
    )
    text = "--with-secrets  write .html, even if it holds what looks like a secret"
    declare(parser.add_argument, text)


def target(text: str) -> Path:
    """Parse the path of a new file in a format of the export."""
    path = local_file(text)
    if path.suffix not in SUFFIXES:
        suffixes = f"{', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}"
        raise ValueError(f"{text!r} does not end in {suffixes}")
    if not path.parent.is_dir():
        raise ValueError(f"there is no folder {str(path.parent)!r}")
    return path


def run(options: argparse.Namespace) -> int:
    """Run the command; return its exit code."""
    files, wanted = files_and_filter(options.files_and_filter)
    page = options.to.suffix == ".html"
    if options.with_secrets and not page:
        raise UsageError("--with-secrets is for --to FILE.html: only a page is searched for them")
    from kproxy.exchange.words.wording import count
    from kproxy.look.lines.export import export
    from kproxy.look.lines.progress import reading
    from kproxy.look.lines.stream import Stream
    from kproxy.look.page.one_file import SecretsError, page_writer

    try:
        with signals_raised(), reading("export", files) as progress:
            stream = Stream(files, wanted, on_progress=progress.update)
            write = page_writer(options.with_secrets) if page else None
            exported = export(stream, options.to, write)
    except SecretsError as error:
        for finding in error.found:
            print(printable(finding.line()), file=sys.stderr)
        return fail(f"kproxy export: {error}")
    except OSError as error:
        return fail(f"kproxy export: {options.to}: {error.strerror or error}")
    for notice in stream.notices:
        print(printable(f"kproxy export: {notice}"), file=sys.stderr)
    size = f", {format_bytes(options.to.stat().st_size)}" if page else ""
    print(printable(f"{options.to}: {count(exported, 'exchange')}{size}"))
    return 0
