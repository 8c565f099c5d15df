"""The histogram of `kproxy stats` and `kproxy analyze`: its buckets and its percentiles."""

from __future__ import annotations

from itertools import chain

from hypothesis import given
from hypothesis import strategies as st

from kproxy.exchange.histogram import (
    BUCKETS,
    PERCENTILES,
    Histogram,
    bucket,
    middle_ms,
    rank,
)
from kproxy.exchange.merging import merge

LARGEST = 40 * BUCKETS
"""The bucket of 2⁴⁰ µs, twelve days."""


def least(number: int) -> int:
    """The least duration that is in this bucket or above, found without a logarithm."""
    low, high = 0, 1 << (number // BUCKETS + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if middle**BUCKETS < 1 << number else (low, middle)
    return high


EDGES = {least(number) + off for number in range(1, LARGEST) for off in (-1, 0)}
"""The durations beside the limits of buckets: the others lie between two of the same bucket."""
POWERS = [(1 << each) + off for each in range(41) for off in (-1, 0, 1) if (1 << each) + off]
DURATIONS = sorted({*range(1, 10_001), *EDGES, *POWERS})


def test_a_bucket_begins_where_its_power_of_two_does() -> None:
    for each in DURATIONS:
        number = bucket(each)
        assert least(number) <= each < least(number + 1)
    assert bucket(0) == bucket(1) == 0


def test_the_middle_of_a_bucket_is_a_hundredth_from_no_duration_in_it() -> None:
    for each in DURATIONS:
        assert abs(middle_ms(bucket(each)) * 1000 - each) <= 0.0055 * each + 0.5


@given(st.lists(st.lists(st.integers(0, 10**7))))
def test_histograms_that_are_added_are_the_histogram_of_all(parts: list[list[int]]) -> None:
    together, alone = Histogram(), Histogram()
    for part in parts:
        other = Histogram()
        for each in part:
            other.add(each)
            alone.add(each)
        merge(together, other)
    assert (together.counts, together.count) == (alone.counts, alone.count)
    for thousandths in PERCENTILES.values():
        assert together.percentile(thousandths) == alone.percentile(thousandths)
    if alone.count:
        every = list(chain(*parts))
        assert alone.percentile(1) is not None
        assert min(every) / 1000 <= (alone.percentile(500) or 0) <= max(every) / 1000


def test_a_percentile_is_reached_by_exactly_so_many() -> None:
    assert [rank({3: 50, 9: 50}, each) for each in (1, 500, 501, 1000)] == [3, 3, 9, 9]
    assert [rank({3: 1, 5: 1, 9: 8}, each) for each in (100, 101, 200, 201)] == [3, 5, 5, 9]
