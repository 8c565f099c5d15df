"""What the row of an exchange says beside what stands in it: durations, and what became of it.

::

    sent on           the response before it      the response
       │                      arrives               arrives
       ├──────── queued ────────┼─── waiting ── service┤
       └────────────────── broker ─────────────────────┘

*Queued*: brokers answer the requests of a connection one after the other, so a request that was
sent on before the one ahead of it was answered has waited for that. *Waiting*: the request itself
lets the broker wait: a Fetch for records, up to its `max_wait_ms`; the JoinGroup and SyncGroup of
a group for its other members. *Service* is the rest. A long poll or a queue is no slow broker, so
nothing that says "slow" may look at the whole.

Invariants: to the microsecond, `queued_us + waiting_us + service_us == broker_us`, and all are
UNKNOWN where that is; no other duration is negative. Recordings tell the sum of waiting and service
only: as much of it as the request allows counts as waiting, so that service is what the broker took
for certain.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from kproxy.exchange.entries import (
    FAULTED,
    INJECTED,
    OPEN_AT_END,
    SILENCED,
    WITHHELD,
    ExchangeRow,
)
from kproxy.wire import protocol

UNKNOWN = -1
"""Stands for a duration that is not known."""

POLLS = ("Fetch", "ShareFetch")
"""APIs whose requests say how long the broker may wait."""
JOINS = ("JoinGroup", "SyncGroup")
"""APIs that wait for the other members of a group."""
POLL_KEYS = frozenset(map(protocol.api_key, POLLS))
PENDING_REQUESTS_MAX = 1000
"""Requests of a connection that may have no answer; while there are so many, kproxy takes no more
of its client, so that what comes then waits in kproxy."""
JOIN_KEYS = frozenset(map(protocol.api_key, JOINS))


# ── what became of it ────────────────────────────────────────────────────────────────────────


def flags(row: ExchangeRow) -> int:
    """Return the flags of the request and the response together."""
    return row.request_flags | row.response_flags


def completed_ns(row: ExchangeRow) -> int:
    """Return the latest time that is known of the exchange."""
    return max(row.request_sent_ns, row.response_received_ns, row.response_sent_ns)


def undelivered(row: ExchangeRow) -> bool:
    """Return whether the broker's response did not leave, or not whole: a rule kept it, or the
    connection ended before. A response has a position when it has left or cannot leave any more;
    where the recording itself ended first, nobody knows."""
    if not row.response_bytes or row.request_flags & INJECTED:
        return False  # what kproxy has asked itself, to send a request twice, no client waits for
    if row.response_flags & (WITHHELD | SILENCED):
        return True
    never_left = not row.response_sent_ns and row.response_position != 0
    return never_left and not row.response_flags & OPEN_AT_END


# ── durations ────────────────────────────────────────────────────────────────────────────────


class Durations(NamedTuple):
    """The durations of one exchange in microseconds, each UNKNOWN where it is not known."""

    broker_us: int
    """From sending the request's last byte on to the arrival of the response's."""
    queued_us: int
    """Of it, the part spent behind earlier requests of the connection."""
    waiting_us: int
    """Of it, the part that may be a wait that the request asked for."""
    service_us: int
    """Of it, the part that is certainly the broker's own work: neither queue nor wait."""
    proxy_us: int
    """What kproxy added, both ways, without what rules had it do."""

    @property
    def served_us(self) -> int:
        """The part of `service_us` that histograms and percentiles count: UNKNOWN where all of the
        broker's own time may be a wait."""
        return self.service_us if self.service_us > 0 or self.waiting_us <= 0 else UNKNOWN


def durations(row: ExchangeRow, wait_max_ms: Callable[[], int]) -> Durations:
    """Return the durations of an exchange. `wait_max_ms` is asked for the limit of a poll; it is
    negative if that cannot be told."""
    own_us = microseconds(proxy_ns(row))
    took_ns = broker_ns(
        row.request_sent_ns, row.response_received_ns, row.response_bytes, flags(row)
    )
    if took_ns == UNKNOWN:
        return Durations(UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, own_us)
    broker_us = microseconds(took_ns)
    queued_us = min(microseconds(max(0, row.queued_ns)), broker_us)
    left_us, waiting_us = broker_us - queued_us, 0
    if row.api_key in POLL_KEYS:
        limit_ms = wait_max_ms()
        # All of it, where the limit is not known.
        waiting_us = left_us if limit_ms < 0 else min(left_us, limit_ms * 1000)
    elif row.api_key in JOIN_KEYS:
        waiting_us = left_us
    return Durations(broker_us, queued_us, waiting_us, left_us - waiting_us, own_us)


def broker_ns(
    request_sent_ns: int, response_received_ns: int, response_bytes: int, flags: int
) -> int:
    """Return the time from sending the request's last byte on to the arrival of the response's."""
    if not request_sent_ns or not response_bytes or flags & INJECTED:
        return UNKNOWN
    return max(0, response_received_ns - request_sent_ns)


def kept_ns(row: ExchangeRow) -> int:
    """Return how long kproxy kept the request and the response, by itself or by a rule; UNKNOWN
    while it still keeps one."""
    answered, waits = row.response_bytes != 0, not row.response_sent_ns
    if answered and waits:
        return UNKNOWN
    if not row.request_sent_ns:
        # A request that was not sent on, kproxy has answered itself.
        if waits or not flags(row) & INJECTED:
            return UNKNOWN
        return max(0, row.response_sent_ns - row.request_received_ns)
    there_ns = row.request_sent_ns - row.request_received_ns
    back_ns = row.response_sent_ns - row.response_received_ns if answered else 0
    return max(0, there_ns + back_ns)


def proxy_ns(row: ExchangeRow) -> int:
    """Return `kept_ns` without the time for which rules had kproxy do so; UNKNOWN where a rule may
    have, and for how long is not known."""
    kept = kept_ns(row)
    if kept == UNKNOWN or (row.fault_ns < 0 and flags(row) & FAULTED):
        return UNKNOWN
    return max(0, kept - max(0, row.fault_ns))


def microseconds(duration_ns: int) -> int:
    """Return a duration in whole microseconds, rounded half up; UNKNOWN if it is negative."""
    return UNKNOWN if duration_ns < 0 else (duration_ns + 500) // 1000
