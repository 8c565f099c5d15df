"""`kproxy export`: recordings as files for other tools, or a smaller recording cut out of them."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from kproxy.commands import signals
from kproxy.commands.options import add_files_and_filter, files_and_filter
from kproxy.commands.output import fail
from kproxy.printable import printable

EPILOG = """
.jsonl has the lines of `kproxy show --json`. .parquet has a row per exchange with the same keys,
the bodies as JSON text; it needs kproxy[tables]. .mcap is a recording: what the filter means, and
what a replay of that needs (how the same clients began, topics, sessions).
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.description = "Write recordings, or what a filter means of them, to a new file."
    parser.epilog = EPILOG
    parser.usage = "%(prog)s FILE… [FILTER] --to FILE.{jsonl,parquet,mcap}"
    add_files_and_filter(parser)
    parser.add_argument(
        "--to",
        metavar="FILE.{jsonl,parquet,mcap}",
        type=target,
        required=True,
        help="where to; the end of its name says what it becomes, and it must not be there yet",
    )


def target(text: str) -> Path:
    """Parse the path of a new file in a format of the export."""
    path = Path(text)
    if path.suffix not in (".jsonl", ".parquet", ".mcap"):
        raise argparse.ArgumentTypeError(f"{text!r} does not end in .jsonl, .parquet or .mcap")
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {str(path.parent)!r}")
    return path


def run(options: argparse.Namespace) -> int:
    """Run the command; return its exit code."""
    files, wanted = files_and_filter(options.files_and_filter)
    from kproxy.exchange.words.wording import count
    from kproxy.recording import RecordingError
    from kproxy.view.export import ExportError, export
    from kproxy.view.progress import reading
    from kproxy.view.stream import Stream

    try:
        with signals.raised(), reading("export", files) as progress:
            stream = Stream(files, wanted, on_progress=progress.update)
            exported = export(stream, options.to)
    except (ExportError, RecordingError) as error:
        return fail(f"kproxy export: {error}")
    except OSError as error:
        return fail(f"kproxy export: {options.to}: {error.strerror or error}")
    for notice in stream.notices:
        print(printable(f"kproxy export: {notice}"), file=sys.stderr)
    print(printable(f"{options.to}: {count(exported, 'exchange')}"))
    return 0
