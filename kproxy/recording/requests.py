"""Pending requests, as a `BatchBuilder` keeps them: those of a run together.

run of requests ─▶ PendingRun ─ take, as responses come ─▶ row_of_request ─▶ ExchangeRow
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kproxy.exchange import facts
from kproxy.exchange.entries import (
    ERROR_NOT_LOOKED,
    ExchangeRow,
    PendingRequest,
    Requests,
    Run,
)

FRAME_BYTES_MAX = 0x7FFFFFFF
"""The largest size that fits into a row; the largest frame has 4 bytes more."""
PendingRun = tuple[int, int, int, Mapping[int, int] | None, int, Sequence[int], Requests | None]
"""The pending requests of a run, or one by itself: number of the last one, position and number of
the first, max_wait_ms by number, flags, fault ids, the requests among which they are. (A plain
tuple: a named one costs more to make and to unpack.)"""
NOT_RECORDED: PendingRun = (0, 0, 0, None, 0, (), None)
"""Stands for a request that is not in the recording."""


def row_of_request(
    connection: int, node_id: int, request: PendingRequest, known: PendingRun
) -> ExchangeRow:
    """Return the row of an exchange with the values of its request."""
    correlation_id, api_key, api_version, number, request_bytes, _, times, _ = request
    _, position, first, waits, flags, fault_ids, _ = known
    if position:
        position += number - first
    return ExchangeRow(
        number, times.received_ns, times.sent_ns, 0, 0, 0, times.fault_ns, times.behind,
        position, 0, min(request_bytes, FRAME_BYTES_MAX), 0, connection, node_id, correlation_id,
        waits.get(number, 0) if waits else 0, api_key, api_version, flags, 0, ERROR_NOT_LOOKED,
        fault_ids,
    )  # fmt: skip


def take(pending: dict[int, PendingRun], number: int, count: int) -> tuple[PendingRun, int]:
    """Take up to `count` successive requests of one run, from a number on; return their run and
    their number."""
    known = pending.pop(number, None)
    if known is None:
        for start, known in pending.items():  # a request before it got no response, as it seems
            if start < number <= known[0]:
                pending[start] = (number - 1, *known[1:])
                break
        else:
            return NOT_RECORDED, 1
    last, after = known[0], number + count
    if after > last:
        return known, last + 1 - number
    pending[after] = known
    return known, count


def waits_of(run: Run) -> dict[int, int]:
    """Return the max_wait_ms of the Fetch requests of a run, by number."""
    waits: dict[int, int] = {}
    at, data = 0, run.data
    for number, size in enumerate(run.sizes, run.number):
        waits[number] = facts.max_wait_ms(data, at, run.requests.api_version)
        at += size
    return waits
