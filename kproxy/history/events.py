"""The rows of an exchange: stateless, with the quirks of all APIs and versions in one place.

Exchange ─▶ its API's functions ─▶ rows, in the order in which the broker did it
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from kproxy.exchange.exchange import Exchange
from kproxy.history import cluster_events, coordinator_events, log_events
from kproxy.history.ref import Ref
from kproxy.history.rows import Row, Throttled

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
    return rows
