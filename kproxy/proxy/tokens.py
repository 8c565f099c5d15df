"""SASL tokens without headers: what follows SaslHandshake v0 on a connection (KIP-43).

Nothing on the wire marks where they end: a frame that looks like a Kafka request does, once as many
tokens as the mechanism needs at least have passed. A token must never be taken for a request, for
it would be recorded; so this holds after a refused handshake, too.
"""

from __future__ import annotations

import struct

import attrs

from kproxy.exchange.entries import RAW_SASL
from kproxy.protocol import ProtocolError, decode_request, is_known
from kproxy.proxy.pending import PendingRequests

TOKEN_BYTES_MAX = 512 << 10
"""Kafka's sasl.server.max.receive.size."""

_TOKENS_MIN = {"PLAIN": 1, "OAUTHBEARER": 1, "SCRAM-SHA-256": 2, "SCRAM-SHA-512": 2}
"""How many tokens a client sends at least, by mechanism."""

_REQUEST_START = struct.Struct(">ihh")
_REQUEST_START_BYTES = 12
_RESPONSE_START = struct.Struct(">ii")


@attrs.define(eq=False)
class Tokens:
    """Whether the client of a connection sends tokens; both directions report what they see."""

    expected: bool = attrs.field(default=False, init=False)
    """Whether the client's next frame may be a token."""
    _handshake: int = attrs.field(default=0, init=False)
    _due: int = attrs.field(default=0, init=False)

    def handshake(self, number: int, frame: bytes) -> None:
        """The client sent a SaslHandshake v0: tokens may follow before the broker has accepted."""
        self.expected = True
        self._handshake = number
        self._due = _TOKENS_MIN.get(_mechanism(frame), 1)

    def refused(self, number: int) -> None:
        """The broker refused the handshake of this number: none must follow (but one may)."""
        if number == self._handshake:
            self._due = 0

    def taken(self) -> None:
        """The client's next frame was a token."""
        self._due -= 1

    def is_request(self, data: bytes, position: int) -> bool | None:
        """Whether a request starts here, and not a token; None if that cannot be told yet."""
        have = len(data) - position
        if have < 4:
            return None
        size = int.from_bytes(data[position : position + 4], signed=True)
        if self._due > 0 or size < 8:
            return False
        if have < _REQUEST_START_BYTES:
            return None
        _, api_key, api_version = _REQUEST_START.unpack_from(data, position)
        if not is_known(api_key, api_version):
            return False
        self.expected = False
        return True


def is_response_token(pending: PendingRequests, data: bytes, position: int) -> bool | None:
    """Tell if a token starts here in what the broker sends; None: that cannot be told yet."""
    first = pending.first
    if first is None or not first.flags & RAW_SASL:
        return False
    later = pending.first_with_header
    size = int.from_bytes(data[position : position + 4], signed=True)
    if later is None or size < 4:
        return True
    if len(data) - position < _RESPONSE_START.size:
        return None  # it may be the response to the later one: its correlation id will tell
    return _RESPONSE_START.unpack_from(data, position)[1] != later.correlation_id


def _mechanism(frame: bytes) -> str:
    try:
        mechanism: str = decode_request(frame).body.mechanism
    except ProtocolError:
        return ""
    return mechanism
