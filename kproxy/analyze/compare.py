"""Comparison of two analyses: latencies and errors that changed, and their significance.

    latency of both ─▶ histograms by api and topic ─▶ percentiles, ratios, significance

A known share of the baseline's exchanges exceeds a percentile of the baseline. If nothing changed,
the same share of the new exchanges exceeds it. The significance is the difference between these
shares, in standard deviations of two samples. So no distribution is assumed, and a difference
between few exchanges is not significant.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kproxy.exchange.histogram import PERCENTILES, growth, percentile_ms, rank

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SIGNIFICANT = 3.3
"""Standard deviations from which on a difference is significant: chance in one of 1000 cases."""

ENOUGH = 20
"""Values that suffice for percentiles, even if other exchanges have no value."""

_HISTOGRAMS = """
SELECT api, topic, bucket, CAST(SUM(n) AS BIGINT) AS n FROM (
    SELECT api, topic, EXPLODE(broker_histogram) AS (bucket, n) FROM {table}
) GROUP BY api, topic, bucket
"""
_COUNTS = """
SELECT api, topic, SUM(count) AS count, SUM(errors) AS errors FROM {table} GROUP BY api, topic
"""

Key = tuple[str | None, str | None]
BucketCounts = Mapping[int, int]
"""A histogram: bucket → number of values."""


def differences(spark: SparkSession, folder: Path, baseline: Path) -> list[dict[str, Any]]:
    """Return the differences in latency and errors of two analyses, by API and topic (None: all).
    A row of only one of the analyses has counts of 0 for the other."""
    read = [_read(spark, each) for each in (folder, baseline)]
    (new, new_counts), (old, old_counts) = read
    found: list[dict[str, Any]] = []
    for key in sorted(new_counts.keys() | old_counts.keys(), key=str):
        count, errors = new_counts.get(key, (0, 0))
        old_count, old_errors = old_counts.get(key, (0, 0))
        row: dict[str, Any] = {"api": key[0], "topic": key[1], "count": count}
        row |= {"baseline_count": old_count}
        for name in PERCENTILES:
            row |= difference(new[key], old[key], name)
        row |= {"errors": errors / (count or 1), "baseline_errors": old_errors / (old_count or 1)}
        row["errors_sigma"] = sigmas(errors, count, old_errors, old_count)
        found.append(row)
    return found


def difference(new: BucketCounts, old: BucketCounts, name: str) -> dict[str, Any]:
    """Return a percentile of two histograms, their ratio, and its significance."""
    part = PERCENTILES[name]
    at, before = percentile_ms(new, part), percentile_ms(old, part)
    if at is None or before is None:
        return {name: at, f"baseline_{name}": before, f"{name}_ratio": None, f"{name}_sigma": 0.0}
    limit = rank(old, part)
    ratio = growth(rank(new, part) - limit)
    above = sum(n for bucket, n in new.items() if bucket > limit)
    above_before = sum(n for bucket, n in old.items() if bucket > limit)
    sigma = sigmas(above, sum(new.values()), above_before, sum(old.values()))
    return {
        name: at, f"baseline_{name}": before, f"{name}_ratio": round(ratio, 3),
        f"{name}_sigma": sigma,
    }  # fmt: skip


def sigmas(hits: int, count: int, other_hits: int, other_count: int) -> float:
    """Return by how many standard deviations a share exceeds another; 0.0 if a count is 0."""
    if not (count and other_count):
        return 0.0
    together = (hits + other_hits) / (count + other_count)
    spread = math.sqrt(together * (1 - together) * (1 / count + 1 / other_count))
    return round((hits / count - other_hits / other_count) / spread, 1) if spread else 0.0


def representative(counted: int, whole: int) -> bool:
    """Return whether enough of all exchanges have a value for percentiles of the values."""
    return (counted >= ENOUGH or counted == whole) and counted * 100 >= whole


def slower(found: list[dict[str, Any]], factor: float) -> list[dict[str, Any]]:
    """Return the rows that are significantly slower by more than a factor in p50, p95 or p99."""
    return [
        row
        for row in found
        if any(
            (row[f"{name}_ratio"] or 0) > factor and row[f"{name}_sigma"] >= SIGNIFICANT
            for name in ("p50", "p95", "p99")
        )
    ]


def _read(
    spark: SparkSession, folder: Path
) -> tuple[dict[Key, Counter[int]], dict[Key, tuple[int, int]]]:
    spark.read.parquet((folder / "latency").absolute().as_uri()).createOrReplaceTempView("compared")
    histograms: defaultdict[Key, Counter[int]] = defaultdict(Counter)
    for api, topic, bucket, n in spark.sql(_HISTOGRAMS.format(table="compared")).collect():
        histograms[api, topic][bucket] += n
    counts = {
        (api, topic): (count, errors)
        for api, topic, count, errors in spark.sql(_COUNTS.format(table="compared")).collect()
    }
    return histograms, counts
