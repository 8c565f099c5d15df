"""`kproxy analyze`: recordings as Parquet tables and a report, made by Spark."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

from kproxy.commands import signals
from kproxy.commands.options import UsageError, new_file
from kproxy.commands.output import fail
from kproxy.printable import printable
from kproxy.units import format_bytes

EPILOG = """
DIR gets a table of Parquet files for exchanges, records, latency, throughput, errors, connections,
groups, group_events, faults and events, tables.md, which says what their columns mean, and
report.html. It is there when all of it is. With --baseline the report says what is slower, or fails
more often, by API and topic, whether that may be chance, and what only one side has. The exit code
is 0 when it is made, 1 when it is not, or when --fail-above finds something slower, 2 when what was
typed makes no sense.
"""


_SHORT_BYTES = 256 << 20
_FEW_BYTES = 16 << 20
_FEW_ROWS = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""Settings for recordings of less than `_FEW_BYTES`. Most of the time of their queries goes into
compiling them, and into planning them again after each stage. Only this command's own session has
them: Spark cannot decode the rows of `spark.catalog.listTables()` without compiling."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.description = (
        "Make tables and a report of recordings, with Spark on this machine or on a cluster."
    )
    parser.epilog = EPILOG
    parser.add_argument("files", metavar="FILE", nargs="+", help="recordings, folders, or globs")
    parser.add_argument(
        "--out",
        metavar="DIR",
        type=new_folder,
        required=True,
        help="a folder that is not there yet",
    )
    parser.add_argument(
        "--baseline", metavar="FILE", nargs="+", default=[], help="recordings to compare with"
    )
    parser.add_argument(
        "--fail-above",
        metavar="FACTOR",
        type=factor,
        help="exit with 1 if p50, p95 or p99 of an API or topic is so many times the baseline's,"
        " and that is no chance",
    )
    parser.add_argument(
        "--no-records", action="store_true", help="leave out the table of keys and values"
    )
    parser.add_argument(
        "--master", metavar="URL", help="the cluster; by default all cores of this machine"
    )


def new_folder(text: str) -> Path:
    """Parse the path of a folder to be made."""
    path = new_file(text)
    if path.name in ("", ".."):  # the job replaces an empty folder: not this one
        raise argparse.ArgumentTypeError(f"{text!r} is no name for a new folder")
    return path


def factor(text: str) -> float:
    """Parse a factor of at least 1."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 1 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a factor of at least 1, as in 1.5")
    return value


def run(options: argparse.Namespace) -> int:
    """Run the command; return its exit code."""
    if options.fail_above is not None and not options.baseline:
        raise UsageError("--fail-above says how much slower than a --baseline: give one")
    from kproxy.recording import RecordingError
    from kproxy.spark import SparkError

    try:
        with tempfile.TemporaryDirectory(prefix="kproxy-analyze-") as folder, signals.raised():
            return _analyze(options, Path(folder))
    except (SparkError, RecordingError, OSError) as error:
        return fail(f"kproxy analyze: {error}")


def _analyze(options: argparse.Namespace, temporary: Path) -> int:
    from kproxy.spark.java import stop_spark, wait_for_spark
    from kproxy.spark.session import (
        check,
        failures,
        first_line,
        session_without_format,
        signals_kept,
    )

    check()
    from kproxy.analyze import job
    from kproxy.recording import info
    from kproxy.spark import SparkError
    from kproxy.tables.splits import find

    # Report what cannot be read or written before Spark starts.
    found = find(options.files)
    baseline = find(options.baseline) if options.baseline else None
    for path in (*found.files, *(() if baseline is None else baseline.files)):
        info(path)
    size = found.bytes + (0 if baseline is None else baseline.bytes)
    job.check_free(options.out)
    config = {"spark.sql.warehouse.dir": str(temporary / "warehouse")}
    if (options.master or "local").startswith("local"):
        config["spark.local.dir"] = str(temporary)  # on a cluster, workers have their own
    reading = f"reading {format_bytes(size)}"
    with _status_line(reading) as on_status, signals.raised(stop_spark), signals_kept():
        on_status("starting Spark")
        if size < _FEW_BYTES:
            config |= _FEW_ROWS
        log, short = temporary / "spark.log", size < _SHORT_BYTES
        spark = session_without_format(options.master, config, log, short)
        try:
            spark.sparkContext.setLogLevel("ERROR")  # spark-submit logs every task
            made, differences = job.analyze(
                spark, found, options.out, baseline, not options.no_records, on_status=on_status
            )
        except (KeyboardInterrupt, SystemExit):
            wait_for_spark()
            raise
        except failures() as error:
            raise SparkError(first_line(error)) from None
        finally:
            with contextlib.suppress(*failures()):
                spark.stop()
    for notice in made.notices:
        fail(f"kproxy analyze: {notice}")
    page = options.out / "report.html"
    print(printable(f"{made.counts['exchanges']} exchanges: {page}"))
    return report_slower(differences, options.fail_above)


def report_slower(differences: list[dict[str, Any]], fail_above: float | None) -> int:
    """Print what is slower than the baseline by more than a factor; return the exit code."""
    from kproxy.analyze.compare import slower

    worse = [] if fail_above is None else slower(differences, fail_above)
    for row in worse:
        topic = f" on {row['topic']}" if row["topic"] is not None else ""
        ratios = ", ".join(f"{name} ×{row[f'{name}_ratio']:.2f}" for name in ("p50", "p95", "p99"))
        fail(f"kproxy analyze: {row['api']}{topic} is slower than the baseline: {ratios}")
    return 1 if worse else 0


@contextlib.contextmanager
def _status_line(what: str) -> Generator[Callable[[str], None]]:
    """Yield a function that shows a status in a line of a terminal; elsewhere it shows nothing."""
    if not sys.stderr.isatty():
        print(f"kproxy analyze: {what} …", file=sys.stderr, flush=True)
        yield lambda text: None
        return
    with open(os.dup(sys.stderr.fileno()), "w") as terminal:

        def on_status(text: str) -> None:
            print(f"\r\x1b[K{text} …", end="", file=terminal, flush=True)

        try:
            yield on_status
        finally:
            print("\r\x1b[K", end="", file=terminal, flush=True)
