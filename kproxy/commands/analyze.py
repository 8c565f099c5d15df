"""`kproxy analyze`: recordings as Parquet tables and a report, made by Spark."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from kproxy.commands.options import UsageError, declare, new_file
from kproxy.commands.output import code_of, discard_output, fail, signals_raised
from kproxy.printable import printable
from kproxy.units import format_bytes

if TYPE_CHECKING:
    from kproxy.analyze.job import Analysis
    from kproxy.analyze.making import TableMaker
    from kproxy.analyze.place import Place
    from kproxy.recording.uri import Uri

EPILOG = """
DIR gets a table of Parquet files for exchanges, records, latency, throughput, errors, connections,
groups, group_events, faults, events and recordings, tables.md, which says what their columns mean,
and report.html. It is there when all of it is. With --baseline the report says what is slower, or
fails more often, by API and topic, whether that may be chance, and what only one side has. The exit
code is 0 when it is made, 1 when it is not, or when --fail-above finds something slower, 2 when
what was typed makes no sense.
"""


_SHORT_BYTES = 256 << 20
_EVERY_SECONDS = 30.0
_STEP_SECONDS = 5.0
_OF_A_RUN = ("reading", "making", "writing")
"""How each status begins while a run is made."""
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
        help="a folder that is not there yet, or a URI: s3a://, gs://, hdfs://, abfss://",
    )
    declare(
        parser.add_argument,
        """
        --append  add to DIR what is new in the recordings: a lake
        --follow  go on adding, while kproxy writes, until Ctrl-C
        --every TIME  with --follow: how often to look (default: 30s)
        --out-mode MODE = 600  of files on a disk (default: 600; 660 if workers run as others of
            your group)
        """,
        out_mode=mode,
    )
    parser.add_argument(
        "--baseline", metavar="FILE", nargs="+", default=[], help="recordings to compare with"
    )
    declare(
        parser.add_argument,
        """
        --fail-above FACTOR  exit with 1 if p50, p95 or p99 of an API or topic is so many times the
            baseline's, and that is no chance
        --no-records  leave out the table of keys and values
        --master URL  the cluster; by default all cores of this machine
        """,
        fail_above=factor,
    )


def mode(text: str) -> int:
    """Parse the mode of files, in octal."""
    if not re.fullmatch(r"0?[0-7]{3}", text) or not int(text, 8) & 0o600 == 0o600:
        raise ValueError(f"{text!r} is no mode as 660, with which you can write")
    return int(text, 8) & 0o666


def new_folder(text: str) -> Path | Uri:
    """Parse the path of a folder to be made, or a URI."""
    from kproxy.recording.uri import Uri, located

    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{text!r} is not UTF-8, which Spark needs") from None
    place = located(text)
    if isinstance(place, Uri):
        return place
    path = new_file(str(place))
    if path.name in ("", ".."):  # the job replaces an empty folder: not this one
        raise ValueError(f"{text!r} is no name for a new folder")
    return path


def factor(text: str) -> float:
    """Parse a factor of at least 1."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 1 <= value < float("inf"):
        raise ValueError(f"{text!r} is not a factor of at least 1, as in 1.5")
    return value


def run(options: argparse.Namespace) -> int:
    """Run the command; return its exit code."""
    if options.fail_above is not None and not options.baseline:
        raise UsageError("--fail-above says how much slower than a --baseline: give one")
    if _is_lake(options) and options.baseline:
        raise UsageError("--append and --follow compare nothing: leave out --baseline")
    if options.every is not None and not options.follow:
        raise UsageError("--every says how often --follow looks: give --follow, too")
    from kproxy.recording import RecordingError
    from kproxy.spark import SparkError

    try:
        with tempfile.TemporaryDirectory(prefix="kproxy-analyze-") as folder, signals_raised():
            return _analyze(options, Path(folder))
    except (SparkError, RecordingError, OSError) as error:
        return fail(f"kproxy analyze: {error}", code_of(error))


def _analyze(options: argparse.Namespace, temporary: Path) -> int:
    with _status_line("looking at the recordings") as on_status:
        from kproxy.spark.session import check

        check()
        from kproxy.analyze.place import Place

        out = Place(options.out, options.out_mode)
        work, size = (_adding if _is_lake(options) else _making_one)(options, out)
        if work is None:
            on_status("")
            _tell_nothing_new(out)
            return 0
        return _with_spark(options, temporary, out, work, size, on_status)


def _with_spark(
    options: argparse.Namespace,
    temporary: Path,
    out: Place,
    work: Callable[[TableMaker], int],
    size: int,
    on_status: Callable[[str], None],
) -> int:
    """Start Spark, and work with it; return the exit code."""
    from kproxy.analyze.making import TableMaker
    from kproxy.analyze.tables import check_known
    from kproxy.spark import SparkError
    from kproxy.spark.java import stop_spark, wait_for_spark
    from kproxy.spark.session import failures, first_line, session_without_format, signals_kept

    config = {"spark.sql.warehouse.dir": str(temporary / "warehouse")}
    if (options.master or "local").startswith("local"):
        config["spark.local.dir"] = str(temporary)  # on a cluster, workers have their own
    if size < _FEW_BYTES:
        config |= _FEW_ROWS
    with signals_raised(stop_spark), signals_kept():
        on_status("starting Spark")
        log = temporary / "spark.log"
        spark = session_without_format(options.master, config, log, size < _SHORT_BYTES)
        try:
            with contextlib.suppress(*failures()):  # Spark Connect has no context
                spark.sparkContext.setLogLevel("ERROR")  # spark-submit logs every task
            if out.local is None:
                check_known(spark, out)
            return work(TableMaker(spark, not options.no_records, on_status=on_status))
        except (KeyboardInterrupt, SystemExit):
            wait_for_spark()
            if options.follow:
                return 0
            raise
        except failures() as error:
            raise SparkError(first_line(error)) from None
        finally:
            with contextlib.suppress(*failures()):
                spark.stop()


