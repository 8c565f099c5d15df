"""Comparison of two analyses: latencies and errors that changed, and their significance.

latency of both ─▶ histograms by api and topic ─▶ percentiles, ratios, significance
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

from kproxy.analyze.place import Place
from kproxy.look.report.significance import latency_of, sigmas, worst

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_HISTOGRAMS = """
SELECT api, topic, bucket, CAST(SUM(n) AS BIGINT) AS n FROM (
    SELECT api, topic, EXPLODE(broker_histogram) AS (bucket, n) FROM {latency}
) GROUP BY api, topic, bucket
"""
_COUNTS = """
SELECT api, topic, SUM(count) AS count, SUM(errors - routine) AS errors
FROM {latency} GROUP BY api, topic
"""

Key = tuple[str | None, str | None]


def differences(spark: SparkSession, folder: Place, baseline: Place) -> list[dict[str, Any]]:
    """Return the differences in latency and errors of two analyses, by API and topic (None: all).
    Errors that are routine of the protocol do not count. A row of only one of the analyses has
    counts of 0 for the other."""
    read = [_read(spark, each) for each in (folder, baseline)]
    (new, new_counts), (old, old_counts) = read
    found: list[dict[str, Any]] = []
    for key in sorted(new_counts.keys() | old_counts.keys(), key=str):
        count, errors = new_counts.get(key, (0, 0))
        old_count, old_errors = old_counts.get(key, (0, 0))
        row: dict[str, Any] = {"api": key[0], "topic": key[1], "count": count}
        row |= {"baseline_count": old_count}
        row |= latency_of(new[key], old[key])
        row |= {"errors": errors / (count or 1), "baseline_errors": old_errors / (old_count or 1)}
        row["errors_sigma"] = sigmas(errors, count, old_errors, old_count)
        found.append(row)
    return found


def slower(found: list[dict[str, Any]], factor: float) -> list[dict[str, Any]]:
    """Return the rows that are significantly slower by more than a factor in p50, p95 or p99."""
    return [row for row in found if worst(row, factor, or_quicker=False)]


def _read(
    spark: SparkSession, folder: Place
) -> tuple[dict[Key, Counter[int]], dict[Key, tuple[int, int]]]:
    latency = spark.read.parquet((folder / "latency").spark_pattern)
    histograms: defaultdict[Key, Counter[int]] = defaultdict(Counter)
    for api, topic, bucket, n in spark.sql(_HISTOGRAMS, latency=latency).collect():
        histograms[api, topic][bucket] += n
    counts = {
        (api, topic): (count, errors)
        for api, topic, count, errors in spark.sql(_COUNTS, latency=latency).collect()
    }
    return histograms, counts
