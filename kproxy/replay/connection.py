"""One client's connection to the replaying broker: frames in, one request at a time, frames out.

As in Kafka, the next request of a connection is handled after the one before is answered, so that
responses leave in the order of the requests, however long one of them takes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import attrs

from kproxy.exchange.entries import Buffer, ChunkTimes, Side, coalesce
from kproxy.proxy import diagnosis
from kproxy.proxy.actions import Send
from kproxy.proxy.budget import Share
from kproxy.proxy.framer import Violation
from kproxy.proxy.machine import Accepted
from kproxy.replay.sasl import Authentication
from kproxy.replay.steps import Steps
from kproxy.wire.protocol import codec, schema
from kproxy.wire.protocol.schema import Message

_LARGE_BYTES = 16 << 10
"""Larger pieces of a response are sent without a copy."""
_COPIED_BYTES_MAX = 4 << 20
"""A larger request stays in the bytearray in which it was collected: a copy takes 1 ms per MB."""
_JOINED_PARTS = 20_000
"""Parts of a response that is encoded in steps are joined when they are so many."""

_TOKEN_BYTES_MIN = 8
"""The least size of a first token, with its length: a user and a password of one letter."""


@attrs.define(eq=False)
class ReplayConnection:
    """A client's connection: its unhandled requests, and what it is allowed to hold."""

    client: Accepted
    opened_ns: int
    last_ns: int
    """Time at which bytes last arrived or left."""
    share: Share
    """Its share of the request bytes that all connections together may hold."""
    client_id: str | None = None
    waiting: deque[bytes | bytearray] = attrs.Factory(deque)
    """Complete requests that are not handled yet."""
    busy: bool = False
    """True while a request is being answered, and while the connection is `held`."""
    working: bool = False
    """True while that goes on in turns, even if the client has gone: its share is held for it."""
    held: bool = False
    """True while no request is handled because the client has not taken the responses."""
    paused: bool = False
    ended: bool = False
    """True after the client's half-close, or a refused login: no further request comes."""
    authentication: Authentication | None = None
    raw_tokens: bool = False
    """True while frames are SASL tokens, without a header."""
    needs_no_login: bool = False
    """True after a request that brokers answer only when a login is over, or not needed."""
    _partial: bytearray = attrs.field(factory=bytearray, init=False)
    _partial_bytes: int = attrs.field(default=0, init=False)
    """Size of the frame in `_partial`; 0 while unknown."""
    _waiting_bytes: int = attrs.field(default=0, init=False)
    _handled_bytes: int = attrs.field(default=0, init=False)
    """Size of the request that is being answered."""
    _leaving: deque[tuple[ChunkTimes, int]] = attrs.field(
        factory=deque[tuple[ChunkTimes, int]], init=False
    )
    """Responses that may not have left yet, and their sizes."""
    _leaving_bytes: int = attrs.field(default=0, init=False)
    _read_ahead: Callable[[], object] | None = attrs.field(default=None, init=False)
    """Reads what the client will ask for next; None if nothing is to be read ahead."""

    @property
    def number(self) -> int:
        """The number of the connection."""
        return self.client.number

    @property
    def client_host(self) -> str:
        """The client's host in the form that DescribeGroups shows."""
        return f"/{self.client.address.rpartition(':')[0]}"

    def receive(self, data: bytes, request_bytes_max: int) -> None:
        """Take bytes; append the requests that they complete to `waiting`.

        Raises:
            Violation: the bytes are no request, or all connections together hold too much.
        """
        if self._partial:
            rest = max(4, self._partial_bytes) - len(self._partial)
            self._partial += data[:rest]
            if len(data) < rest:
                self._hold()
                return
            whole, data = self._partial, data[rest:]
            if self._partial_bytes:
                self._append(whole if len(whole) > _COPIED_BYTES_MAX else bytes(whole))
            else:
                data = bytes(whole) + data  # only its size is known now
        position, end = 0, len(data)
        self._partial_bytes = 0
        while end - position >= 4:
            size = int.from_bytes(data[position : position + 4], "big", signed=True)
            if not 0 <= size <= request_bytes_max:
                start = data[position : position + 4]
                mistake = diagnosis.request_mistake(start, request_bytes_max, self.in_login)
                raise Violation(mistake)
            if end - position < 4 + size:
                self._partial_bytes = 4 + size
                break
            self._append(data[position : position + 4 + size])
            position += 4 + size
        self._partial = bytearray(data[position:])
        self._hold()

    @property
    def in_login(self) -> bool:
        """True while what is no request may be a token, of which nothing is told."""
        return not (self.authentication.done if self.authentication else self.needs_no_login)

    def is_token(self, frame: bytes | bytearray) -> bool:
        """Return whether a frame is a SASL token without a header: after SaslHandshake v0, or first
        of all, where its API does not exist."""
        if self.raw_tokens or self.needs_no_login or self.authentication:
            return self.raw_tokens
        return (
            len(frame) >= _TOKEN_BYTES_MIN
            and int.from_bytes(frame[4:6], signed=True) not in schema.api_names()
        )

    def _append(self, frame: bytes | bytearray) -> None:
        self.waiting.append(frame)
        self._waiting_bytes += len(frame)

    def next_request(self) -> bytes | bytearray:
        """Remove the first request from `waiting` and return it."""
        frame = self.waiting.popleft()
        self._handled_bytes = len(frame)
        self._waiting_bytes -= len(frame)
        return frame

    def answered(self) -> None:
        """Release the request that was taken last: it is answered."""
        self._handled_bytes = 0
        self._hold()

    def send(self, pieces: list[Buffer], now: int) -> Send:
        """Return the action that sends a response, or a part of one."""
        self.last_ns = now
        times, size = ChunkTimes(now), sum(map(len, pieces))
        self._leaving.append((times, size))
        self._leaving_bytes += size
        return Send(self.number, Side.CLIENT, pieces, [times])

    @property
    def leaving_bytes(self) -> int:
        """Number of response bytes that the client has not taken yet."""
        leaving = self._leaving
        while leaving and leaving[0][0].sent_ns:
            self._leaving_bytes -= leaving.popleft()[1]
        return self._leaving_bytes

    def read_ahead_with(self, read: Callable[[], object]) -> None:
        """Have `read`, in place of what was given before, called at the next `read_ahead`."""
        self._read_ahead = read

    @property
    def reads_ahead(self) -> bool:
        """Whether there is something to read ahead."""
        return self._read_ahead is not None

    def read_ahead(self) -> None:
        """Read what the client will ask for next, unless it waits for the rest of a response."""
        read = self._read_ahead
        if read is not None and not self.leaving_bytes:
            self._read_ahead = None
            read()

    def end_when_answered(self) -> None:
        """Have the connection end after the response to the request that is being handled."""
        self.forget_requests()
        self.ended = True

    def forget_requests(self) -> None:
        """Drop all waiting requests."""
        self.waiting.clear()
        self._waiting_bytes = 0
        self._hold()

    def _hold(self) -> None:
        held = self._waiting_bytes + self._handled_bytes + len(self._partial)
        if not self.share.hold(held):
            raise Violation(self.share.refusal(held))


