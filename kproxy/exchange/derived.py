"""Values computed from the recorded columns of exchanges, of one or of many at once.

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

The functions take integers, or numpy arrays of them; the names of their parameters are those of
recorded columns (`entries.ExchangeRow`) and of other functions here, so that whoever has columns
can compute any of them (`DERIVED`, `INPUTS`). One column is for whoever reads to find:
`wait_max_ms`, how long the request of a poll lets its broker wait, UNKNOWN where nobody looked.
Durations that are not known are UNKNOWN; no other is negative.

Invariants: to the microsecond, `queued_us + waiting_us + service_us == broker_us`, and all are
UNKNOWN where that is. Whatever was recorded, integers and arrays give the same. Recordings tell the
sum of waiting and service only: as much of it as the request allows counts as waiting, so that
service is what the broker took for certain.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from kproxy import protocol
from kproxy.exchange.entries import (
    FAULTED,
    INJECTED,
    NO_API,
    NO_RESPONSE,
    OPEN_AT_END,
    RAW_SASL,
    SILENCED,
    UNANSWERED,
    WITHHELD,
    ExchangeRow,
)
from kproxy.protocol.wire import new_tuple

UNKNOWN = -1
"""Stands for a duration that is not known."""

POLLS = ("Fetch", "ShareFetch")
"""APIs whose requests say how long the broker may wait."""
JOINS = ("JoinGroup", "SyncGroup")
"""APIs that wait for the other members of a group."""
_FETCH, _SHARE_FETCH = map(protocol.api_key, POLLS)
_JOIN, _SYNC = map(protocol.api_key, JOINS)
POLL_KEYS = frozenset((_FETCH, _SHARE_FETCH))
_WAIT_KEYS = frozenset((*POLL_KEYS, _JOIN, _SYNC))

Integers = Any
"""An integer, or an array of integers."""


def where(condition: Any, value: Any, otherwise: Any) -> Any:
    """Choose one of two values; with arrays, one for each element."""
    if condition is True:
        return value
    if condition is False:
        return otherwise
    import numpy

    return numpy.where(condition, value, otherwise)


def wait_max_ms(recorded: int, request: Any) -> int:
    """Return the longest wait that a poll allows its broker: of its row, or else of the body of its
    request, which may be None. UNKNOWN where neither says."""
    if recorded > 0 or request is None:
        return recorded or UNKNOWN
    return max(0, getattr(request, "max_wait_ms", 0))


def flags(request_flags: Integers, response_flags: Integers) -> Integers:
    """Return the flags of the request and the response together."""
    return request_flags | response_flags


def named(api_key: Integers, flags: Integers) -> Any:
    """Return whether the request has a header: then it has an API, a version and a correlation
    id."""
    return (api_key != NO_API) & (flags & RAW_SASL == 0)


def got_no_response(response_bytes: Integers, flags: Integers, undelivered: Any) -> Any:
    """Return whether a response was due and did not reach the client."""
    return (response_bytes == 0) & (flags & NO_RESPONSE == 0) | undelivered


def undelivered(
    request_flags: Integers, response_flags: Integers, response_sent_ns: Integers,
    response_bytes: Integers, response_position: Integers,
) -> Any:  # fmt: skip
    """Return whether the broker's response did not leave, or not whole: a rule kept it, or the
    connection ended before. A recorder writes the row of a response (then it has a position) when
    it has left or cannot leave any more; where the recording itself ended first, nobody knows."""
    kept = response_flags & (WITHHELD | SILENCED) != 0
    never_left = (response_sent_ns == 0) & (response_position != 0)
    lost = kept | never_left & (response_flags & OPEN_AT_END == 0)
    # What kproxy has asked itself, to send a request twice, no client waits for.
    return (response_bytes != 0) & lost & (request_flags & INJECTED == 0)


def open_at_end(response_flags: Integers, response_received_ns: Integers) -> Any:
    """Return whether the recording ends before the response, and before the connection ended."""
    over = (response_flags & OPEN_AT_END == 0) & (response_received_ns != 0)
    return (response_flags & UNANSWERED != 0) & (over == 0)


def silenced(got_no_response: Any, flags: Integers) -> Any:
    """Return whether a response did not reach the client because of a fault rule."""
    return got_no_response & (flags & (WITHHELD | SILENCED) != 0)


def time_ns(request_received_ns: Integers, response_received_ns: Integers) -> Integers:
    """Return the time of the request's arrival, since 1970."""
    return where(request_received_ns == 0, response_received_ns, request_received_ns)


