"""Derived columns: of one exchange, of many at once, and as users see them."""

from __future__ import annotations

from decimal import Decimal

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kproxy.exchange.derived import DERIVED, INPUTS, UNKNOWN, Durations, durations
from kproxy.exchange.entries import (
    INJECTED,
    NO_API,
    NO_RESPONSE,
    RAW_SASL,
    ExchangeRow,
)
from kproxy.exchange.pairing import pair
from kproxy.protocol import messages
from kproxy.recording.layout import EXCHANGE_INTEGERS
from tests.exchange.bodies import fetch_request, fetch_response
from tests.exchange.making import MS, START_NS, request, response

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


@st.composite
def ordinary_rows(draw: st.DrawFn) -> ExchangeRow:
    """Return a row of which all is known, like most; the times may be equal or out of order."""
    steps = st.integers(-600, 3_000_000) | st.integers(0, 1 << 40)
    times, at = list[int](), draw(st.integers(1, 1 << 60))
    for _ in range(4):
        times.append(at)
        at += draw(steps)
    return ExchangeRow(
        7, *times, queued_ns=draw(DURATIONS), fault_ns=draw(DURATIONS), request_position=1,
        response_position=2, request_bytes=20, response_bytes=draw(st.sampled_from([0, 9, 9, 9])),
        max_wait_ms=draw(st.integers(0, 9)), api_key=draw(values("api_key")), api_version=0,
        request_flags=draw(st.just(0) | FLAGS), response_flags=draw(st.just(0) | FLAGS),
    )  # fmt: skip


def one_by_one(row: ExchangeRow, name: str, wait_max_ms: int) -> int:
    """Return a derived column of a row by the functions of DERIVED alone."""
    if name in DERIVED:
        return DERIVED[name](*(one_by_one(row, each, wait_max_ms) for each in INPUTS[name]))
    return wait_max_ms if name == "wait_max_ms" else getattr(row, name)


@given(ordinary_rows(), st.integers(-1, 9))
def test_the_durations_of_an_exchange_are_those_of_the_columns(row: ExchangeRow, asked: int):
    wait_max_ms = row.max_wait_ms if row.api_key == 1 and row.max_wait_ms else asked
    expected = Durations(*(one_by_one(row, name, wait_max_ms) for name in Durations._fields))
    assert durations(row, lambda: wait_max_ms) == expected


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


# ---------------------------------------------------------------- as users see them

HEARTBEAT = messages.HeartbeatRequest(group_id="checkout")


def after(asked, body, milliseconds: float):
    """A response that arrives so long after its request was sent on."""
    return attrs.evolve(response(asked, body), received_ns=asked.sent_ns + round(milliseconds * MS))


def test_a_request_that_waits_for_the_answer_to_an_earlier_one_is_queued():
    fetch = request("Fetch", 11, fetch_request({0: 5}, max_wait_ms=500), 1)
    beat = request("Heartbeat", 4, HEARTBEAT, 2)
    first, second = pair(
        [
            fetch,
            beat,
            after(fetch, fetch_response({0: b""}), 501),
            after(beat, messages.HeartbeatResponse(), 502),
        ]
    )
    assert (first.queued_ms, first.waiting_ms, first.service_ms) == (0.0, 500.0, 1.0)
    # It was sent on a millisecond after the fetch, and its answer came 2 ms behind.
    assert (second.queued_ms, second.waiting_ms, second.service_ms) == (500.0, 0.0, 2.0)
    assert second.broker_ms == 502.0
    assert second.text.endswith("checkout: generation 0, queued 500 ms")
    assert "  2.00 +" in second.text


def test_a_long_poll_is_no_slow_broker():
    fetch = request("Fetch", 11, fetch_request({0: 5}, max_wait_ms=500))
    (early,) = pair([fetch, after(fetch, fetch_response({0: b""}), 300)])
    assert (early.waiting_ms, early.service_ms) == (300.0, 0.0)
    assert " ~300 " in early.text
    (late,) = pair([fetch, after(fetch, fetch_response({0: b""}), 1700)])
    assert (late.waiting_ms, late.service_ms) == (500.0, 1200.0)
    assert late.text.endswith("empty, 1.2 s longer than it may wait")


@pytest.mark.parametrize("api", ["JoinGroup", "SyncGroup"])
def test_the_members_of_a_group_wait_for_each_other(api):
    asked = request(api, 5, getattr(messages, f"{api}Request")(group_id="checkout"))
    body = getattr(messages, f"{api}Response")()
    (joined,) = pair([asked, after(asked, body, 3000)])
    assert (joined.waiting_ms, joined.service_ms) == (3000.0, 0.0)


def test_without_an_answer_nothing_is_known():
    (alone,) = pair([request("Heartbeat", 4, HEARTBEAT)])
    assert alone.queued_ms is alone.waiting_ms is alone.service_ms is None


@given(
    st.lists(
        st.tuples(st.booleans(), st.integers(0, 900 * MS), st.integers(0, 600)),
        min_size=1,
        max_size=8,
    )
)
def test_the_parts_are_the_whole_in_what_users_see(plan):
    asked, answered, now = [], [], START_NS
    for number, (polls, took_ns, max_wait_ms) in enumerate(plan, 1):
        body = fetch_request({0: 5}, max_wait_ms=max_wait_ms)
        one = request("Fetch", 11, body, number) if polls else None
        one = one or request("Heartbeat", 4, HEARTBEAT, number)
        now = max(now, one.sent_ns) + took_ns
        reply = fetch_response({0: b""}) if polls else messages.HeartbeatResponse()
        asked.append(one)
        answered.append(attrs.evolve(response(one, reply), received_ns=now))
    for exchange, (_, took_ns, _) in zip(pair([*asked, *answered]), plan, strict=True):
        parts_ms = exchange.queued_ms, exchange.waiting_ms, exchange.service_ms
        # Through text, as users get them: -0.0 and 0.30000000000000004 would show.
        parts_us = [Decimal(str(part)) * 1000 for part in parts_ms]
        assert sum(parts_us) == Decimal(str(exchange.broker_ms)) * 1000
        assert all(part == int(part) and not part.is_signed() for part in parts_us)
        assert parts_us[1] + parts_us[2] <= took_ns / 1000 + 1000
