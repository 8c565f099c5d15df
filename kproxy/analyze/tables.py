"""The tables of an analysis, or of a lake, as DataFrames of Spark.

    analysis.json ─▶ folders of the runs that count ─▶ {table: DataFrame}

Invariant: what a run that does not count has written is not read.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kproxy.analyze import export, lake
from kproxy.analyze.described import ABOUT
from kproxy.analyze.making import columns_of
from kproxy.analyze.place import Place
from kproxy.spark import SparkError
from kproxy.spark.ddl import ddl
from kproxy.spark.session import failures, first_line

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


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
    if name in export.TABLES:
        # A task makes no file without rows.
        paths = [folder.spark for folder, rows in folders if rows]
        schema = ddl(columns_of(name, is_lake))
        return spark.read.schema(schema).parquet(*paths) if paths else _empty(spark, schema)
    return spark.read.parquet(*(folder.spark for folder, _ in folders))


def _empty(spark: SparkSession, schema: str) -> DataFrame:
    return spark.createDataFrame([], schema)
