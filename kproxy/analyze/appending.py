"""`kproxy analyze --append` and `--follow`: what is new in recordings, as runs of a lake.

    offset of the last run ─▶ the source of streams ─▶ stretches ─ making ─▶ a run, with its offset
                                                 a staged run ─ complete ─▶ tables of Delta, Iceberg

Tasks write Parquet for every format, for Spark's own writer is slower. A run that counts is staged
until all of its tables are added, each by one commit of the format; then its manifest says so, and
what was staged goes. A killed job may leave a staged run: the next job adds it before its own.

Invariants: each exchange comes once, also over restarts, and of recordings that are being written;
requests that have no answer yet come when they are answered or given up, as in a stream.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs
from pyspark.sql.types import StructType

from kproxy.analyze import described, export
from kproxy.analyze.formats import FORMATS, check, format_of
from kproxy.analyze.job import Analysis, data_of_report, manifest
from kproxy.analyze.lake import PARQUET, RUNS, Run, Tables, mark_added, runs
from kproxy.analyze.making import Made, Making, columns_of, make_tables, rows_of, schemas_of
from kproxy.analyze.place import Place
from kproxy.analyze.publish import alone, new_run, publish, set_modes
from kproxy.analyze.sinks import DATE
from kproxy.analyze.tables import RUN_COLUMN, commented, table_of
from kproxy.recording.uri import absolute
from kproxy.report.page import page
from kproxy.report.part import ReportPart
from kproxy.spark.source import SparkPartition
from kproxy.spark.stream import StreamReader
from kproxy.tables.splits import PARTITION_BYTES, Stretch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_VIEW = "exchanges"
_DAY = "date_from_unix_date(CAST(unix_micros(time) DIV 86400000000 AS INT))"
"""The day of `time` in UTC, whatever the zone of the session is."""
_AT_ONCE = 4
"""Tables that are added at a time: most of a small commit is waiting."""


@attrs.frozen
class New:
    """What is new in recordings, seen from a lake."""

    recordings: Sequence[str]
    after: str
    """The name of the run before; "" if there is none."""
    offset: dict[str, Any]
    """Behind what is new."""
    groups: Sequence[Sequence[Stretch]]
    """Its stretches, those of a task together; none if nothing is new."""
    is_staged: bool
    """True if a killed job has left a run that is not in all of its tables."""

    @property
    def bytes(self) -> int:
        """How much it is."""
        return sum(stretch.bytes for group in self.groups for stretch in group)


def new_in(recordings: Sequence[str], lake: Place, partition_bytes: int = PARTITION_BYTES) -> New:
    """Return what is in recordings and not in a lake. Spark is not needed.

    Raises: SparkError, RecordingError, OSError.
    """
    before = runs(lake)
    after, start = (before[-1].name, before[-1].offset) if before else ("", {})
    paths = tuple(map(absolute, recordings))
    reader = StreamReader(paths, _VIEW, StructType(), partition_bytes)
    try:
        end = reader.latestOffset(start)
        tasks = reader.partitions(start, end) if end != start else []
    finally:
        reader.stop()
    groups = [task.stretches for task in tasks if isinstance(task, SparkPartition)]
    return New(recordings, after, end, groups, any(run.staged for run in before))


def append(making: Making, new: New, lake: Place) -> Analysis:
    """Add what is new to a lake; `report.html` of the lake is the page of that.

    Raises: SparkError, RecordingError, OSError, and what Spark raises.
    """
    form = format_of(making.spark, lake)
    staged = form != PARQUET
    with alone(lake):
        _complete(making, lake)
        with new_run(lake, staged) as to:
            made = make_tables(making, new.groups, to)
            making.on_status("writing the report")
            faults = rows_of(to.table("faults"))
            data = data_of_report(made, faults, made.rows["faults"], new.recordings)
            text = page(data, new.recordings, (), "analyze").encode()
            about = described.describe(schemas_of(to, made)).encode()
            (lake / RUNS / f"{to.run}.html").write(text)
            where = {"recordings": [*new.recordings], "after": new.after, "offset": new.offset}
            publish(to, manifest(made, where | {"format": form, "staged": staged}))
        _complete(making, lake)
    (lake / "tables.md").write(about)
    (lake / "report.html").write(text)
    return Analysis(lake, made, data.notices, data)


def complete(making: Making, lake: Place) -> None:
    """Add what a killed job has left staged to the tables of a lake.

    Raises: SparkError, OSError, and what Spark raises.
    """
    with alone(lake):
        _complete(making, lake)


def _complete(making: Making, lake: Place) -> None:
    for run in runs(lake):
        if run.staged:
            check(making.spark, lake, run.format)
            making.on_status(f"adding to the tables of {FORMATS[run.format].title}")
            with ThreadPoolExecutor(_AT_ONCE) as pool:
                list(pool.map(partial(_add, making.spark, lake, run), run.rows))
            mark_added(lake, run)
            Tables(lake, run.name, staged=True).stage.remove()


def _add(spark: SparkSession, lake: Place, run: Run, name: str) -> None:
    """Add the rows of a table that a run has staged."""
    from pyspark.sql import functions

    rows = table_of(spark, name, [(Tables(lake, run.name, staged=True), run.rows)])
    if name in export.DIVIDED:
        rows = rows.withColumn(DATE, functions.expr(_DAY))
    rows = rows.withColumn(RUN_COLUMN.name, functions.lit(run.name))
    known = columns_of(name, divided=True) if name in export.TABLES else ()
    table = lake / name
    table.make_folder()  # Spark's would let others in
    FORMATS[run.format].add(commented(rows, (*known, RUN_COLUMN)), lake, name, run.name)
    if table.local is not None:
        set_modes(table.local, table.mode)


def follow(
    making: Making, recordings: Sequence[str], lake: Place, every_seconds: float
) -> Iterator[Analysis | None]:
    """Yield what is new in recordings, each time that it was looked for and added to a lake. The
    page of the lake is of all that was added since the beginning.

    Raises: as `append`.
    """
    total = ReportPart()
    added: list[Run] = []
    while True:
        began = time.monotonic()
        making.on_status("looking for what is new")
        new = new_in(recordings, lake)
        one = append(making, new, lake) if new.groups else None
        if one is not None:
            total.merge(one.made.part)
            added.append(runs(lake)[-1])
            faults = _faults(making.spark, lake, added)
            (lake / "report.html").write(_page(added, faults, total, recordings).encode())
        elif new.is_staged:
            complete(making, lake)
        yield one
        time.sleep(max(0.0, began + every_seconds - time.monotonic()))


def _faults(spark: SparkSession, lake: Place, added: Sequence[Run]) -> Iterator[dict[str, Any]]:
    """Yield the rows of the table of faults that runs have added."""
    form = added[-1].format
    if form == PARQUET:
        for run in added:
            yield from rows_of(Tables(lake, run.name).table("faults"))
    else:
        table = spark.read.format(form).load((lake / "faults").spark)
        of_runs = table.where(table[RUN_COLUMN.name].isin([run.name for run in added]))
        yield from of_runs.drop(RUN_COLUMN.name).orderBy("time").toArrow().to_pylist()


def _page(
    added: Sequence[Run],
    faults: Iterator[dict[str, Any]],
    total: ReportPart,
    recordings: Sequence[str],
) -> str:
    count = sum(run.rows["faults"] for run in added)
    data = data_of_report(Made({}, total), faults, count, recordings)
    return page(data, recordings, (), "analyze")
