"""SASL at the replaying broker.

PLAIN and OAUTHBEARER accept any credentials; the answer to a bearer token is empty, since otherwise
the Java client sends another token. SCRAM cannot be replayed: the client checks that the broker
knows the password, so SCRAM accepts only the users that were given with their passwords (RFC 5802;
Kafka has no channel binding). A connection whose login is refused ends, as at a broker.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import attrs

from kproxy.proxy.mechanisms import MECHANISMS, SCRAM
from kproxy.replay.call import Call
from kproxy.wire.protocol import codes, messages

if TYPE_CHECKING:
    from kproxy.replay.state import State

_ITERATIONS = 4096


class Refused(Exception):
    """Credentials that are not accepted; the text says why."""


@attrs.define(eq=False)
class Authentication:
    """The login of one client."""

    mechanism: str
    users: Mapping[str, str]
    nonce: str
    done: bool = False
    _user: str = attrs.field(default="", init=False)
    _first: str = attrs.field(default="", init=False)

    def token(self, data: bytes) -> bytes:
        """Take the client's next token and return the broker's.

        Raises:
            Refused: the credentials are not accepted.
        """
        if self.mechanism not in SCRAM:
            self.done = True
            return b""
        text = data.decode("utf-8", "replace")
        try:
            return (self._final(text) if self._first else self._challenge(text)).encode()
        except (KeyError, IndexError, ValueError):
            raise Refused("a malformed SCRAM message") from None

    def _challenge(self, text: str) -> str:
        bare = text.split(",", 2)[2]
        fields = _fields(bare)
        self._user = fields["n"].replace("=2C", ",").replace("=3D", "=")
        if self._user not in self.users:
            raise Refused(f"no password for user {self._user!r}: give --user NAME:PASSWORD")
        salt = base64.b64encode(self._salt()).decode()
        first = f"r={fields['r']}{self.nonce},s={salt},i={_ITERATIONS}"
        self._first = f"{bare},{first}"
        return first

    def _final(self, text: str) -> str:
        without_proof, _, proof = text.rpartition(",p=")
        name = MECHANISMS[self.mechanism].hash_name
        message = f"{self._first},{without_proof}".encode()

        def sign(key: bytes, data: bytes) -> bytes:
            return hmac.new(key, data, name).digest()

        password = self.users[self._user].encode()
        salted = hashlib.pbkdf2_hmac(name, password, self._salt(), _ITERATIONS)
        client_key = sign(salted, b"Client Key")
        signature = sign(hashlib.new(name, client_key).digest(), message)
        expected = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        if not hmac.compare_digest(expected, base64.b64decode(proof)):
            raise Refused(f"the password of user {self._user!r} is not the one given in --user")
        self.done = True
        server = sign(sign(salted, b"Server Key"), message)
        return f"v={base64.b64encode(server).decode()}"

    def _salt(self) -> bytes:
        return hashlib.sha256(self._user.encode()).digest()[:16]


def _fields(text: str) -> dict[str, str]:
    return dict(part.split("=", 1) for part in text.split(",") if part)


def sasl_handshake(state: State, call: Call) -> Any:
    """SaslHandshake; after version 0, tokens follow without headers."""
    users = state.settings.users
    mechanisms = ["PLAIN", "OAUTHBEARER", *(SCRAM if users else ())]
    mechanism = call.body.mechanism
    response = messages.SaslHandshakeResponse
    if mechanism not in mechanisms:
        if mechanism in SCRAM:
            text = f"a client logs in with {mechanism}, whose passwords are not in a recording:"
            how = "give its user and any password, which the client has, too: --user NAME:PASSWORD"
            state.report.add("not served", f"{text} {how}, or users= in pytest")
        call.connection.end_when_answered()
        return response(error_code=codes.UNSUPPORTED_SASL_MECHANISM, mechanisms=mechanisms)
    nonce = hashlib.sha256(f"{call.connection.number} {call.now}".encode()).hexdigest()[:24]
    call.connection.authentication = Authentication(mechanism, users, nonce)
    call.connection.raw_tokens = call.version == 0
    return response(mechanisms=mechanisms)


def sasl_authenticate(state: State, call: Call) -> Any:
    """SaslAuthenticate."""
    response = messages.SaslAuthenticateResponse
    authentication = call.connection.authentication
    if authentication is None:
        text = "SaslHandshake comes first"
        return response(error_code=codes.ILLEGAL_SASL_STATE, error_message=text)
    try:
        data = authentication.token(call.body.auth_bytes)
    except Refused as error:
        state.report.add("not served", f"SASL {authentication.mechanism}: {error}")
        call.connection.end_when_answered()
        return response(error_code=codes.SASL_AUTHENTICATION_FAILED, error_message=str(error))
    return response(auth_bytes=data)


HANDLERS = {"SaslHandshake": sasl_handshake, "SaslAuthenticate": sasl_authenticate}
