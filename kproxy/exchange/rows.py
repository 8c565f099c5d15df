"""The row of an exchange, made of its frames.

    Frame(request), Frame(response) ─▶ ExchangeRow

A recorder has rows at once, of what the proxy knows (`recording.builder`); this is for whoever has
frames only: the live view, and the end of a torn file.
"""

from __future__ import annotations

from kproxy.exchange import facts
from kproxy.exchange.entries import (
    CLIENT_ENDED,
    ERROR_NOT_LOOKED,
    NO_NODE,
    UNKNOWN_NS,
    UNPLACED,
    ExchangeRow,
    Frame,
)
from kproxy.protocol.codec import FETCH


def row_of(
    request: Frame | None,
    response: Frame | None,
    ended: Frame | None = None,
    node_id: int = NO_NODE,
) -> ExchangeRow:
    """Return the row of an exchange, without columns that depend on other exchanges.

    `ended` is the UNANSWERED entry of a request that may not be there.
    """
    known = request or response or ended
    assert known is not None
    halves = [half for half in (request, response) if half is not None]
    received_ns, sent_ns, back_ns, left_ns = _times(request, response, ended)
    fault_ns, held_behind = _held(request, response, ended)
    return ExchangeRow(
        known.number,
        received_ns,
        sent_ns,
        back_ns,
        left_ns,
        fault_ns=fault_ns,
        held_behind=held_behind,
        response_position=0 if response is None or response.fault_ns < 0 else UNPLACED,
        request_bytes=known.request_bytes if request is None else request.frame_bytes,
        response_bytes=0 if response is None else response.frame_bytes,
        connection=known.connection,
        node_id=node_id,
        correlation_id=known.correlation_id,
        max_wait_ms=_max_wait_ms(request),
        api_key=known.api_key,
        api_version=known.api_version,
        request_flags=0 if request is None else request.flags,
        response_flags=_response_flags(response or ended),
        error_code=ERROR_NOT_LOOKED if response is None else response.error_code,
        fault_ids=tuple(dict.fromkeys(rule for half in halves for rule in half.fault_ids)),
    )


def _response_flags(response: Frame | None) -> int:
    if response is None:
        return 0
    left_later = response.client_ended and response.sent_ns
    return response.flags | CLIENT_ENDED if left_later else response.flags


def _held(request: Frame | None, response: Frame | None, ended: Frame | None) -> tuple[int, int]:
    """Return for how long fault rules held the request and the response, and behind which exchange
    one of them waited."""
    other = response or ended
    if other is not None:  # it knows of its request, recorded or not
        asked = other.request_fault_ns, other.request_behind
    else:
        assert request is not None
        asked = request.fault_ns, request.behind
    held_ns, behind = asked
    if response is not None and response.sent_ns and response.fault_ns:
        held_ns, behind = held_ns + response.fault_ns, behind or response.behind
    frames = (each for each in (request, other) if each is not None)
    return (UNKNOWN_NS if any(each.fault_ns < 0 for each in frames) else held_ns), behind


def _max_wait_ms(request: Frame | None) -> int:
    if request is None or request.api_key != FETCH or not request.pieces:
        return 0
    return facts.max_wait_ms(request.data, 0, request.api_version)


def _times(
    request: Frame | None, response: Frame | None, ended: Frame | None
) -> tuple[int, int, int, int]:
    """Return when the request and the response arrived and left."""
    other = response or ended
    received_ns = sent_ns = 0
    if request is not None:
        received_ns, sent_ns = request.received_ns, request.sent_ns
        if request.chunk is not None:
            sent_ns = request.chunk.sent_ns
    elif other is not None:
        received_ns = other.request_received_ns or other.received_ns
    if other is not None and other.request_sent_ns:
        # The younger witness: the request may have been recorded before it left.
        sent_ns = other.request_sent_ns
    if response is None:
        return received_ns, sent_ns, 0 if ended is None else ended.received_ns, 0
    # A request counts as sent on when the last of its chunk was; where that was after its own
    # response, its time is not known.
    late = sent_ns > response.received_ns
    return received_ns, 0 if late else sent_ns, response.received_ns, response.sent_ns
