"""The rows of an exchange: stateless, with the quirks of all APIs and versions in one place.

Exchange ─▶ its API's functions ─▶ rows, in the order in which the broker did it
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from kproxy.exchange.exchange import Exchange
from kproxy.exchange.words.failures import failures
from kproxy.history import cluster_events, coordinator_events, log_events
from kproxy.history.ref import Ref
from kproxy.history.rows import Denied, Row, Throttled

_Find = Callable[[Exchange], Iterator[Row]]
_EVENTS: dict[str | None, list[_Find]] = defaultdict(list)
"""API → what finds its rows."""
for _found in (coordinator_events.EVENTS, log_events.EVENTS, cluster_events.EVENTS):
    for _api, _find in _found.items():
        _EVENTS[_api].append(_find)
RELATED_APIS = tuple(filter(None, coordinator_events.EVENTS))
"""Those that tell of topics, though they may not name them: of groups and of transactions."""


_RESPONSE_SUFFICES = frozenset(
    ("Fetch", "Metadata", "DescribeCluster", "DescribeTopicPartitions", "DeleteTopics",
     "DeleteGroups", "DeleteRecords")
)  # fmt: skip
"""Whose responses say what they are about: the request may be in a part that is not there."""


class ExchangeRows(NamedTuple):
    """An exchange, and its rows."""

    ref: Ref
    rows: Sequence[Row]
    """With those that a history makes of them: the commits that count from now on …"""


def taken(exchange: Exchange) -> ExchangeRows:
    """Return an exchange by itself."""
    return ExchangeRows(Ref.of(exchange), events(exchange))


def events(exchange: Exchange) -> list[Row]:
    """Return the rows of an exchange: none if what they need of it cannot be read."""
    if exchange.request is None and exchange.api not in _RESPONSE_SUFFICES:
        return []
    rows = [row for find in _EVENTS.get(exchange.api, ()) for row in find(exchange)]
    throttle_ms = getattr(exchange.response, "throttle_time_ms", 0)
    if throttle_ms > 0 and not exchange.injected:
        rows.append(Throttled(throttle_ms))
    if not DENIED.keys().isdisjoint(exchange.errors):
        rows += _denied(exchange)
    return rows


DENIED = {
    "TOPIC_AUTHORIZATION_FAILED": "topic",
    "GROUP_AUTHORIZATION_FAILED": "group",
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": "transactional id",
    "CLUSTER_AUTHORIZATION_FAILED": "cluster",
}
"""Error → what a permission is about."""


def _denied(exchange: Exchange) -> Iterator[Denied]:
    for failure in failures(exchange):
        kind = DENIED.get(failure.error)
        if kind is not None and not failure.by_rule:
            named = {
                "topic": failure.topics or exchange.topics,
                "group": exchange.groups,
                "transactional id": exchange.transactional_ids,
            }
            yield from (Denied(failure.error, name) for name in named.get(kind) or [""])
