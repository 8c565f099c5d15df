"""A login of kproxy's own at a broker: requests out, responses in.

::

    ApiVersions ─▶ SaslHandshake ─▶ SaslAuthenticate … ─▶ LoginSession
    (the first time)      └────────────────┴─▶ LoginFailed: kind, and why

It goes before the traffic of a connection, or stands between two requests of it when the session
ends (KIP-368), and nothing of it is recorded.

Invariants: the mechanism says how many tokens there are, so a broker cannot go on for ever; no
secret, and no message of the broker's, is in an error.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any

import attrs

from kproxy.proxy.diagnosis import LOGIN_KEYS, login_refusal
from kproxy.proxy.mechanisms import SCRAM, user_in
from kproxy.wire import protocol
from kproxy.wire.protocol import messages
from kproxy.wire.protocol.codec import API_VERSIONS

_HANDSHAKE, _AUTHENTICATE = LOGIN_KEYS
_HANDSHAKE_VERSION = 1
"""From this one on tokens have headers (Kafka 1.0)."""
_AUTHENTICATE_VERSION_MAX = 2


KINDS = "mechanism", "credentials", "protocol", "closed", "timeout", "token"
"""The kinds of a login that failed: the broker does not offer the mechanism, refuses the
credentials, does not speak Kafka's protocol, hangs up, does not answer in time; or there is no
token."""


class LoginFailed(Exception):
    """A login that failed; the text says why."""

    def __init__(self, kind: str, why: str) -> None:
        """`kind` is one of `KINDS`."""
        super().__init__(why)
        self.kind = kind

    @property
    def final(self) -> bool:
        """True if another try, or another broker, would end alike."""
        return self.kind in ("mechanism", "credentials", "token")


@attrs.frozen
class Account:
    """What a login takes; of OAUTHBEARER the password is the token."""

    mechanism: str
    username: str = attrs.field(default="", repr=False)
    password: str = attrs.field(default="", repr=False)
    extensions: Mapping[str, str] = attrs.field(factory=dict, repr=False)
    """Of OAUTHBEARER (KIP-342)."""


@attrs.frozen
class LoginSession:
    """A login that succeeded."""

    mechanism: str
    version: int
    """The version of SaslAuthenticate that the broker takes."""
    lifetime_ms: int
    """The time for which the broker takes requests; 0: without a limit."""
    user: str = ""
    """As the first token names it; "" if it does not."""


def authenticate(
    account: Account, earlier: LoginSession | None = None
) -> Generator[bytes, bytes, LoginSession]:
    """Yield the request frames of a login, each to be answered with its response frame; `earlier`
    is the session of this connection that ends.

    Raises:
        LoginFailed: the broker refuses it, or does not speak Kafka.
    """
    if earlier is None:
        versions = yield from _request(API_VERSIONS, 0, messages.ApiVersionsRequest())
        offered = {each.api_key: each.max_version for each in versions.api_keys}
        version = min(offered.get(_AUTHENTICATE, -1), _AUTHENTICATE_VERSION_MAX)
        if version < 0:
            raise LoginFailed("protocol", "the broker has no SaslAuthenticate (Kafka 1.0)")
    else:
        version = earlier.version
    name = account.mechanism
    handshake = messages.SaslHandshakeRequest(mechanism=name)
    _check((yield from _request(_HANDSHAKE, _HANDSHAKE_VERSION, handshake)), name, "mechanism")
    tokens, answer, lifetime_ms, user = _tokens(account), None, 0, ""
    while True:
        try:
            token = next(tokens) if answer is None else tokens.send(answer)
        except StopIteration:
            return LoginSession(name, version, max(lifetime_ms, 0), user)
        user = user_in(name, token) if answer is None else user
        request = messages.SaslAuthenticateRequest(auth_bytes=token)
        body = yield from _request(_AUTHENTICATE, version, request)
        _check(body, name, "credentials")
        answer, lifetime_ms = body.auth_bytes, getattr(body, "session_lifetime_ms", 0)


def _request(key: int, version: int, body: Any) -> Generator[bytes, bytes, Any]:
    header = messages.RequestHeader(
        api_key=key, api_version=version, correlation_id=key, client_id="kproxy"
    )
    frame = yield protocol.encode_request(protocol.Request(header, body))
    try:
        response = protocol.decode_response(frame, key, version)
    except protocol.ProtocolError:
        raise LoginFailed("protocol", "the broker's answer to a login is not Kafka's") from None
    if response.header.correlation_id != key:
        raise LoginFailed("protocol", "the broker's answer to a login is to another request")
    return response.body


def _check(body: Any, mechanism: str, kind: str) -> None:
    if refusal := login_refusal(body, mechanism):
        raise LoginFailed(kind, refusal)


def _tokens(account: Account) -> Generator[bytes, bytes, None]:
    """Yield the client's tokens, each to be answered with the broker's."""
    if account.mechanism in SCRAM:
        yield from _scram(account)
    elif account.mechanism == "PLAIN":
        yield f"\0{account.username}\0{account.password}".encode()
    else:  # RFC 7628
        named = "".join(f"\x01{name}={value}" for name, value in account.extensions.items())
        yield f"n,,\x01auth=Bearer {account.password}{named}\x01\x01".encode()


def _scram(account: Account) -> Generator[bytes, bytes, None]:
    from scramp import ScramClient, ScramException

    try:
        client = ScramClient([account.mechanism], account.username, account.password)
        client.set_server_first((yield client.get_client_first().encode()).decode())
        client.set_server_final((yield client.get_client_final().encode()).decode())
    except (ScramException, ValueError):  # whose texts may quote a password
        why = f"the broker's part of {account.mechanism} is wrong: it does not know the password"
        raise LoginFailed("credentials", f"{why}, or it is one that SCRAM does not have") from None
