"""Makes the tables of recordings in a folder.

    stretches ─▶ tasks: export ─┬─▶ exchanges, records, events, group_events, traffic
                                │   └─ Spark's SQL ─▶ latency, throughput
                                └─▶ counts ─▶ errors, connections, groups, recordings
                 tasks: faults ───▶ faults

Tasks write Parquet by themselves, in a quarter of the time that Spark's own writer takes; only the
small tables that are made from theirs are written by Spark. The steps are removed at the end.
"""

from __future__ import annotations

import itertools
import pickle
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any

import attrs
import pyarrow as pa
import pyarrow.parquet as pq

from kproxy.analyze import export, faults
from kproxy.analyze.described import comments
from kproxy.analyze.lake import STEPS, Tables
from kproxy.analyze.place import Place
from kproxy.analyze.queries import QUERIES
from kproxy.analyze.sinks import DATE
from kproxy.exchange.merging import merge
from kproxy.exchange.words.wording import count
from kproxy.look.report.part import ReportPart
from kproxy.net.allocator import collect_garbage_rarely
from kproxy.spark import SparkError
from kproxy.spark.ddl import ddl
from kproxy.tables.arrow_types import DAY
from kproxy.tables.splits import BatchRange
from kproxy.tables.views import ViewColumn, schema_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_STATUS_SECONDS = 0.5
_SUCCESS = "mapreduce.fileoutputcommitter.marksuccessfuljobs"
"""Hadoop's setting for the file `_SUCCESS`, which is no Parquet."""
_CORES_MAX = 10_000
_DATE_COLUMN = ViewColumn(DATE, DAY, "the day of `time`, in UTC")


@attrs.frozen
class TableMaker:
    """How tables are made."""

    spark: SparkSession
    with_records: bool = True
    on_status: Callable[[str], None] = lambda text: None
    """Called with a line about each step."""


@attrs.frozen
class MadeTables:
    """What was made."""

    rows: dict[str, int]
    """Table → its number of rows."""
    part: ReportPart
    """What a report says of the recordings."""


def make_tables(
    maker: TableMaker, groups: Sequence[Sequence[BatchRange]], to: Tables
) -> MadeTables:
    """Make the tables of stretches, a group of them in a task.

    Raises: SparkError, and what Spark raises.
    """
    counted = _export(maker, groups, to)
    rows = dict(counted.rows)
    for name in export.TABLES:
        _remove_left(to.table(name))
    frames: dict[str, DataFrame] = {}
    for name, columns in export.TABLES.items():
        if maker.with_records or name != "records":
            _check_shared(to, name, rows[name])
            if not rows[name]:
                _write(to.table(name), schema_of(columns).empty_table())
            schema = ddl(columns_of(name, to.divided and rows[name] > 0))  # it need not look for it
            frames[name] = maker.spark.read.schema(schema).parquet(to.table(name).spark_pattern)
    for name, table in (export.tables_of(counted) | _faults(maker, groups, counted)).items():
        _write(to.table(name), table)
        rows[name] = len(table)
    rows |= _query(maker, to, frames, {"throughput"} if not rows["traffic"] else set())
    for name in STEPS:
        to.remove(name)
        del rows[name]
    for name in export.DIVIDED if to.divided else ():
        if not rows.get(name):  # its only file would not be divided, as those of other runs are
            to.remove(name)
    return MadeTables(rows, counted.part)


def columns_of(table: str, divided: bool) -> Sequence[ViewColumn]:
    """Return the columns of a table that tasks write; those of a divided one with the day."""
    columns = export.TABLES[table]
    return (*columns, _DATE_COLUMN) if divided and table in export.DIVIDED else columns


def cores(spark: SparkSession) -> int:
    """Return how many tasks a session runs at once."""
    from pyspark.errors import PySparkAttributeError
    from pyspark.sql import functions

    try:
        return spark.sparkContext.defaultParallelism
    except PySparkAttributeError:  # of Spark Connect: a range has a partition for each
        partitions = spark.range(_CORES_MAX).select(functions.spark_partition_id())
        return partitions.distinct().count()


