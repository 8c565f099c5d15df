"""The rows of an exchange: stateless, with the quirks of all APIs and versions in one place.

Exchange ─▶ its API's function ─▶ rows, in the order in which the broker did it
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kproxy.exchange.exchange import Exchange
from kproxy.history import group_events, log_events, transaction_events
from kproxy.history.rows import Row

_EVENTS: dict[str | None, Callable[[Exchange], Iterator[Row]]] = (
    group_events.EVENTS | transaction_events.EVENTS | log_events.EVENTS
)
"""API → its rows."""


def events(exchange: Exchange) -> list[Row]:
    """Return the rows of an exchange: none if it has no request that can be read."""
    find = _EVENTS.get(exchange.api)
    return [] if find is None or exchange.request is None else [*find(exchange)]
