"""Histograms of durations, of which all percentiles are taken: in `kproxy stats` and in Spark.

::

    whole µs ─ bucket ─▶ counts by bucket ─ rank ─▶ bucket of a percentile ─ middle ─▶ ms

Buckets grow by 1.1 %: bucket b has the whole microseconds from 2^(b/64) on, below 2^((b+1)/64);
0 counts as 1. A percentile is the least bucket up to which that part of the durations lies, its
middle to the microsecond, but not outside of the least and the largest duration: it is exact to
0.6 %, or half a microsecond.

Invariant: counts are added, bucket by bucket. So the percentiles of any part are those of the sum
of its histograms, in whatever order, and however often it was divided.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

import attrs

from kproxy.exchange.merging import by

BUCKETS = 64
"""The number of buckets between a duration and twice that duration."""

PERCENTILES = {"p50": 500, "p95": 950, "p99": 990, "p999": 999}
"""The thousandths of each percentile, by name."""

NEVER_US = 1 << 63
"""Longer than any duration."""


@functools.lru_cache(1 << 16)
def bucket(duration_us: int) -> int:
    """Return the bucket of a duration, ⌊64 log₂ µs⌋: the number of bits of µs⁶⁴, less one."""
    return (max(1, duration_us) ** BUCKETS).bit_length() - 1


def growth(buckets: float) -> float:
    """Return the factor by which durations grow over a number of buckets."""
    return 2 ** (buckets / BUCKETS)


def start_ms(bucket: int) -> float:
    """Return the duration at which a bucket starts."""
    return growth(bucket) / 1000


def middle_ms(bucket: int) -> float:
    """Return the duration in the middle of a bucket, to the microsecond."""
    return round(growth(bucket + 0.5)) / 1000


def rank(counts: Mapping[int, int], thousandths: int) -> int:
    """Return the bucket of a percentile; counts are by bucket, and not empty."""
    passed, total = 0, sum(counts.values())
    for each in sorted(counts):
        passed += counts[each]
        if 1000 * passed >= thousandths * total:
            return each
    return max(counts)


def percentile_ms(
    counts: Mapping[int, int],
    thousandths: int,
    least_ms: float | None = None,
    largest_ms: float | None = None,
) -> float | None:
    """Return a percentile of counts by bucket, None if there are none; the least and the largest
    are the known limits of all durations."""
    if not counts:
        return None
    found = middle_ms(rank(counts, thousandths))
    found = found if least_ms is None else max(found, least_ms)
    return found if largest_ms is None else min(found, largest_ms)


@attrs.define(eq=False)
class Histogram:
    """Durations, counted by bucket; the least and the largest are exact."""

    count: int = 0
    least_us: int = attrs.field(default=NEVER_US, metadata=by(min))
    largest_us: int = attrs.field(default=0, metadata=by(max))
    counts: dict[int, int] = attrs.field(factory=dict, init=False)
    """The number of durations by bucket."""

    @property
    def max_ms(self) -> float:
        """The largest duration; 0 if there is none."""
        return self.largest_us / 1000

    def add(self, duration_us: int) -> None:
        """Add one duration; negative ones count as 0."""
        at = bucket(duration_us)
        self.counts[at] = self.counts.get(at, 0) + 1
        self.count += 1
        if duration_us < self.least_us:
            self.least_us = max(0, duration_us)
        if duration_us > self.largest_us:
            self.largest_us = duration_us

    def percentile(self, thousandths: int) -> float | None:
        """Return the duration in milliseconds that so many of a thousand do not exceed, as exact as
        durations are kept; None without durations."""
        return percentile_ms(self.counts, thousandths, self.least_us / 1000, self.max_ms)
