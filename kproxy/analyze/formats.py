"""Lakes in the formats that have a log of their own: Delta and Iceberg.

    settings of a session ─▶ format_of ─▶ "delta" ─▶ FORMATS["delta"].add: rows ─▶ LAKE/TABLE/…

Invariants: a lake keeps the format in which it was made; a table has the rows of a run whole or not
at all, and once, however often they are added.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import attrs

from kproxy.analyze import export
from kproxy.analyze.lake import PARQUET, runs
from kproxy.analyze.place import Place
from kproxy.spark import SparkError
from kproxy.spark.session import failures

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_ICEBERG_RUN = "kproxy.run"
"""The property of snapshots that names the run."""
_NO_CLASS = "DATA_SOURCE_NOT_FOUND", "ClassNotFound"
"""What errors of a session without the jars have, in Spark's words or in Java's."""


@attrs.frozen
class Format:
    """A format that a session of Spark may have."""

    title: str
    package: str
    """What is in the names of its classes."""
    jar: str
    """In Maven; {} is for the version of Spark."""
    settings: Mapping[str, str]
    """What a session needs besides."""
    add: Callable[[DataFrame, Place, str, str], None]
    """Add rows to a table of a lake (its name) for a run (its name), unless they are there."""


def _add_to_delta(rows: DataFrame, lake: Place, table: str, run: str) -> None:
    # Not the run's place in the lake as a version of "kproxy": if somebody removes a manifest,
    # Delta would silently skip what comes in its place.
    once = {"txnAppId": f"kproxy-{run}", "txnVersion": "0"}
    options = once | {"userMetadata": run, "mergeSchema": "true"}
    write = rows.write.format("delta").mode("append").options(**options)
    write.partitionBy(*export.DIVIDED.get(table, ())).save((lake / table).spark)


def _add_to_iceberg(rows: DataFrame, lake: Place, table: str, run: str) -> None:
    from pyspark.sql import functions

    spark = rows.sparkSession
    name = f"{_iceberg_catalog(spark, lake)}.{table}"
    write = rows.writeTo(name).option(f"snapshot-property.{_ICEBERG_RUN}", run)
    if not spark.catalog.tableExists(name):
        if divided_by := export.DIVIDED.get(table):
            write = write.partitionedBy(*map(functions.col, divided_by))
        write.tableProperty("write.spark.accept-any-schema", "true").create()
        return
    is_of_run = functions.col("summary")[_ICEBERG_RUN] == run
    if spark.table(f"{name}.snapshots").where(is_of_run).isEmpty():
        write.option("mergeSchema", "true").append()


def _iceberg_catalog(spark: SparkSession, lake: Place) -> str:
    """Return the name of a catalog that has the lake as its warehouse: Iceberg makes no tables by
    path, though it reads them."""
    name = f"kproxy_{hashlib.sha256(lake.spark.encode()).hexdigest()[:8]}"
    key = f"spark.sql.catalog.{name}"
    spark.conf.set(key, "org.apache.iceberg.spark.SparkCatalog")
    spark.conf.set(f"{key}.type", "hadoop")
    spark.conf.set(f"{key}.warehouse", lake.spark)
    spark.conf.set(f"{key}.cache-enabled", "false")
    return name


FORMATS = {
    "delta": Format(
        "Delta",
        "io.delta.",
        "io.delta:delta-spark_{}_2.13",
        {
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        },
        _add_to_delta,
    ),
    "iceberg": Format(
        "Iceberg",
        "org.apache.iceberg.",
        "org.apache.iceberg:iceberg-spark-runtime-{}_2.13",
        {
            "spark.sql.extensions": "org.apache.iceberg.spark.extensions"
            ".IcebergSparkSessionExtensions"
        },
        _add_to_iceberg,
    ),
}
"""By the names that Spark knows. Of those that a session has, the first makes a new lake."""


def format_of(spark: SparkSession, lake: Place) -> str:
    """Return the format of a lake; of a new one the session's: if it has both, the one that is
    `spark.sql.sources.default`, else Delta.

    Raises: SparkError, if the session lacks the format; OSError.
    """
    before = runs(lake)
    if before:
        check(spark, lake, before[-1].format)
        return before[-1].format
    has = [name for name, each in FORMATS.items() if _has(spark, each)]
    default = spark.conf.get("spark.sql.sources.default", PARQUET)
    chosen = default if default in has else next(iter(has), PARQUET)
    check(spark, lake, chosen)
    return chosen


def check(spark: SparkSession, lake: Place, name: str) -> None:
    """Check that a session has the format of a lake.

    Raises: SparkError.
    """
    if name == PARQUET:
        return
    if name not in FORMATS:
        raise SparkError(f"{lake} has tables of {name}, which this kproxy does not know")
    found = FORMATS[name]
    if not (_has(spark, found) and _is_loaded(spark, lake, name)):
        jar = found.jar.format(".".join(spark.version.split(".")[:2]))
        settings = " ".join(f"--conf {key}={value}" for key, value in found.settings.items())
        what = f"{lake} is a lake of {found.title}, which this session of Spark does not have"
        raise SparkError(f"{what}: give spark-submit --packages {jar}:VERSION {settings}")


def _has(spark: SparkSession, found: Format) -> bool:
    """Return whether the settings of a session name a format."""
    settings: dict[str, Any] = spark.conf.getAll
    keys = "spark.sql.extensions", "spark.sql.catalog."
    return any(key.startswith(keys) and found.package in settings[key] for key in settings)


def _is_loaded(spark: SparkSession, lake: Place, name: str) -> bool:
    """Return whether the jars of a format are there, too: then it tells that a table is not."""
    try:
        _ = spark.read.format(name).load((lake / "exchanges").spark).schema
    except failures() as error:
        return not any(each in str(error) for each in _NO_CLASS)
    return True
