"""The row of an exchange, made of its frames.

    Frame(request), Frame(response) ─▶ ExchangeRow

A recorder has rows at once, of what the proxy knows (`recording.builder`); this is for whoever has
frames only: the live view, and the end of a torn file.
"""

from __future__ import annotations

from kproxy.exchange.entries import CLIENT_ENDED, ERROR_NOT_LOOKED, NO_NODE, ExchangeRow, Frame


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
    return ExchangeRow(
        known.number,
        received_ns,
        sent_ns,
        back_ns,
        left_ns,
        request_bytes=known.request_bytes if request is None else request.frame_bytes,
        response_bytes=0 if response is None else response.frame_bytes,
        connection=known.connection,
        node_id=node_id,
        correlation_id=known.correlation_id,
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
    return response.flags | CLIENT_ENDED if response.client_ended else response.flags


def _times(
    request: Frame | None, response: Frame | None, ended: Frame | None
) -> tuple[int, int, int, int]:
    """Return when the request and the response arrived and left."""
    other = response or ended
    received_ns = sent_ns = 0
    if request is not None:
        received_ns, sent_ns = request.received_ns, request.sent_ns
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
