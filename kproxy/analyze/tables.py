"""The tables of an analysis, or of a lake, as DataFrames of Spark.

    analysis.json, or those of the runs that count ─▶ folders ─▶ {table: DataFrame}

Invariant: what a run that does not count has written is not read.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kproxy.analyze import export
from kproxy.analyze.described import ABOUT
from kproxy.analyze.lake import MANIFEST, Tables, runs
from kproxy.analyze.making import columns_of
from kproxy.analyze.place import Place
from kproxy.spark import SparkError
from kproxy.spark.ddl import ddl
from kproxy.spark.session import failures, first_line
from kproxy.tables.arrow_types import TEXT
from kproxy.tables.views import ViewColumn

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_RUN_COLUMN = ViewColumn("run", TEXT, "the run of kproxy analyze that added it")


def tables(spark: SparkSession, folder: str) -> dict[str, DataFrame]:
    """Return the tables that `kproxy analyze` made in a folder, or behind a URI, by name. Those of
    a lake have the rows of all runs that count; their columns have comments.

    Raises: SparkError, if it is no analysis; OSError.
    """
    place = Place.named(folder)
    if place.local is None:
        check_known(spark, place)
    found = _runs(place)
    if not found:
        raise SparkError(f"{place} has no analysis: kproxy analyze FILE … --out {place} makes one")
    names = [name for name in ABOUT if any(name in rows for _, rows in found)]
    return {name: _table(spark, name, found) for name in names}


def check_known(spark: SparkSession, place: Place) -> None:
    """Check that Spark can use remote storage.

    Raises: SparkError.
    """
    nothing = place / ".nothing"  # the folders of a lake are not those of one table
    try:
        _ = spark.read.schema("number INT").parquet(nothing.spark_pattern).columns
    except failures() as error:
        if "PATH_NOT_FOUND" in str(error):
            return
        what = f"Spark cannot use {place.spark}: {first_line(error)}"
        raise SparkError(f"{what}: give it the file system's jars (--packages)") from None


def _runs(place: Place) -> list[tuple[Tables, dict[str, int]]]:
    """Return where tables are, with the number of rows of each."""
    manifest: Any = None
    with contextlib.suppress(FileNotFoundError):
        manifest = json.loads((place / MANIFEST).read())
    if manifest is None:
        return [(Tables(place, run.name), run.rows) for run in runs(place)]
    folder = manifest.get("folder", "")
    return [(Tables(place / folder if folder else place), manifest["rows"])]


def _table(
    spark: SparkSession, name: str, found: Sequence[tuple[Tables, dict[str, int]]]
) -> DataFrame:
    is_lake = bool(found[0][0].run)
    # A task makes no file without rows.
    least = 1 if name in export.TABLES else 0
    having = [where for where, rows in found if rows.get(name, -1) >= least]
    paths = [each.table(name).spark_pattern for each in having]
    read = spark.read
    of_folders = (_RUN_COLUMN,) if is_lake else ()
    if name in export.TABLES:
        columns = (*columns_of(name, is_lake), *of_folders)
        if not paths:
            return spark.createDataFrame([], ddl(columns))
        read, of_folders = read.schema(ddl(columns)), columns
    if is_lake:
        read = read.option("basePath", (found[0][0].folder / name).spark)
    return _commented(read.parquet(*paths), of_folders)


def _commented(table: DataFrame, columns: Sequence[ViewColumn]) -> DataFrame:
    """Return a table with the comments of columns that have none: those of folders' names."""
    known = {field.name for field in table.schema if field.metadata.get("comment")}
    for column in columns:
        if column.name not in known:
            table = table.withMetadata(column.name, {"comment": column.comment})
    return table
