"""The login of a connection: which of its frames may be SASL tokens, no byte of which is kept.

Tokens come in SaslAuthenticate, whose fields `redact` knows; or bare, with a size and no header:
after SaslHandshake v0 (KIP-43), or first of all (Kafka 0.9, SASL proxies). Nothing on the wire
tells a bare token from a request, so a login is open until the broker has shown that it is not::

    connected ─▶ open ── a request is answered, or SaslAuthenticate accepted ─▶ over
                  ▲ └ what decodes to its last byte is a request,               │
                  │   any other frame a token                                   │
                  └──────── SaslHandshake or SaslAuthenticate (KIP-368) ────────┘

Invariants: ApiVersions and SaslHandshake, which brokers answer to everybody, end no login; after a
refused one, only a new login does. After a SaslHandshake that was not refused, whatever comes
before the least number of tokens that the mechanism needs is a token, even if it decodes. Once it
is over, a connection costs nothing here: its frames take the short-cut, which only asks whether a
login is `open`.
"""

from __future__ import annotations

from typing import Any

import attrs

from kproxy.exchange.entries import FRAGMENT, NO_API, RAW_SASL, Frame
from kproxy.proxy import redact
from kproxy.proxy.diagnosis import LOGIN_KEYS, SASL_AUTHENTICATE, login_refusal
from kproxy.proxy.interests import VERSIONS_KEY
from kproxy.proxy.mechanisms import is_mechanism, mechanism_of, user_in
from kproxy.proxy.pending import PendingRequests
from kproxy.proxy.verdicts import Verdict
from kproxy.wire.protocol import ProtocolError, codec, decode_request, decode_response, is_known

UNKNOWN_MECHANISM = "a mechanism that kproxy does not know"
"""The name of one whose own name may be a secret in the wrong place."""
TOKEN_BYTES_MAX = 512 << 10
"""Kafka's sasl.server.max.receive.size: no broker takes a larger token."""

_REQUEST_BYTES_MIN = 8
_TOKEN_BYTES_MIN = 4
"""The shortest token of PLAIN, the first of a connection: a user and a password of one letter."""
_VERSIONS_MAX = 256
_BEFORE_LOGIN = (*LOGIN_KEYS, VERSIONS_KEY)
"""The APIs that a broker answers before a login."""
_RESPONSE_START_BYTES = 8