def encode(api_key: int, version: int, correlation_id: int, body: Any) -> list[Buffer]:
    """Encode a response as a frame in pieces; large pieces are those of `body`, not copied.

    Raises:
        ProtocolError: a value does not fit its field.
    """
    message, parts = _begin(api_key, version, correlation_id)
    codec.encoder(message, version)(body, parts.append)
    return _framed(parts)


def encode_in_steps(api_key: int, version: int, correlation_id: int, body: Any) -> Steps:
    """Do in steps the same as `encode`."""
    message, parts = _begin(api_key, version, correlation_id)
    joined: list[Buffer] = []
    for _ in codec.encoder_in_steps(message, version)(body, parts.append):
        yield
        if len(parts) >= _JOINED_PARTS:
            joined += coalesce(parts)
            parts.clear()
    return _framed([b"", *joined, *parts])


def _begin(api_key: int, version: int, correlation_id: int) -> tuple[Message, list[Buffer]]:
    message = schema.message(api_key, schema.RESPONSE)
    if message is None:
        raise ValueError(f"no API has the key {api_key}")
    flexible = codec.response_header_version(api_key, version) == 1
    parts: list[Buffer] = [b"", correlation_id.to_bytes(4, "big", signed=True)]
    if flexible:
        parts.append(b"\0")
    return message, parts


def _framed(parts: list[Buffer]) -> list[Buffer]:
    """Return the pieces of a frame; the first part, which is empty, becomes its size."""
    size = sum(map(len, parts))
    parts[0] = size.to_bytes(4, "big")
    if size < _LARGE_BYTES:
        return [b"".join(parts)]
    pieces: list[Buffer] = []
    small: list[Buffer] = []
    for part in parts:
        if len(part) < _LARGE_BYTES:
            small.append(part)
            continue
        pieces += [b"".join(small), part]
        small = []
    return [*pieces, b"".join(small)] if small else pieces
