"""What a recording consists of: frames and notes.

The proxy makes them, the recorder writes them, the reader gives them back, and `pair` turns them
into exchanges::

    proxy ─▶ Frame, Note ─▶ recording ─▶ Frame, Note ─▶ pair ─▶ Exchange

Invariants: a frame holds the bytes as their sender sent them (before any address is rewritten),
size prefix included, secrets blanked out. Times are integer nanoseconds since the Unix epoch on a
clock that never runs backwards within one process.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from typing import Any

import attrs


class Side(enum.IntEnum):
    """One of the two peers of a connection; of a frame: who sent it."""

    CLIENT = 0
    BROKER = 1


# Flags of a frame; plain integers, because they are combined for every frame that passes.
OPAQUE = 1  # its body has no known schema (unknown key or version)
REDACTED = 2  # secrets in it were blanked out
INJECTED = 4  # made by the proxy, not by the peer that it claims to come from
FRAGMENT = 8  # stored in several pieces
MORE = 16  # a piece that others follow
UNANSWERED = 32  # no frame: closes the exchange of a request whose connection ended first
NO_RESPONSE = 64  # a request that the broker does not answer (Produce with acks=0)
RAW_SASL = 128  # a SASL token without a Kafka header (after SaslHandshake v0)
REWRITTEN = 256  # what was sent on differs: its splices say where
TRUNCATED = 512  # its sender stopped in the middle of it
FAULTED = 1024  # a fault rule touched it

NO_API = -1
"""The api_key and api_version of a frame that has none (raw SASL, a truncated header)."""

ERROR_NOT_LOOKED = -32768
"""The error_code of a frame whose body nobody looked into."""


Splice = tuple[int, int, bytes]
"""Offset and length of what is replaced, and what replaces it."""


def spliced(data: bytes, splices: Sequence[Splice], start: int = 0) -> Iterator[bytes]:
    """Give the pieces of `data`, from offset `start` on, with the splices applied."""
    for offset, length, replacement in splices:
        yield data[start:offset]
        yield replacement
        start = offset + length
    yield data[start:]


@attrs.define(eq=False)
class Frame:
    """One frame as its sender sent it, or a piece of one."""

    side: Side
    """Who sent it: CLIENT for a request, BROKER for a response."""
    connection: int
    number: int
    """The number of the exchange: counts requests from 1 over the whole recording; a response
    carries its request's number."""
    api_key: int
    api_version: int
    """Of the request; a response carries its request's."""
    correlation_id: int
    received_ns: int
    """When its last byte arrived."""
    pieces: list[bytes | memoryview]
    """The bytes, in the chunks in which they arrived."""
    frame_bytes: int
    """Size of the whole frame with its size prefix; 0 for UNANSWERED."""
    flags: int = 0
    sent_ns: int = 0
    """When its last byte began to be handed on; 0 if that was not before it was recorded."""
    request_received_ns: int = 0
    request_sent_ns: int = 0
    """On responses: the request's times, so that latencies need no pairing."""
    request_bytes: int = 0
    """On responses: the request's frame_bytes."""
    error_code: int = ERROR_NOT_LOOKED
    fault_id: int = 0
    """The fault rule that touched it; 0 is none."""
    splices: Sequence[Splice] = ()
    """Of a REWRITTEN frame: what was replaced before it was sent on, in order of offset; the size
    prefix followed."""

    @property
    def sent(self) -> bytes:
        """The bytes as they were sent on."""
        if not self.splices:
            return self.data
        body = b"".join(spliced(self.data, self.splices, 4))
        return len(body).to_bytes(4) + body

    @property
    def data(self) -> bytes:
        """The bytes as they came, in one piece."""
        pieces = self.pieces
        return pieces[0] if len(pieces) == 1 and type(pieces[0]) is bytes else b"".join(pieces)


CONNECTIONS = "connections"
EVENTS = "events"


@attrs.frozen
class Note:
    """Something that happened beside the frames; its body is one JSON object.

    `CONNECTIONS` bodies have `event` ("opened", "named", "closed") and `connection`; `EVENTS`
    bodies have `event` ("lost", …).
    """

    channel: str
    """CONNECTIONS or EVENTS."""
    time_ns: int
    body: dict[str, Any]

