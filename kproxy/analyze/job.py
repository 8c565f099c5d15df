"""The job: recordings in, a folder of Parquet tables and a report out.

::

    splits ─▶ tasks: export ─▶ DIR.partial/exchanges, records, events, steps
                              └─ Spark's SQL ─▶ latency, …, report.html ─▶ DIR

Invariant: all of it becomes visible at once (`publish`).
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
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
from kproxy.analyze.queries import LINES
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
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_STATUS_SECONDS = 0.5
_TASKS_PER_CORE = 2
_CORES_MAX = 10_000
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
    cores = _cores(spark)
    size = task_bytes(recordings, _TASKS_PER_CORE * cores, partition_bytes)
    groups = packed(stretches(recordings, size), size, cores)
    counts, part = _export(spark, groups, folder, with_records, on_status)
    for killed in folder.glob("*/.part-*"):  # of a task that another attempt was faster at
        killed.unlink(missing_ok=True)
    frames: dict[str, Any] = {}
    for name, columns in export.TABLES.items():
        if with_records or name != "records":
            if counts[name] != _row_count(folder / name):
                what = "does not have what the workers wrote: name one that all of them share"
                raise SparkError(f"{folder.parent} {what}")
            if not counts[name]:
                _empty(folder / name, columns)
            frames[name] = _read(spark, folder / name, ddl(columns))
    on_status("making " + ", ".join(name for line in LINES for name in line))
    with ThreadPoolExecutor(len(LINES)) as pool:  # most of a short query is planning it
        for made in pool.map(partial(_make, spark, folder, frames), LINES):
            counts |= made
    for name in STEPS:
        shutil.rmtree(folder / name)
        del counts[name]
    return counts, part


def _cores(spark: SparkSession) -> int:
    """Return how many tasks a session runs at once."""
    from pyspark.errors import PySparkAttributeError
    from pyspark.sql import functions

    try:
        return spark.sparkContext.defaultParallelism
    except PySparkAttributeError:  # of Spark Connect: a range has a partition for each
        last = spark.range(_CORES_MAX).agg(functions.max(functions.spark_partition_id()))
        return last.collect()[0][0] + 1


def _make(
    spark: SparkSession, folder: Path, given: Mapping[str, Any], line: Mapping[str, str]
) -> dict[str, int]:
    """Make tables from others, one after the other; return their numbers of rows."""
    frames = dict(given)
    for name, query in line.items():
        table = spark.sql(query, **frames)
        table.write.parquet((folder / name).absolute().as_uri())
        frames[name] = _read(spark, folder / name, table.schema)
    return {name: _row_count(folder / name) for name in line}


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
    from pyspark.sql import functions
    from pyspark.sql.types import BinaryType

    target = os.fspath(folder.absolute())

    def task(number: int) -> bytes:
        return pickle.dumps(export.write(number, groups[number], target, with_records))

    work = functions.udf(task, BinaryType(), useArrow=False).asNondeterministic()
    tasks = spark.range(0, len(groups), 1, max(1, len(groups))).select(work("id"))
    counts: Counter[str] = Counter(dict.fromkeys(export.TABLES, 0))
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(tasks.collect)
        while not done.done():
            on_status(f"reading: {_finished(folder)} of {len(groups)} parts")
            wait([done], _STATUS_SECONDS)
        sum_of_parts = ReportPart()
        for (pickled,) in done.result():
            written, part = pickle.loads(pickled)
            counts.update(written)
            sum_of_parts.merge(part)
    return counts, sum_of_parts


def _finished(folder: Path) -> int:
    """Return how many tasks have written their tables; each has one file of the last table."""
    return sum(1 for _ in (folder / export.LAST).glob("part-*.parquet"))


def _read(spark: SparkSession, folder: Path, schema: StructType | str) -> DataFrame:
    """Return a table. With a schema, Spark need not look for one."""
    return spark.read.schema(schema).parquet(folder.absolute().as_uri())


def _empty(folder: Path, columns: Sequence[ViewColumn]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(schema_of(columns).empty_table(), folder / "part-00000.parquet")
