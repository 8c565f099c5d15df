"""Filters, and exchanges to try them on."""

from __future__ import annotations

from pathlib import Path

import attrs
from hypothesis import strategies as st

from kproxy import recording
from kproxy.exchange.entries import (
    CONNECTIONS,
    FAULTED,
    INJECTED,
    NO_RESPONSE,
    REDACTED,
    TRUNCATED,
    Note,
)
from kproxy.exchange.exchange import Exchange
from kproxy.exchange.filter import keys, values
from kproxy.exchange.filter.parse import Filter
from kproxy.exchange.filter.terms import Combination, Not, Term, grouped
from kproxy.exchange.pairing import pair
from kproxy.wire.protocol import messages
from tests.exchange.making import answer, opened, request, response, token

DEMO = Path(__file__).parent / "mock_cluster.mcap"
"""An earlier demo: a producer and a group consumer before librdkafka's mock cluster."""


def exchanges() -> list[Exchange]:
    """A recording's exchanges, and some of which each is odd in its way."""
    beat = messages.HeartbeatRequest(group_id="checkout")
    asked = [request("Heartbeat", 4, beat, number=number) for number in range(1, 9)]
    refused = messages.HeartbeatResponse(error_code=27)
    entries = [
        opened(node_id=2),
        Note(CONNECTIONS, 0, {"event": "client_id", "connection": 1, "client_id": "app"}),
        *(asked[0], response(asked[0], refused)),
        *(asked[1], answer(asked[1], b"\0\0\0\1x")),
        *(asked[2], response(asked[2], refused, flags=INJECTED | FAULTED, fault_ids=(7,))),
        *(asked[3], response(asked[3], refused, flags=REDACTED | TRUNCATED)),
        attrs.evolve(asked[4], flags=NO_RESPONSE),
        answer(asked[5], asked[5].data),
        token(7, b"secret"),
        attrs.evolve(asked[7], api_version=99),
    ]
    return [*pair(entries), *recording.read(DEMO)]


# ── filters ──────────────────────────────────────────────────────────────────────────────────

TEXTS = st.sampled_from(
    ["orders", "billing", "app", "rdkafka", "127.0.0.1:5001", "7", "", "o", "e", "new"]
) | st.text(max_size=6)
GLOBS = st.lists(TEXTS, min_size=1, max_size=3).map(lambda parts: values.Glob(tuple(parts)))
LEAVES = GLOBS.map(lambda each: each.typed).filter(lambda typed: ".." not in typed[0]).map(
    values.leaf
) | st.sampled_from(["12", "1..9", "..0.5", "3.."]).map(lambda text: values.leaf((text,)))
NUMBERS = st.integers(-3, 60) | st.sampled_from([100, 500, 10_000, 1 << 40, 50_000, 2_000_000])
TIMES = st.sampled_from(
    [
        "22:13",
        "22:13:20",
        "22:13:20.003..22:13:21",
        "23:00..01:00",
        "2023-11-14..",
        "..2024-01-01",
        "2023-11-14T22:13:20.004Z..2023-11-15",
        "2023-11-15T00:13:20+02:00..",
    ]
)


def _ranges(unit: values.Unit) -> st.SearchStrategy[values.Range]:
    def made(bounds: tuple[int | None, int | None]) -> values.Range:
        low, high = bounds
        if low is not None and high is not None and low > high:
            low, high = high, low
        if not unit.exact and low == high:
            high = None
        return values.Range(low, high, unit)

    try:
        unit.read("-1")
        numbers = NUMBERS
    except ValueError:  # a size or a duration
        numbers = NUMBERS.map(abs)
    return st.tuples(st.none() | numbers, st.none() | numbers).map(made)


def _choices(key: keys.Key, names: list[str]) -> st.SearchStrategy[values.Value]:
    whole = st.sampled_from(names).map(lambda name: key.value((name,)))
    part = st.sampled_from(names).map(lambda name: key.value((name[:2], "")))
    return whole | part


def _value(key: keys.Key) -> st.SearchStrategy[values.Value]:
    if key.name == "api":
        return _choices(key, ["Fetch", "Produce", "Heartbeat", "SaslToken", "ApiVersions"])
    if key.name == "error":
        return _choices(key, ["REBALANCE_IN_PROGRESS", "UNKNOWN_SERVER_ERROR"])
    if key.value is values.time_range:
        return TIMES.map(lambda text: values.time_range((text,)))
    if key.value is values.glob:
        return GLOBS
    if key.value is values.leaf:
        return LEAVES
    return _ranges(key.value(("", "")).unit)


PATHS = ("value.order", "value.state", "key.id", "value.items[*].Id", "value[0]")
"""Paths of records; the demo's have `order` and `state`."""
TERMS = st.sampled_from([*keys.KEYS, *map(keys.key_named, PATHS)]).flatmap(
    lambda key: st.lists(_value(key), min_size=1, max_size=2).map(
        lambda found: Term(key.name, tuple(found))
    )
) | st.sampled_from(sorted(keys.QUALITIES)).map(lambda name: Term(f"is:{name}", ()))
NODES = st.recursive(
    TERMS,
    lambda inner: (
        inner.map(Not) | st.builds(grouped, st.lists(inner, min_size=1, max_size=3), st.booleans())
    ),
    max_leaves=6,
)
FILTERS = st.just(Filter(Combination((), one=False))) | NODES.map(Filter)
