"""SASL tokens without headers: they follow SaslHandshake v0 on a connection (KIP-43).

Nothing on the wire marks their end. They are over when a frame looks like a Kafka request, and as
many tokens have passed as the mechanism needs at least. A token must never be taken for a request,
because it would be recorded; so this holds after a refused handshake, too.
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
"""Mechanism → the least number of tokens that a client sends."""

_REQUEST_START = struct.Struct(">ihh")
_REQUEST_START_BYTES = 12
_RESPONSE_START = struct.Struct(">ii")


@attrs.define(eq=False)
class Tokens:
    """Tells tokens of one connection from requests; both directions report handshakes to it."""

    expected: bool = attrs.field(default=False, init=False)
    """The client's next frame may be a token."""
    mechanism: str = attrs.field(default="", init=False)
    """The mechanism of the last SaslHandshake."""
    _handshake: int = attrs.field(default=0, init=False)
    _tokens_due: int = attrs.field(default=0, init=False)

    def handshake(self, number: int, frame: bytes, bare: bool) -> None:
        """Take a SaslHandshake: the mechanism. After version 0 (`bare`) tokens may follow before
        the broker has accepted it."""
        self.mechanism = _mechanism(frame)
        if bare:
            self.expected = True
            self._handshake = number
            self._tokens_due = _TOKENS_MIN.get(self.mechanism, 1)

    def refused(self, number: int) -> None:
        """Note that the broker refused a handshake: tokens may follow, but none is due."""
        if number == self._handshake:
            self._tokens_due = 0

    def token_passed(self) -> None:
        """Note that the client's last frame was a token."""
        self._tokens_due -= 1

    def is_request(self, data: bytes, position: int) -> bool | None:
        """Return whether a request starts here, and not a token; None while that is open."""
        available_bytes = len(data) - position
        if available_bytes < 4:
            return None
        size = int.from_bytes(data[position : position + 4], signed=True)
        if self._tokens_due > 0 or size < 8:
            return False
        if available_bytes < _REQUEST_START_BYTES:
            return None
        _, api_key, api_version = _REQUEST_START.unpack_from(data, position)
        if not is_known(api_key, api_version):
            return False
        self.expected = False
        return True


def is_response_token(pending: PendingRequests, data: bytes, position: int) -> bool | None:
    """Return whether the broker's bytes here begin a token; None while that is open."""
    queue = pending.queue
    if not queue or not queue[0].flags & RAW_SASL:
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
