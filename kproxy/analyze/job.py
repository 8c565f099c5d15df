"""The job: recordings in, a folder of Parquet tables and a report out.

::

    splits ─▶ tasks: export ─▶ DIR.partial/exchanges, records, events, steps
                              └─ Spark's SQL ─▶ latency, …, report.html ─▶ DIR

Invariant: all of it becomes visible at once (`publish`).
"""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import pyarrow.parquet as pq

import kproxy
from kproxy.analyze import compare, described, export, publish
from kproxy.analyze.place import Place
from kproxy.analyze.queries import FIRST, THEN
from kproxy.recording.uri import located
from kproxy.report.data import ReportData, Row
from kproxy.report.page import page
from kproxy.report.part import ReportPart
from kproxy.report.summary import notices_of, report_data, summarized
from kproxy.spark import SparkError
from kproxy.spark.ddl import ddl
from kproxy.tables import splits
from kproxy.tables.splits import PARTITION_BYTES, FoundFiles, Stretch, packed, stretches, task_bytes
from kproxy.tables.views import ViewColumn, schema_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_STATUS_SECONDS = 0.5
_TASKS_PER_CORE = 2
STEPS = ("traffic", "log_ends", "cluster_ids")


@attrs.frozen
class Analysis:
    """The result of a job."""

    folder: Path
    counts: dict[str, int]
    """Table → its number of rows."""
    notices: list[str]
    """Sentences on what is missing in the recordings."""
    data: ReportData
    """The data of the report."""


def analyze(
    spark: SparkSession,
    recordings: FoundFiles,
    folder: Path,
    baseline: FoundFiles | None = None,
    with_records: bool = True,
    partition_bytes: int = PARTITION_BYTES,
    on_status: Callable[[str], None] = lambda text: None,
) -> tuple[Analysis, list[dict[str, Any]]]:
    """Make the tables and the report of recordings; with a baseline, compare with that.

    `on_status` is called with a line about each step. Returns the result, and the differences from
    the baseline.

    Raises: SparkError, RecordingError, OSError, and what Spark raises.
    """
    with publish.new_analysis(Place(folder)) as new:
        partial = Path(str(new))
        baseline_folder = partial / "baseline"
        notices: list[str] = []
        if baseline is not None:
            _, part = tables(spark, baseline, baseline_folder, False, partition_bytes, on_status)
            of_baseline = [*baseline.left_out, *notices_of(part)]
            notices += [f"baseline: {each}" for each in of_baseline]
        counts, part = tables(spark, recordings, partial, with_records, partition_bytes, on_status)
        notices += [*recordings.left_out, *splits.copies(recordings)]
        on_status("writing the report")
        differences: list[dict[str, Any]] = []
        if baseline is not None:
            differences = compare.differences(spark, partial, baseline_folder)
            shutil.rmtree(baseline_folder)
        given = recordings.paths, () if baseline is None else baseline.paths
        names, others = ([str(located(each)) for each in paths] for paths in given)
        data = _data(part, partial / "faults", counts["faults"], names, differences, notices)
        text = page(data, names, others, "analyze")
        (partial / "report.html").write_text(text, encoding="utf-8")
        (partial / "tables.md").write_text(described.describe(partial), encoding="utf-8")
        about = {
            "kproxy": kproxy.__version__,
            "recordings": names,
            "baseline": others,
            "rows": counts,
        }
        (partial / "analysis.json").write_text(json.dumps(about, indent=2) + "\n")
    return Analysis(folder, counts, data.notices, data), differences


def _data(
    part: ReportPart,
    faults: Path,
    count: int,
    names: Sequence[str],
    differences: Sequence[Row],
    notices: Sequence[str],
) -> ReportData:
    """Return the data of the report; the table of faults is read batch by batch."""
    batches = (
        batch for path in sorted(faults.glob("*.parquet"))
        for batch in pq.ParquetFile(path).iter_batches()
    )  # fmt: skip
    rows = (
        row | {"us": _microseconds(row["time"])} for each in batches for row in each.to_pylist()
    )
    return report_data(part, summarized(rows, count), names, differences, notices)


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _microseconds(time: datetime) -> int:
    return (time.replace(tzinfo=time.tzinfo or UTC) - _EPOCH) // timedelta(microseconds=1)


