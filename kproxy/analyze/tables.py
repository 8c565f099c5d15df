"""The tables of an analysis, or of a lake, as DataFrames of Spark.

    analysis.json, or the runs that count ─┬─▶ folders ───────────▶ {table: DataFrame}
                                           └─▶ of Delta, Iceberg ─▶

Invariant: what a run that does not count has written is not read.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kproxy.analyze import export, formats
from kproxy.analyze.described import ABOUT, comments
from kproxy.analyze.lake import MANIFEST, PARQUET, Tables, runs
from kproxy.analyze.making import columns_of, commented
from kproxy.analyze.place import Place
from kproxy.spark import SparkError
from kproxy.spark.ddl import ddl
from kproxy.spark.session import failures, first_line
from kproxy.tables.arrow_types import TEXT
from kproxy.tables.views import ViewColumn

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RUN_COLUMN = ViewColumn("run", TEXT, "the run of kproxy analyze that added it")


def tables(spark: SparkSession, folder: str) -> dict[str, DataFrame]:
    """Return the tables that `kproxy analyze` made in a folder, or behind a URI, by name. Those of
    a lake have the rows of all runs that count; their columns have comments.

    Raises: SparkError, if it is no analysis; OSError.
    """
    place = Place.named(folder)
    if place.local is None:
        check_known(spark, place)
    form, found, staged = _found(place)
    if not found:
        raise SparkError(f"{place} has no analysis: kproxy analyze FILE … --out {place} makes one")
    formats.check(spark, place, form)
    names = [name for name in ABOUT if any(name in rows for _, rows in found)]
    if form != PARQUET:
        loaded = {name: spark.read.format(form).load((place / name).spark) for name in names}
        return {
            name: table.where(~table[RUN_COLUMN.name].isin(staged)) if staged else table
            for name, table in loaded.items()
        }
    return {name: table_of(spark, name, found) for name in names}


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


def _found(place: Place) -> tuple[str, list[tuple[Tables, dict[str, int]]], list[str]]:
    """Return the format of tables, where they are, with the number of rows of each, and the runs of
    which only some tables may have rows."""
    if MANIFEST not in place.children():
        every = runs(place)
        added = [run for run in every if not run.staged]
        found = [(Tables(place, run.name), run.rows) for run in added]
        staged = [run.name for run in every if run.staged]
        return added[-1].format if added else PARQUET, found, staged
    folder, rows = _manifest(place / MANIFEST)
    return PARQUET, [(Tables(place / folder if folder else place), rows)], []


def _manifest(file: Place) -> tuple[str, dict[str, int]]:
    """Return in which folder the tables are, "" if beside it, and the number of rows of each.

    Raises: SparkError, if it makes no sense; OSError.
    """
    try:
        found: Any = json.loads(file.read())
    except (ValueError, RecursionError):
        found = None
    said = found if isinstance(found, dict) else {}
    folder, rows = said.get("folder", ""), said.get("rows")
    if not isinstance(folder, str) or folder in (".", "..") or "/" in folder:
        rows = None
    if not isinstance(rows, dict) or any(not isinstance(n, int) for n in rows.values()):
        raise SparkError(f"{file} does not say what was made: put back what it was")
    return folder, rows


def table_of(
    spark: SparkSession, name: str, found: Sequence[tuple[Tables, dict[str, int]]]
) -> DataFrame:
    """Return a table that is in folders with Parquet files, of so many rows each."""
    is_lake = found[0][0].divided
    # A task makes no file without rows.
    least = 1 if name in export.TABLES else 0
    having = [where for where, rows in found if rows.get(name, -1) >= least]
    paths = [each.table(name).spark_pattern for each in having]
    read = spark.read
    of_folders = (RUN_COLUMN,) if is_lake else ()
    if name in export.TABLES:
        columns = (*columns_of(name, is_lake), *of_folders)
        if not paths:
            return spark.createDataFrame([], ddl(columns))
        read, of_folders = read.schema(ddl(columns)), columns
    if is_lake:
        read = read.option("basePath", (found[0][0].folder / name).spark)
    about = comments(name) | {each.name: each.comment for each in of_folders}
    return commented(read.parquet(*paths), about)
