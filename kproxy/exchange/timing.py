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

Invariant: to the microsecond, `queued_ms + waiting_ms + service_ms == broker_ms`, and all are None
where that is: they are whole microseconds, divided last.
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


def parts_us(total_us: int, queued_us: int, wait_max_us: int) -> tuple[int, int, int]:
    """Divide the broker's time: queued, waiting, and the rest, in microseconds."""
    queued_us = min(queued_us, total_us)
    waiting_us = min(total_us - queued_us, max(0, wait_max_us))
    return queued_us, waiting_us, total_us - queued_us - waiting_us


def broker_parts_us(exchange: Exchange) -> tuple[int, int, int] | None:
    """Of what its time at the broker consists, as `parts_us`; None where it has none."""
    broker_ns = exchange.broker_ns
    if broker_ns is None:
        return None
    total_us, api, wait_max_us = facts.microseconds(broker_ns), exchange.api, 0
    if api in POLLS:
        max_wait_ms = exchange.row.max_wait_ms or getattr(exchange.request, "max_wait_ms", 0)
        wait_max_us = max_wait_ms * 1000
    elif api in JOINS:
        wait_max_us = total_us
    return parts_us(total_us, facts.microseconds(exchange.row.queued_ns), wait_max_us)


def queued_ms(exchange: Exchange) -> float | None:
    """How much of `broker_ms` it waited behind an earlier request of its connection."""
    parts = exchange.broker_parts_us
    return None if parts is None else parts[0] / 1000


def waiting_ms(exchange: Exchange) -> float | None:
    """How much of `broker_ms` may be a wait that the request asked for."""
    parts = exchange.broker_parts_us
    return None if parts is None else parts[1] / 1000


def service_ms(exchange: Exchange) -> float | None:
    """How much of `broker_ms` the broker took for certain: neither queue nor long poll."""
    parts = exchange.broker_parts_us
    return None if parts is None else parts[2] / 1000


def certain_us(parts: tuple[int, int, int]) -> int | None:
    """How long the broker took for certain; None where all of its own time may be a wait."""
    _, waiting_us, service_us = parts
    return service_us if service_us or not waiting_us else None
