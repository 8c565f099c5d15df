"""Derived columns: of one exchange, and of many at once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kproxy.exchange.derived import DERIVED, INPUTS, UNKNOWN
from kproxy.exchange.entries import INJECTED, NO_API, NO_RESPONSE, RAW_SASL
from kproxy.recording.layout import EXCHANGE_INTEGERS

ANY = st.integers(-1 << 63, (1 << 63) - 1) | st.sampled_from([-1 << 63, (1 << 63) - 1, 0, -1])
TIMES = st.integers(0, 1 << 62) | st.integers(0, 3000) | st.just(0)
DURATIONS = st.integers(-1, 1 << 40) | st.integers(-1, 3000)
FLAGS = st.lists(st.sampled_from([INJECTED, NO_RESPONSE, RAW_SASL, 2])).map(
    lambda flags: sum(set(flags))
)


def values(name: str) -> st.SearchStrategy[int]:
    if name.endswith("flags"):
        return FLAGS
    if name == "api_key":
        return st.sampled_from([NO_API, 0, 1, 3, 11, 14, 78])
    return TIMES if name.endswith("_ns") else DURATIONS


@pytest.mark.parametrize("name", DERIVED)
@given(data=st.data())
def test_arrays_have_the_values_of_single_exchanges(name: str, data: st.DataObject) -> None:
    rows = data.draw(st.lists(st.tuples(*map(values, INPUTS[name])), min_size=1, max_size=20))
    compute = DERIVED[name]
    arrays = [np.array(column, np.int64) for column in zip(*rows, strict=True)]
    assert compute(*arrays).tolist() == [compute(*row) for row in rows]


@given(st.data())
def test_whatever_was_recorded_gives_the_same_one_by_one_and_in_arrays(
    data: st.DataObject,
) -> None:
    """Each column is computed of what was recorded, and of those that were computed before it."""
    bits = {name: int(kind.removeprefix("int")) for name, kind in EXCHANGE_INTEGERS}
    bits |= {"wait_max_ms": bits["max_wait_ms"]}
    columns = {
        name: [data.draw(ANY) & (1 << size) - 1 for _ in range(4)] for name, size in bits.items()
    }
    columns = {
        name: [each - (each >> bits[name] - 1 << bits[name]) for each in column]
        for name, column in columns.items()
    }
    arrays = {name: np.array(column, f"i{bits[name] // 8}") for name, column in columns.items()}
    for name, compute in DERIVED.items():
        columns[name] = [
            compute(*row) for row in zip(*(columns[each] for each in INPUTS[name]), strict=True)
        ]
        arrays[name] = compute(*(arrays[each] for each in INPUTS[name]))
        assert arrays[name].tolist() == columns[name], name
        assert all(-1 <= each < 1 << 62 for each in columns[name] if name.endswith("_us"))


@given(
    st.tuples(*(values(name) for name in INPUTS["broker_ns"])),
    DURATIONS,
    st.sampled_from([0, 1, 11, 78]),
    st.integers(-1, 600),
)
def test_the_parts_are_the_whole(
    times: tuple[int, ...], queued_ns: int, key: int, wait: int
) -> None:
    broker_us = DERIVED["broker_us"](DERIVED["broker_ns"](*times))
    queued_us = DERIVED["queued_us"](queued_ns, broker_us)
    waiting_us = DERIVED["waiting_us"](key, wait, broker_us, queued_us)
    service_us = DERIVED["service_us"](broker_us, queued_us, waiting_us)
    parts = queued_us, waiting_us, service_us
    if broker_us == UNKNOWN:
        assert parts == (UNKNOWN,) * 3
    else:
        assert sum(parts) == broker_us and min(parts) >= 0
