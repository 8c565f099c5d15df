"""The tables of an analysis, or of a lake, as DataFrames of Spark.

    analysis.json ─▶ folders of the runs that count ─▶ {table: DataFrame}

Invariant: what a run that does not count has written is not read.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kproxy.analyze import export, lake
from kproxy.analyze.described import ABOUT, comments
from kproxy.analyze.place import Place
from kproxy.analyze.sinks import DATE
from kproxy.spark import SparkError
from kproxy.spark.ddl import ddl
from kproxy.spark.session import failures, first_line
from kproxy.tables.arrow_types import DAY
from kproxy.tables.views import ViewColumn

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_DATE_COLUMN = ViewColumn(DATE, DAY, "the day of `time`, in UTC")


def tables(spark: SparkSession, folder: str) -> dict[str, DataFrame]:
    """Return the tables that `kproxy analyze` made in a folder, or behind a URI, by name. Those of
    a lake have the rows of all runs that count; their columns have comments.

    Raises: SparkError, if it is no analysis; OSError.
    """
    place = Place.named(folder)
    if place.local is None:
        check_known(spark, place)
    found, is_lake = _folders(place)
    if not found:
        raise SparkError(f"{place} has no analysis: kproxy analyze FILE … --out {place} makes one")
    return {
        name: _table(spark, name, [(each / name, rows[name]) for each, rows in having], is_lake)
        for name in ABOUT
        if (having := [(each, rows) for each, rows in found if name in rows])
    }


def check_known(spark: SparkSession, place: Place) -> None:
    """Check that Spark can use remote storage.

    Raises: SparkError.
    """
    try:
        _ = spark.read.schema("number INT").parquet(place.spark).columns
    except failures() as error:
        if "PATH_NOT_FOUND" in str(error):
            return
        what = f"Spark cannot use {place.spark}: {first_line(error)}"
        raise SparkError(f"{what}: give it the file system's jars (--packages)") from None


def _folders(place: Place) -> tuple[list[tuple[Place, dict[str, int]]], bool]:
    """Return the folders that have tables, with the number of rows of each table, and whether they
    are runs of a lake."""
    try:
        manifest: Any = json.loads((place / lake.MANIFEST).read())
    except FileNotFoundError:
        return [(place / run.name, run.rows) for run in lake.runs(place)], True
    folder = manifest.get("folder", "")
    return [(place / folder if folder else place, manifest["rows"])], False


def _table(
    spark: SparkSession, name: str, folders: Sequence[tuple[Place, int]], is_lake: bool
) -> DataFrame:
    columns = export.TABLES.get(name)
    if columns is not None:
        # A task makes no file without rows.
        paths = [folder.spark for folder, rows in folders if rows]
        divided = is_lake and name in export.DIVIDED
        schema = ddl([*columns, *([_DATE_COLUMN] if divided else [])])
        return spark.read.schema(schema).parquet(*paths) if paths else _empty(spark, schema)
    read = spark.read.parquet(*(folder.spark for folder, _ in folders))
    for column, text in comments(name).items():
        read = read.withMetadata(column, {"comment": text})
    return read


def _empty(spark: SparkSession, schema: str) -> DataFrame:
    return spark.createDataFrame([], schema)
