"""Differences between two histograms, and whether they may be chance.

A known share of the baseline's exchanges exceeds a percentile of the baseline. If nothing changed,
the same share of the new exchanges exceeds it. The significance is the difference between these
shares, in standard deviations of two samples. So no distribution is assumed, and a difference
between few exchanges is not significant.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from kproxy.exchange.histogram import PERCENTILES, growth, percentile_ms, rank

SIGNIFICANT = 3.3
"""Standard deviations from which on a difference is significant: chance in one of 1000 cases."""

BucketCounts = Mapping[int, int]
"""A histogram: bucket → number of values."""


Limits = tuple[float | None, float | None]
"""The least and the largest of all values, where they are known."""


def difference(
    new: BucketCounts,
    old: BucketCounts,
    name: str,
    limits: Limits = (None, None),
    old_limits: Limits = (None, None),
) -> dict[str, Any]:
    """Return a percentile of two histograms, their ratio, and its significance."""
    part = PERCENTILES[name]
    at, before = percentile_ms(new, part, *limits), percentile_ms(old, part, *old_limits)
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


def latency_of(new: BucketCounts, old: BucketCounts, independent: float = 1.0) -> dict[str, Any]:
    """Return all percentiles of two histograms, their ratios, and their significance, if a part of
    the values is `independent` of the others."""
    row: dict[str, Any] = {}
    for name in PERCENTILES:
        row |= difference(new, old, name)
        row[f"{name}_sigma"] = round(row[f"{name}_sigma"] * math.sqrt(independent), 1)
    return row


def worst(row: dict[str, Any], factor: float, or_quicker: bool = True) -> str | None:
    """Return the percentile, p50, p95 or p99, that grew most, or shrank if it may be `or_quicker`:
    by more than a factor, and by no chance; None if there is none."""
    found: dict[str, float] = {}
    for name in ("p50", "p95", "p99"):
        ratio, sigma = row[f"{name}_ratio"], row[f"{name}_sigma"]
        if ratio and or_quicker:
            ratio, sigma = max(ratio, 1 / ratio), abs(sigma)
        if ratio and ratio > factor and sigma >= SIGNIFICANT:
            found[name] = ratio
    return max(found, key=lambda each: found[each], default=None)
