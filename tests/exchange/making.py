"""Makes entries of a recording out of message bodies, as the proxy would have recorded them."""

from __future__ import annotations

import attrs

from kproxy.exchange.entries import (
    CONNECTIONS,
    FRAGMENT,
    MORE,
    NO_API,
    RAW_SASL,
    UNANSWERED,
    Frame,
    Note,
    Side,
)
from kproxy.wire import protocol
from kproxy.wire.protocol import messages

START_NS = 1_700_000_000_000_000_000
"""2023-11-14T22:13:20Z"""
MS = 1_000_000


def request(
    api: str, version: int, body: object, number: int = 1, connection: int = 1, **changes: object
) -> Frame:
    """A request's frame: number n arrives n milliseconds after START_NS, is sent 50 µs later."""
    key = protocol.api_key(api)
    header = messages.RequestHeader(
        api_key=key, api_version=version, correlation_id=100 + number, client_id="app"
    )
    data = protocol.encode_request(protocol.Request(header, body))
    received_ns = START_NS + number * MS
    frame = Frame(
        side=Side.CLIENT,
        connection=connection,
        number=number,
        api_key=key,
        api_version=version,
        correlation_id=100 + number,
        received_ns=received_ns,
        pieces=[data],
        frame_bytes=len(data),
        sent_ns=received_ns + 50_000,
    )
    return attrs.evolve(frame, **changes)


def response(asked: Frame, body: object, body_version: int | None = None, **changes) -> Frame:
    """The response's frame: arrives 2 ms after the request was sent, is sent 30 µs later."""
    header = messages.ResponseHeader(correlation_id=asked.correlation_id)
    version = asked.api_version if body_version is None else body_version
    message = protocol.Response(header, body, version)
    return answer(asked, protocol.encode_response(message, asked.api_key), **changes)


def answer(asked: Frame, data: bytes, **changes) -> Frame:
    """A frame of any bytes as the response."""
    received_ns = asked.sent_ns + 2 * MS
    frame = Frame(
        side=Side.BROKER,
        connection=asked.connection,
        number=asked.number,
        api_key=asked.api_key,
        api_version=asked.api_version,
        correlation_id=asked.correlation_id,
        received_ns=received_ns,
        pieces=[data],
        frame_bytes=len(data),
        sent_ns=received_ns + 30_000,
        request_received_ns=asked.received_ns,
        request_sent_ns=asked.sent_ns,
        request_bytes=asked.frame_bytes,
    )
    return attrs.evolve(frame, **changes)


def unanswered(asked: Frame) -> Frame:
    """The entry that closes the exchange of a request whose connection ended first."""
    return answer(asked, b"", flags=UNANSWERED, pieces=[], sent_ns=0)


def token(number: int, data: bytes, connection: int = 1) -> Frame:
    """A SASL token from the client, without a Kafka header."""
    received_ns = START_NS + number * MS
    frame = len(data).to_bytes(4, "big") + data
    return Frame(
        side=Side.CLIENT,
        connection=connection,
        number=number,
        api_key=NO_API,
        api_version=NO_API,
        correlation_id=0,
        received_ns=received_ns,
        pieces=[frame],
        frame_bytes=len(frame),
        flags=RAW_SASL,
        sent_ns=received_ns + 50_000,
    )


def opened(connection: int = 1, node_id: int | None = None, event: str = "opened") -> Note:
    """A connection begins."""
    body = {
        "event": event,
        "connection": connection,
        "client_address": f"127.0.0.1:{5000 + connection}",
        "node_id": node_id,
        "listener": "127.0.0.1:19092",
        "broker_address": "broker.example:9092",
    }
    return Note(CONNECTIONS, START_NS, body)


def closed(connection: int = 1) -> Note:
    """A connection is over."""
    return Note(CONNECTIONS, START_NS, {"event": "closed", "connection": connection})


def fragments(frame: Frame, cuts: list[int]) -> list[Frame]:
    """The same frame, recorded in pieces that end at these offsets and at its end."""
    data = frame.data
    ends = [*sorted(cut for cut in cuts if 0 < cut < len(data)), len(data)]
    starts = [0, *ends[:-1]]
    return [
        attrs.evolve(
            frame,
            pieces=[data[start:end]],
            flags=frame.flags | FRAGMENT | (MORE if end < len(data) else 0),
        )
        for start, end in zip(starts, ends, strict=True)
    ]