def rows_of(table: Place) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table that Spark made, batch by batch."""
    for file in _parquet(table):
        for batch in file.iter_batches():
            yield from batch.to_pylist()


def schemas_of(to: Tables, made: MadeTables) -> dict[str, pa.Schema]:
    """Return the schemas of the tables that were made.

    Raises: OSError.
    """
    return {
        name: schema_of(export.TABLES[name])
        if name in export.TABLES
        else next(_parquet(to.table(name))).schema_arrow
        for name in made.rows
    }


def _parquet(table: Place) -> Iterator[pq.ParquetFile]:
    """Yield the open files of a table that is not divided."""
    for file in _files(table):
        with file.path.open("rb") as data:
            yield pq.ParquetFile(data)


# ---- by tasks


def _export(
    maker: TableMaker, groups: Sequence[Sequence[BatchRange]], to: Tables
) -> export.TaskCounts:
    """Have tasks write the tables that come straight from the recordings, and count the rest."""
    with_records = maker.with_records

    def task(number: int) -> export.TaskCounts:
        return export.write(number, groups[number], to, with_records)

    counted = export.TaskCounts(Counter(dict.fromkeys(export.TABLES, 0)))
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(_done, maker.spark, task, len(groups))
        while not done.done():
            maker.on_status(f"reading: {_finished(to)} of {len(groups)} parts")
            wait([done], _STATUS_SECONDS)
        for each in done.result():
            merge(counted, each)
    return counted


def _faults(
    maker: TableMaker, groups: Sequence[Sequence[BatchRange]], counted: export.TaskCounts
) -> dict[str, pa.Table]:
    """Have tasks find what clients did after faults; return the table."""
    found: dict[str, list[BatchRange]] = {}
    for stretch in itertools.chain.from_iterable(groups):
        if counted.faults[stretch.recording]:
            found.setdefault(stretch.recording, []).append(stretch)
    recordings = [*found.values()]
    if recordings:
        maker.on_status(f"reading again: {count(len(recordings), 'recording')} with faults")

    def task(number: int) -> pa.Table:
        return export.table_of("faults", faults.rows(recordings[number]))

    tables = _done(maker.spark, task, len(recordings)) if recordings else ()
    empty = export.table_of("faults", ())
    return {
        "faults": pa.concat_tables([empty, *tables]).sort_by(
            [("time", "ascending"), ("number", "ascending")]
        )
    }


def _done(spark: SparkSession, task: Callable[[int], Any], count: int) -> list[Any]:
    """Return what tasks return, which are numbered."""
    from pyspark.sql import functions
    from pyspark.sql.types import BinaryType

    def pickled(number: int) -> bytes:
        collect_garbage_rarely()  # it took half of the time; exchanges are in no cycles
        return pickle.dumps(task(number))

    work = functions.udf(pickled, BinaryType(), useArrow=False).asNondeterministic()
    tasks = spark.range(0, count, 1, max(1, count)).select(work("id"))
    return [pickle.loads(each) for (each,) in tasks.collect()]


def _finished(to: Tables) -> int:
    """Return how many tasks have written their tables; each has one file of the last table."""
    return len(_files(to.table(export.LAST)))


def _files(table: Place) -> list[Place]:
    """Return the files of a table that is not divided."""
    return [table / name for name in table.children() if name.endswith(".parquet")]


def _remove_left(table: Place) -> None:
    """Remove what is no Parquet: what tasks have left to which another attempt was faster, and
    Hadoop's checksums. Who reads a whole folder, as polars does, would stumble over it."""
    if table.local is not None:
        for left in table.local.glob("**/.part-*"):
            left.unlink(missing_ok=True)


def _check_shared(to: Tables, name: str, rows: int) -> None:
    """Check that the driver has the folder into which the tasks have written.

    Raises: SparkError.
    """
    table = to.table(name).local
    if table is not None:
        files = table.glob("**/*.parquet")
        if sum(pq.read_metadata(path).num_rows for path in files) != rows:
            what = "does not have what the workers wrote: name one that all of them share"
            raise SparkError(f"{to.folder} {what}")


def _write(table: Place, rows: pa.Table) -> None:
    with (table / "part-00000.parquet").create() as new:
        pq.write_table(rows, new.file)


# ---- by queries


def _query(
    maker: TableMaker, to: Tables, given: Mapping[str, Any], empty: Collection[str]
) -> dict[str, int]:
    """Make all tables that are queries; return their numbers of rows."""
    with ThreadPoolExecutor(len(QUERIES)) as pool:  # most of a short query is planning it
        tables = [
            pool.submit(_make, maker.spark, to, given, name, name in empty) for name in QUERIES
        ]
        waiting: Collection[Any] = tables
        while waiting:
            maker.on_status(f"making tables: {len(QUERIES) - len(waiting)} of {len(QUERIES)}")
            _, waiting = wait(tables, _STATUS_SECONDS)
    return {name: each.result() for name, each in zip(QUERIES, tables, strict=True)}


def _make(
    spark: SparkSession, to: Tables, given: Mapping[str, Any], name: str, is_empty: bool
) -> int:
    """Make a table by its query; return its number of rows. Of one that is known to be empty only
    the columns are made."""
    table = commented(spark.sql(QUERIES[name], **given), comments(name))
    if is_empty:
        table = table.limit(0)  # Spark plans nothing then
    table.write.option(_SUCCESS, "false").parquet(to.table(name).spark)
    _remove_left(to.table(name))
    return sum(file.metadata.num_rows for file in _parquet(to.table(name)))


def commented(table: DataFrame, about: Mapping[str, str]) -> DataFrame:
    """Return a table with comments of its columns: of all at once, for Spark analyzes a query again
    each time that one is added."""
    from pyspark.sql.functions import col

    comment_by_column = {each.name: each.metadata.get("comment", "") for each in table.schema}
    return table.select(
        *(
            col(f"`{name}`").alias(name, metadata={"comment": about.get(name, known)})
            for name, known in comment_by_column.items()
        )
    )