@attrs.define(eq=False)
class Login:
    """Tells tokens of one connection from requests; both directions report to it."""

    names_users: bool = False
    """The users that clients name are to be recorded."""
    open: bool = attrs.field(default=True, init=False)
    """A frame may be a token."""
    mechanism: str = attrs.field(default="", init=False)
    """The mechanism of the last SaslHandshake."""
    begun: bool = attrs.field(default=False, init=False)
    """The client has sent SaslHandshake or SaslAuthenticate."""
    refusal: str = attrs.field(default="", init=False)
    """The reason for which the broker refused the last login; empty if it did not."""
    claimed: str = attrs.field(default="", init=False)
    """The user that this login names; empty: none, or it is not to be recorded."""
    user: str = attrs.field(default="", init=False)
    """The user of the last login that the broker has accepted, or refused; empty: unknown."""
    session_ends_ns: int = attrs.field(default=0, init=False)
    """The time until which the broker takes requests after a login; 0: it has no limit."""
    _refused: bool = attrs.field(default=False, init=False)
    """The broker refused the last login, so that requests that it answers prove nothing."""
    _bare: bool = attrs.field(default=False, init=False)
    """The last SaslHandshake was of version 0: its tokens have no header."""
    _is_first: bool = attrs.field(default=False, init=False)
    """The next token is the first one of its login."""
    _last: int = attrs.field(default=0, init=False)
    """The number of the last request of a login."""
    _tokens_due: int = attrs.field(default=0, init=False)

    # What the client sends

    def is_token(self, size: int, api_key: int | None = None, api_version: int = 0) -> bool:
        """Return whether a frame has to be taken for a token, by its size, or by its API and
        version."""
        if size < _REQUEST_BYTES_MIN:
            return size >= (0 if self.begun else _TOKEN_BYTES_MIN)
        if self._tokens_due > 0 and (self._bare or api_key is not None):
            return self._bare or api_key != SASL_AUTHENTICATE
        return api_key is not None and not _is_like_request(api_key, api_version)

    def is_request(self, frame: Frame) -> bool:
        """Return whether a frame that begins like a request is one; it is whole, or too large for
        a token."""
        if frame.flags & FRAGMENT:
            return True
        if not redact.has_header(frame.data):
            return False
        if frame.api_key in _BEFORE_LOGIN:
            return True  # the rest is blanked out if it cannot be walked
        return redact.decodes(frame.data, frame.api_key, frame.api_version)

    def token_passed(self, frame: Frame) -> None:
        """Note that the client's last frame was a token, or had one."""
        self._tokens_due -= 1
        if self._is_first and self.names_users:
            self.claimed = user_in(self.mechanism, _token(frame))
        self._is_first = False

    def step_passed(self, frame: Frame) -> None:
        """Note that the client's last frame was a SaslHandshake or SaslAuthenticate."""
        self.open = self.begun = True
        self._last = frame.number
        if frame.api_key == SASL_AUTHENTICATE:
            self.token_passed(frame)
            return
        self._is_first, self.claimed = True, ""
        self.mechanism = _mechanism(frame.data)
        self._refused = False
        self._bare = frame.api_version == 0
        self._tokens_due = mechanism_of(self.mechanism).tokens_min or 1

    # What the broker answers

    def refused(self, number: int) -> None:
        """Note that the broker refused a step of a login: tokens may follow, but none is due."""
        if number == self._last:
            self._refused = True
            self._tokens_due = 0

    def take_response(self, frame: Frame, verdict: Verdict) -> None:
        """Take the broker's response to a request, and what a rule tells the client in its place.

        That to a step of a login says why the broker refuses it, or for how long it accepts it
        (KIP-368).
        """
        if frame.api_key in LOGIN_KEYS:
            body = _response(frame, frame.data)
            if body is not None:
                self.refusal = login_refusal(body, self.mechanism, self.claimed)
                if frame.api_key == SASL_AUTHENTICATE:
                    lifetime_ms = getattr(body, "session_lifetime_ms", 0)  # from version 1 on
                    ends_ns = frame.received_ns + lifetime_ms * 1_000_000
                    self.session_ends_ns = ends_ns if lifetime_ms > 0 else 0
            if verdict.frames is not None:
                body = _response(frame, verdict.frames[0]) if verdict.frames else None
            if body is None or login_refusal(body, self.mechanism):
                self.refused(frame.number)
                if frame.number == self._last:
                    self.user = self.claimed or self.user
                return
        if self.open:
            self._answered(frame.number, frame.api_key)

    def _answered(self, number: int, api_key: int) -> None:
        """Note that the broker answered a request, and accepted it if it is a step of a login."""
        if number < self._last or self._tokens_due > 0:
            return  # it is of the time before this login
        if api_key == SASL_AUTHENTICATE:
            self._refused = False
            # Others than these mechanisms may go on with further tokens.
            self.open = not mechanism_of(self.mechanism).tokens_min
        elif api_key not in _BEFORE_LOGIN:
            self.open = self._refused
        if not self.open:
            self.user = self.claimed or self.user


def as_token(frame: Frame) -> None:
    """Make a frame, of which nothing is recorded yet, that of a token: without a header."""
    frame.flags |= RAW_SASL
    frame.api_key = frame.api_version = NO_API
    frame.correlation_id = 0


def is_response_token(pending: PendingRequests, data: bytes, position: int) -> bool | None:
    """Return whether the broker's bytes here begin a token; None while that is open."""
    queue = pending.queue
    if not queue or not queue[0].flags & RAW_SASL:
        return False
    later = pending.first_with_header
    size = int.from_bytes(data[position : position + 4], signed=True)
    if later is None or size < 4:
        return True
    if len(data) - position < _RESPONSE_START_BYTES:
        return None  # it may be the response to the later one: its correlation id will tell
    correlation_id = int.from_bytes(data[position + 4 : position + 8], signed=True)
    return correlation_id != later.correlation_id


def _is_like_request(api_key: int, api_version: int) -> bool:
    if api_key in _BEFORE_LOGIN:
        return 0 <= api_version < _VERSIONS_MAX
    return is_known(api_key, api_version)


def _mechanism(frame: bytes) -> str:
    try:
        mechanism: str = decode_request(frame).body.mechanism
    except ProtocolError:
        return UNKNOWN_MECHANISM
    is_known_one = is_mechanism(mechanism.encode("utf-8", "surrogateescape"))
    return mechanism if is_known_one else UNKNOWN_MECHANISM


def _token(frame: Frame) -> bytes:
    if frame.flags & RAW_SASL:
        return frame.data[codec.SIZE_BYTES :]
    try:
        token: bytes = decode_request(frame.data).body.auth_bytes
    except ProtocolError:
        return b""
    return token


def _response(frame: Frame, data: bytes) -> Any | None:
    """Return the body of a response to the request of a frame; None if it cannot be read."""
    try:
        return decode_response(data, frame.api_key, frame.api_version).body
    except ProtocolError:
        return None