def _is_lake(options: argparse.Namespace) -> bool:
    return options.append or options.follow


Work = tuple[Callable[["TableMaker"], int] | None, int]
"""What to do, which returns the exit code, and how many bytes it reads."""


def _making_one(options: argparse.Namespace, out: Place) -> Work:
    """Check what can be checked before Spark starts; return how to make an analysis."""
    from kproxy.analyze.job import analyze
    from kproxy.analyze.publish import check_free
    from kproxy.recording import info
    from kproxy.tables.splits import find

    found = find(options.files)
    baseline = find(options.baseline) if options.baseline else None
    for path in (*found.files, *(() if baseline is None else baseline.files)):
        info(path)
    size = found.bytes + (0 if baseline is None else baseline.bytes)
    check_free(out)

    def work(maker: TableMaker) -> int:
        maker.on_status(f"reading {format_bytes(size)}")
        made = analyze(maker, found, out, baseline)
        _tell(maker, made)
        return report_slower(made.differences, options.fail_above)

    return work, size


def _adding(options: argparse.Namespace, lake: Place) -> Work:
    """Check what can be checked before Spark starts; return how to add to a lake."""
    from kproxy.analyze.appending import append, follow, new_in
    from kproxy.analyze.publish import check_lake

    check_lake(lake)
    new = new_in(options.files, lake)

    def add(maker: TableMaker) -> int:
        maker.on_status(f"reading {format_bytes(new.bytes)}")
        made = append(maker, new, lake)
        if made is None:
            maker.on_status("")
            _tell_nothing_new(lake)
        else:
            _tell(maker, made)
        return 0

    def go_on(maker: TableMaker) -> int:
        status = ""

        def on_status(text: str) -> None:
            nonlocal status
            status = text
            maker.on_status(text)

        told = attrs.evolve(maker, on_status=on_status)
        try:
            for made in follow(told, options.files, lake, options.every or _EVERY_SECONDS):
                if made is not None:
                    _tell(told, made)
                on_status("waiting for what comes")
        except (KeyboardInterrupt, SystemExit):
            if status.startswith(_OF_A_RUN):
                maker.on_status("")
                fail("kproxy analyze: stopped: the run that was being made is not added")
            raise
        return 0

    if options.follow:
        return go_on, _SHORT_BYTES
    return None if new.is_nothing else add, new.bytes


def _tell_nothing_new(lake: Place) -> None:
    _say(f"nothing is new: {lake}")


def _tell(maker: TableMaker, made: Analysis) -> None:
    maker.on_status("")
    for notice in made.notices:
        fail(f"kproxy analyze: {notice}")
    _say(f"{made.made.rows['exchanges']} exchanges: {made.folder / 'report.html'}")


def _say(text: str) -> None:
    """Print what was made: if nobody takes it, it is there all the same."""
    try:
        print(printable(text), flush=True)
    except OSError as error:
        discard_output()
        if not isinstance(error, BrokenPipeError):
            fail(f"kproxy analyze: {text}, which stdout does not take: {error.strerror}")


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
def _status_line(first: str) -> Generator[Callable[[str], None]]:
    """Yield a function that shows a status in a line of a terminal, which begins with the `first`,
    and for how long it stands. Elsewhere it prints a line for each step, and every few seconds how
    far a long one is."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield _step_printer()
        return
    with open(os.dup(sys.stderr.fileno()), "w") as terminal:
        shown, since = "", 0.0

        def on_status(text: str) -> None:
            nonlocal shown, since
            if text != shown:
                shown, since = text, time.monotonic()
            seconds = int(time.monotonic() - since)
            stands = f", {seconds} s" if seconds else ""
            print(f"\r\x1b[K{text and f'{text}{stands} …'}", end="", file=terminal, flush=True)

        on_status(first)
        try:
            yield on_status
        finally:
            print("\r\x1b[K", end="", file=terminal, flush=True)


def _step_printer() -> Callable[[str], None]:
    """Return what prints a line for each step, and every few seconds how far a long one is. Two
    steps that alternate, as looking and waiting do, are printed once."""
    step, printed_at = "", 0.0
    last: deque[str] = deque(maxlen=2)

    def print_step(text: str) -> None:
        nonlocal step, printed_at
        name, now = text.partition(":")[0], time.monotonic()
        due = now - printed_at >= _STEP_SECONDS if name == step else name not in last
        step = name or step
        if text and due:
            fail(f"kproxy analyze: {text} …")
            last.append(name)
            printed_at = now

    return print_step
