"""What a broker's time consists of: queueing, a wait that the request asked for, and the rest.

::

    sent on           the response before it      the response
       │                      arrives               arrives
       ├──────── queued ────────┼─── waiting ─── rest ─┤
       └────────────────── broker_ms ──────────────────┘

*Queued*: brokers answer the requests of a connection one after the other, so a request that was
sent on before the one ahead of it was answered has waited for that. *Waiting*: the request itself
lets the broker wait: a Fetch for records, up to its `max_wait_ms`; the JoinGroup and SyncGroup of
a group for its other members. The rest is the broker's own service. A long poll or a queue is no
slow broker, so nothing that says "slow" may look at the whole.

Invariant: `queued_ms + waiting_ms + service_ms == broker_ms`, and all are None where that is.
Recordings tell the sum of waiting and service only: as much of it as the request allows counts as
waiting, so that `service_ms` is what the broker took for certain.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kproxy.exchange import facts

if TYPE_CHECKING:
    from kproxy.exchange.exchange import Exchange

POLLS = frozenset({"Fetch", "ShareFetch"})
"""Their requests say how long the broker may wait."""
JOINS = frozenset({"JoinGroup", "SyncGroup"})
"""They wait for the other members of their group."""


def queued_ms(exchange: Exchange) -> float | None:
    """How much of `broker_ms` it waited behind an earlier request of its connection."""
    total_ms = exchange.broker_ms
    if total_ms is None:
        return None
    return min(facts.milliseconds(exchange.row.queued_ns), total_ms)


def waiting_ms(exchange: Exchange) -> float | None:
    """How much of `broker_ms` may be a wait that the request asked for."""
    total_ms, queued, api = exchange.broker_ms, exchange.queued_ms, exchange.api
    if total_ms is None or queued is None:
        return None
    if api in POLLS:
        max_wait_ms = exchange.row.max_wait_ms or getattr(exchange.request, "max_wait_ms", 0)
        return min(_less(total_ms, queued), float(max(0, max_wait_ms)))
    return _less(total_ms, queued) if api in JOINS else 0.0


def service_ms(exchange: Exchange) -> float | None:
    """How much of `broker_ms` the broker took for certain: neither queue nor long poll."""
    total_ms, queued, waiting = exchange.broker_ms, exchange.queued_ms, exchange.waiting_ms
    if total_ms is None or queued is None or waiting is None:
        return None
    return _less(total_ms, queued + waiting)


def _less(total_ms: float, part_ms: float) -> float:
    return round(total_ms - part_ms, 3) if part_ms else total_ms
