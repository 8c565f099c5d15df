"""`kproxy analyze --append` and `--follow`: what is new in recordings, as runs of a lake.

    offset of the last run ─▶ the source of streams ─▶ stretches ─ making ─▶ a run, with its offset
                                        its part, and that of the run before ─▶ report.html
                                               a run that is staged ─ finish ─▶ Delta, Iceberg

Tasks write Parquet for every format, for Spark's own writer is slower. A run of another format is
staged until its tables are added, each by one commit of the format; then its manifest says so, and
what was staged goes. At last comes the page of all runs, and then the part of the run before goes.
A killed job may leave some of this to be done: the next job does it before its own.

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
from kproxy.analyze.lake import PARQUET, PART, RUNS, LakeRun, Tables, mark_added, runs
from kproxy.analyze.making import (
    MadeTables,
    TableMaker,
    columns_of,
    commented,
    make_tables,
    rows_of,
    schemas_of,
)
from kproxy.analyze.place import Place
from kproxy.analyze.publish import alone, new_run, publish, set_modes
from kproxy.analyze.sinks import DATE
from kproxy.analyze.tables import RUN_COLUMN, table_of
from kproxy.exchange.merging import merge
from kproxy.look.report.kept import from_json, to_json
from kproxy.look.report.page import page
from kproxy.look.report.part import ReportPart
from kproxy.recording.uri import absolute
from kproxy.spark import SparkError
from kproxy.spark.source import SparkPartition
from kproxy.spark.stream import StreamReader
from kproxy.tables.splits import PARTITION_BYTES, BatchRange

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
    groups: Sequence[Sequence[BatchRange]]
    """Its stretches, those of a task together; none if nothing is new."""
    is_unfinished: bool
    """True if a killed job has left a run that is not in all of its tables, or not in the page."""

    @property
    def is_nothing(self) -> bool:
        """True if there is nothing to do."""
        return not self.groups and not self.is_unfinished

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
    except (TypeError, ValueError, AttributeError, KeyError) as error:
        if not start:
            raise
        what = f"{lake / RUNS / after}.json has an offset that makes no sense"
        raise SparkError(f"{what} ({error}): put back what it was") from None
    finally:
        reader.stop()
    groups = [task.stretches for task in tasks if isinstance(task, SparkPartition)]
    return New(recordings, after, end, groups, _is_unfinished(lake, before))


def _is_unfinished(lake: Place, added: Sequence[LakeRun]) -> bool:
    if not added:
        return False
    files = set((lake / RUNS).children())
    parts = [run for run in added if run.name + PART in files]
    has_page = "report.html" in lake.children()
    return any(run.staged for run in added) or len(parts) > 1 or not has_page


def append(maker: TableMaker, new: New, lake: Place) -> Analysis | None:
    """Add what is new to a lake, if anything is; before, do what a killed job has not done.

    Raises: SparkError, RecordingError, OSError, and what Spark raises.
    """
    form = format_of(maker.spark, lake)
    with alone(lake):
        if new.is_unfinished:
            finish(maker, lake)
        if not new.groups:
            return None
        added = _append(maker, new, lake, form)
        finish(maker, lake)
        return added


def _append(maker: TableMaker, new: New, lake: Place, form: str) -> Analysis:
    """Add a run to a lake, which is locked."""
    staged = form != PARQUET
    with new_run(lake, staged) as to:
        made = make_tables(maker, new.groups, to)
        maker.on_status("writing the report")
        faults = rows_of(to.table("faults"))
        data = data_of_report(made, faults, made.rows["faults"], new.recordings)
        text = page(data, new.recordings, (), "analyze").encode()
        about = described.describe(schemas_of(to, made)).encode()
        (lake / RUNS / f"{to.run}.html").write(text)
        part = part_of(lake, new.after)
        merge(part, made.part)
        (lake / RUNS / f"{to.run}{PART}").write(to_json(part).encode())
        where = {"recordings": [*new.recordings], "after": new.after, "offset": new.offset}
        publish(to, manifest(made, where | {"format": form, "staged": staged}))
    (lake / "tables.md").write(about)
    return Analysis(lake, made, data.notices, data)


def part_of(lake: Place, run: str) -> ReportPart:
    """Return what a report says of all runs up to one, with a notice if that is not known."""
    if not run:
        return ReportPart()
    try:
        return from_json((lake / RUNS / f"{run}{PART}").read())
    except (FileNotFoundError, ValueError):
        part = ReportPart()
        what = f"This page does not count the runs up to {run}, though the tables have them"
        part.sentences.add((0, f"{what}: runs/{run}{PART} is missing or cannot be read"))
        return part


def finish(maker: TableMaker, lake: Place) -> None:
    """Do what is left once a run counts: add what is staged to the tables, and write the page of
    all runs. The lake is locked.

    Raises: SparkError, OSError, and what Spark raises.
    """
    added = runs(lake)
    for run in added:
        if run.staged:
            check(maker.spark, lake, run.format)
            maker.on_status(f"adding to the tables of {FORMATS[run.format].title}")
            with ThreadPoolExecutor(_AT_ONCE) as pool:
                list(pool.map(partial(add_rows, maker.spark, lake, run), run.rows))
            mark_added(lake, run)
            Tables(lake, run.name, staged=True).stage.remove()
    maker.on_status("writing the report of all runs")
    (lake / "report.html").write(_page(maker.spark, lake, added).encode())
    for name in (lake / RUNS).children():
        if name.endswith(PART) and name != added[-1].name + PART:
            (lake / RUNS / name).remove()


def add_rows(spark: SparkSession, lake: Place, run: LakeRun, name: str) -> None:
    """Add the rows of a table that a run has staged."""
    from pyspark.sql import functions

    rows = table_of(spark, name, [(Tables(lake, run.name, staged=True), run.rows)])
    if name in export.DIVIDED:
        rows = rows.withColumn(DATE, functions.expr(_DAY))
    rows = rows.withColumn(RUN_COLUMN.name, functions.lit(run.name))
    known = columns_of(name, divided=True) if name in export.TABLES else ()
    table = lake / name
    table.make_folder()  # Spark's would let others in
    rows = commented(rows, {each.name: each.comment for each in (*known, RUN_COLUMN)})
    FORMATS[run.format].add(rows, lake, name, run.name)
    if table.local is not None:
        set_modes(table.local, table.mode)


def _page(spark: SparkSession, lake: Place, added: Sequence[LakeRun]) -> str:
    """Return the page of all runs."""
    names = [*dict.fromkeys(name for run in added for name in run.recordings)]
    made = MadeTables({}, part_of(lake, added[-1].name))
    count = sum(run.rows.get("faults", 0) for run in added)
    data = data_of_report(made, _faults(spark, lake, added), count, names)
    return page(data, names, (), "analyze")


def _faults(spark: SparkSession, lake: Place, added: Sequence[LakeRun]) -> Iterator[dict[str, Any]]:
    """Yield the rows of the tables of faults, in the order of their times."""
    having = [run for run in added if run.rows.get("faults")]
    form = added[-1].format
    if form == PARQUET:
        for run in having:
            yield from rows_of(Tables(lake, run.name).table("faults"))
    elif having:
        table = spark.read.format(form).load((lake / "faults").spark)
        for batch in table.drop(RUN_COLUMN.name).orderBy("time").toArrow().to_batches():
            yield from batch.to_pylist()


def follow(
    maker: TableMaker, recordings: Sequence[str], lake: Place, every_seconds: float
) -> Iterator[Analysis | None]:
    """Yield what is new in recordings, each time that it was looked for and added to a lake.

    Raises: as `append`.
    """
    while True:
        began = time.monotonic()
        maker.on_status("looking for what is new")
        new = new_in(recordings, lake)
        yield None if new.is_nothing else append(maker, new, lake)
        time.sleep(max(0.0, began + every_seconds - time.monotonic()))
