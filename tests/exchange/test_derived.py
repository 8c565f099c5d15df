"""Durations: of any row, and as users see them."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kproxy.exchange.derived import UNKNOWN, durations
from kproxy.exchange.entries import (
    FAULTED,
    INJECTED,
    NO_API,
    NO_RESPONSE,
    RAW_SASL,
    SILENCED,
    ExchangeRow,
)
from kproxy.exchange.pairing import pair
from kproxy.wire.protocol import messages
from tests.exchange.bodies import fetch_request, fetch_response
from tests.exchange.making import MS, request, response

TIMES = st.integers(0, 1 << 62) | st.integers(0, 3000) | st.just(0)
DURATIONS = st.integers(-1, 1 << 40) | st.integers(-1, 3000)
FLAGS = st.lists(st.sampled_from([INJECTED, NO_RESPONSE, RAW_SASL, FAULTED, SILENCED, 2])).map(
    lambda flags: sum(set(flags))
)
ROWS = st.builds(
    ExchangeRow, st.just(7), TIMES, TIMES, TIMES, TIMES, DURATIONS, DURATIONS,
    response_bytes=st.sampled_from([0, 9]), max_wait_ms=st.integers(-2, 9),
    api_key=st.sampled_from([NO_API, 0, 1, 3, 11, 14, 78]), request_flags=FLAGS,
    response_flags=FLAGS,
)  # fmt: skip


@given(ROWS, st.integers(-1, 600))
def test_whatever_was_recorded_the_parts_are_the_whole(row: ExchangeRow, wait_max_ms: int) -> None:
    broker_us, *parts_us, own_us = durations(row, lambda: wait_max_ms)
    if broker_us == UNKNOWN:
        assert parts_us == [UNKNOWN] * 3
    else:
        assert sum(parts_us) == broker_us and min(parts_us) >= 0
    assert own_us >= UNKNOWN


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