def completed_ns(
    request_sent_ns: Integers, response_received_ns: Integers, response_sent_ns: Integers
) -> Integers:
    """Return the latest time that is known of the exchange."""
    if type(request_sent_ns) is int:
        return max(request_sent_ns, response_received_ns, response_sent_ns)
    import numpy

    return numpy.maximum(numpy.maximum(request_sent_ns, response_received_ns), response_sent_ns)


def broker_ns(
    request_sent_ns: Integers, response_received_ns: Integers, response_bytes: Integers,
    flags: Integers,
) -> Integers:  # fmt: skip
    """Return the time from sending the request's last byte on to the arrival of the response's."""
    known = (request_sent_ns != 0) & (response_bytes != 0) & (flags & INJECTED == 0)
    return where(known, _at_least_0(_between(request_sent_ns, response_received_ns)), UNKNOWN)


def broker_us(broker_ns: Integers) -> Integers:
    """Return `broker_ns` in whole microseconds."""
    return microseconds(broker_ns)


def queued_us(queued_ns: Integers, broker_us: Integers) -> Integers:
    """Return the part of the broker's time spent behind earlier requests of the connection."""
    queued_us = _at_least_0(microseconds(queued_ns))
    return where(queued_us < broker_us, queued_us, broker_us)


def waiting_us(
    api_key: Integers, wait_max_ms: Integers, broker_us: Integers, queued_us: Integers
) -> Integers:
    """Return the part of the broker's time that may be a wait that the request asked for."""
    left_us = broker_us - queued_us
    polls = (api_key == _FETCH) | (api_key == _SHARE_FETCH)
    joins = (api_key == _JOIN) | (api_key == _SYNC)
    # All of it, where the limit is not known.
    limited = polls & (wait_max_ms >= 0) & (wait_max_ms < (left_us + 999) // 1000)
    allowed_us = where(limited, wait_max_ms, 0 * left_us) * 1000
    waiting_us = where(limited, allowed_us, where(polls | joins, left_us, 0))
    return where(broker_us == UNKNOWN, UNKNOWN, waiting_us)


def service_us(broker_us: Integers, queued_us: Integers, waiting_us: Integers) -> Integers:
    """Return the part of the broker's time that is certainly its own work: neither queue nor
    wait."""
    return where(broker_us == UNKNOWN, UNKNOWN, broker_us - queued_us - waiting_us)


def served_us(service_us: Integers, waiting_us: Integers) -> Integers:
    """Return the part of `service_us` that histograms and percentiles count: UNKNOWN where all of
    the broker's own time may be a wait."""
    return where((service_us > 0) | (waiting_us <= 0), service_us, UNKNOWN)


def kept_ns(
    request_received_ns: Integers, request_sent_ns: Integers, response_received_ns: Integers,
    response_sent_ns: Integers, response_bytes: Integers, flags: Integers,
) -> Integers:  # fmt: skip
    """Return how long kproxy kept the request and the response, by itself or by a rule; UNKNOWN
    while it still keeps one."""
    answered, kept = response_bytes != 0, request_sent_ns == 0
    there_ns = _between(request_received_ns, request_sent_ns)
    back_ns = where(answered, _between(response_received_ns, response_sent_ns), 0)
    # A request that was not sent on, kproxy has answered itself.
    took_ns = where(kept, _between(request_received_ns, response_sent_ns), there_ns + back_ns)
    waits = response_sent_ns == 0
    unknown = (answered & waits) | (kept & (waits | (flags & INJECTED == 0)))
    return where(unknown, UNKNOWN, _at_least_0(took_ns))


def proxy_ns(kept_ns: Integers, flags: Integers, fault_ns: Integers) -> Integers:
    """Return `kept_ns` without the time for which rules had kproxy do so; UNKNOWN where a rule may
    have, and for how long is not known."""
    unknown = (kept_ns == UNKNOWN) | (fault_ns < 0) & (flags & FAULTED != 0)
    return where(unknown, UNKNOWN, _at_least_0(kept_ns - _at_least_0(fault_ns)))


def fault_us(fault_ns: Integers) -> Integers:
    """Return in whole microseconds for how long rules held the request and the response."""
    return microseconds(fault_ns)


def proxy_us(proxy_ns: Integers) -> Integers:
    """Return `proxy_ns` in whole microseconds."""
    return microseconds(proxy_ns)


class Durations(NamedTuple):
    """The durations of one exchange in microseconds, each as the function of its name gives it."""

    broker_us: int
    queued_us: int
    waiting_us: int
    service_us: int
    proxy_us: int


def durations(row: ExchangeRow, wait_max_ms: Callable[[], int]) -> Durations:
    """Return the durations of an exchange. `wait_max_ms` is asked for the limit of a poll whose row
    does not have it."""
    plain = plain_durations(
        row.request_received_ns, row.request_sent_ns, row.response_received_ns,
        row.response_sent_ns, row.queued_ns, row.fault_ns, row.request_flags, row.response_flags,
        row.response_bytes, row.api_key, row.max_wait_ms,
    )  # fmt: skip
    if plain is not None:
        return plain
    both = flags(row.request_flags, row.response_flags)
    sent_ns, back_ns = row.request_sent_ns, row.response_received_ns
    broker = broker_us(broker_ns(sent_ns, back_ns, row.response_bytes, both))
    queued = queued_us(row.queued_ns, broker)
    polls = row.api_key in (_FETCH, _SHARE_FETCH) and broker != UNKNOWN
    waiting = waiting_us(row.api_key, wait_max_ms() if polls else 0, broker, queued)
    kept = kept_ns(
        row.request_received_ns, sent_ns, back_ns, row.response_sent_ns, row.response_bytes, both
    )
    own = proxy_us(proxy_ns(kept, both, row.fault_ns))
    return Durations(broker, queued, waiting, service_us(broker, queued, waiting), own)


def plain_durations(
    request_received_ns: int, request_sent_ns: int, response_received_ns: int,
    response_sent_ns: int, queued_ns: int, fault_ns: int, request_flags: int, response_flags: int,
    response_bytes: int, api_key: int, max_wait_ms: int,
) -> Durations | None:  # fmt: skip
    """Return the durations of an exchange to which nothing out of the ordinary happened; None for
    any other, and for a poll whose row does not have its limit.

    It gives what the functions above give, at a fifth of their cost: most rows are such ones.
    """
    asked_ns, sent_ns, back_ns, left_ns = (
        request_received_ns, request_sent_ns, response_received_ns, response_sent_ns
    )  # fmt: skip
    if request_flags or response_flags or not response_bytes:
        return None
    if not 0 < asked_ns <= sent_ns <= back_ns <= left_ns <= asked_ns + _LONGEST_NS:
        return None
    broker_us = (back_ns - sent_ns + 500) // 1000
    queued_us = (queued_ns + 500) // 1000 if queued_ns > 0 else 0
    if queued_us > broker_us:
        queued_us = broker_us
    left_us, waiting_us = broker_us - queued_us, 0
    if api_key in _WAIT_KEYS:
        waiting_us = left_us
        if api_key in POLL_KEYS:
            if api_key != _FETCH or max_wait_ms <= 0:
                return None
            waiting_us = min(left_us, max_wait_ms * 1000)
    proxy_ns = sent_ns - asked_ns + left_ns - back_ns
    if fault_ns > 0:
        proxy_ns = max(0, proxy_ns - fault_ns)
    return new_tuple(
        Durations,
        (broker_us, queued_us, waiting_us, left_us - waiting_us, (proxy_ns + 500) // 1000),
    )


def microseconds(duration_ns: Integers) -> Integers:
    """Return a duration in whole microseconds, rounded half up; UNKNOWN stays."""
    return where(duration_ns < 0, UNKNOWN, duration_ns // 1000 + (duration_ns % 1000 >= 500))


def _between(start_ns: Integers, end_ns: Integers) -> Integers:
    """Return the time from start to end, at most `_LONGEST_NS` either way. The times of a forged
    recording may be further apart than arrays have integers for."""
    found = end_ns - start_ns
    if isinstance(found, int):
        return max(-_LONGEST_NS, min(found, _LONGEST_NS))
    later, long = end_ns >= start_ns, _LONGEST_NS
    ahead = where((found < 0) | (found > long), long, found)
    return where(later, ahead, where((found >= 0) | (found < -long), -long, found))


_LONGEST_NS = 1 << 61
"""73 years: the sum of two of them is an integer of 64 bits."""


def _at_least_0(value: Integers) -> Integers:
    return where(value < 0, 0, value)


DERIVED: dict[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (
        *(flags, named, undelivered, got_no_response, open_at_end, silenced, time_ns, completed_ns),
        *(broker_ns, broker_us, queued_us, waiting_us, service_us, served_us),
        *(kept_ns, proxy_ns, proxy_us, fault_us),
    )
}
"""The computed columns, by name."""

INPUTS = {
    function.__name__: function.__code__.co_varnames[: function.__code__.co_argcount]
    for function in DERIVED.values()
}
"""The columns that each computed column takes."""