def tables(
    spark: SparkSession,
    recordings: FoundFiles,
    folder: Path,
    with_records: bool,
    partition_bytes: int,
    on_status: Callable[[str], None],
) -> tuple[dict[str, int], ReportPart]:
    """Make the tables of recordings in a folder; return how many rows each has, and what a report
    says of them."""
    on_status("looking at the recordings")
    cores = spark.sparkContext.defaultParallelism
    size = task_bytes(recordings, _TASKS_PER_CORE * cores, partition_bytes)
    groups = packed(stretches(recordings, size), size, cores)
    counts, part = _export(spark, groups, folder, with_records, on_status)
    for killed in folder.glob("*/.part-*"):  # of a task that another attempt was faster at
        killed.unlink(missing_ok=True)
    for name, columns in export.TABLES.items():
        if with_records or name != "records":
            if counts[name] != _row_count(folder / name):
                what = "does not have what the workers wrote: name one that all of them share"
                raise SparkError(f"{folder.parent} {what}")
            if not counts[name]:
                _empty(folder / name, columns)
            _read(spark, name, folder, ddl(columns))
    on_status("making " + ", ".join(FIRST | THEN))
    with ThreadPoolExecutor(len(FIRST)) as pool:  # most of a short query is planning it
        for queries in (FIRST, THEN):
            made = pool.map(partial(_make, spark, folder), queries, queries.values())
            counts |= dict(zip(queries, made, strict=True))
    for name in STEPS:
        shutil.rmtree(folder / name)
        del counts[name]
    return counts, part


def _make(spark: SparkSession, folder: Path, name: str, query: str) -> int:
    """Make a table from others; return its number of rows."""
    table = spark.sql(query)
    table.coalesce(1).write.parquet((folder / name).absolute().as_uri())
    _read(spark, name, folder, table.schema)
    return _row_count(folder / name)


def _row_count(folder: Path) -> int:
    return sum(pq.read_metadata(path).num_rows for path in folder.glob("*.parquet"))


def _export(
    spark: SparkSession,
    groups: Sequence[Sequence[Stretch]],
    folder: Path,
    with_records: bool,
    on_status: Callable[[str], None],
) -> tuple[Counter[str], ReportPart]:
    """Have tasks write the tables that come straight from the recordings, and count for the
    report."""
    target = os.fspath(folder.absolute())

    def task(numbered: tuple[int, Sequence[Stretch]]) -> tuple[dict[str, int], ReportPart]:
        number, group = numbered
        return export.write(number, group, target, with_records)

    context = spark.sparkContext
    parts = context.parallelize(list(enumerate(groups)), max(1, len(groups))).map(task)
    counts: Counter[str] = Counter(dict.fromkeys(export.TABLES, 0))
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(parts.collect)
        while not done.done():
            on_status(f"reading: {_finished(context)} of {len(groups)} parts")
            wait([done], _STATUS_SECONDS)
        sum_of_parts = ReportPart()
        for written, part in done.result():
            counts.update(written)
            sum_of_parts.merge(part)
    return counts, sum_of_parts


def _finished(context: Any) -> int:
    """Return how many tasks of the running stages have ended."""
    tracker = context.statusTracker()
    stages = [tracker.getStageInfo(each) for each in tracker.getActiveStageIds()]
    return sum(stage.numCompletedTasks for stage in stages if stage is not None)


def _read(spark: SparkSession, name: str, folder: Path, schema: Any) -> None:
    """Make a table readable by name in queries. With a schema, Spark need not look for one."""
    where = (folder / name).absolute().as_uri()
    spark.read.schema(schema).parquet(where).createOrReplaceTempView(name)


def _empty(folder: Path, columns: Sequence[ViewColumn]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(schema_of(columns).empty_table(), folder / "part-00000.parquet")
