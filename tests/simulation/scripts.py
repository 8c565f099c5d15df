"""What a client says on one connection, and what its broker answers: steps, made from a seed.

::

    Script ── Step(request) ──▶ broker ── step.answer() ──▶ Answer(response)

A step knows, from how it was made and not by looking into bytes, what must become of its frames:
how they are recorded (secrets starred), and what of them reaches the other side (our addresses).
"""

from __future__ import annotations

import copy
import random
import struct
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from kproxy.exchange.entries import Side
from kproxy.proxy.actions import Address
from kproxy.proxy.redact import has_token, redact
from kproxy.wire.protocol import (
    Request,
    Response,
    encode_request,
    encode_response,
    messages,
    schema,
)
from tests.simulation.filling import ADDRESSES, Filler, is_sensitive

PRODUCE, FETCH, METADATA, API_VERSIONS = 0, 1, 3, 18
HANDSHAKE, AUTHENTICATE = 17, 36
NO_API = -1

_ADDRESS_KEYS = [schema.api_key(name) for name in ADDRESSES]
_SENSITIVE_KEYS = [
    key for key in sorted({key for key, _ in schema.known_versions()}) if is_sensitive(key)
]
_VERSIONS: dict[int, list[int]] = {}
for _key, _version in sorted(schema.known_versions()):
    _VERSIONS.setdefault(_key, []).append(_version)
_FOR_CLIENTS = [key for key in _VERSIONS if key not in (52, 53, 54, 55, 59, 82)]
_COMMON = [METADATA, METADATA, PRODUCE, PRODUCE, FETCH, FETCH, 10, 11, 12, 14, API_VERSIONS]

CLIENT_IDS = ("app", None, "", "client-" * 30)

CLIENT_GARBAGE = (
    bytes.fromhex("16030100c8010000c40303"),
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"hello, is this a mail server?\r\n",
    struct.pack(">i", (100 << 20) + 1) + bytes(20),
    struct.pack(">i", -1) + bytes(20),
    bytes(12),
    b"\0\0\0\7abcdefg",
)
"""What no Kafka client sends: each ends its connection."""

BROKER_GARBAGE = (
    bytes.fromhex("15030300020250"),
    b"HTTP/1.1 400 Bad Request\r\n\r\n",
    b"\xff\xff\xff\xff1234",
    b"\0\0\0\2ab",
    b"\0\0\0\0",
    b"\x40\0\0\0a token of a gigabyte",
)


_LIKE_METADATA = b"\0\3\0\x09\0\0\0\1"
"""How a token begins that could be mistaken for a request, were its turn not known."""


@attrs.define(eq=False)
class Answer:
    """A response frame, and what must become of it."""

    data: bytes
    recorded: bytes
    """As a recording has it: secrets starred."""
    secret: bool = False
    """Whether it can hold secrets at all, so that it may be blanked where it is cut off."""
    token: bool = False
    message: Response | None = None
    """What it was made from, if it has addresses."""
    addressed: list[Any] = attrs.Factory(list)
    """The structs in it that have a usable address."""
    theirs: list[Address] = attrs.Factory(list)
    """These addresses, as the broker sent them."""
    api_key: int = NO_API
    garbage: bool = False
    """Whether it must end the connection."""
    cut: int = 0
    """How many bytes were left out at its end, so that it does not decode."""

    def sent_on(self, ours: Mapping[int, Address]) -> bytes:
        """What must reach the client, with our addresses in it."""
        if self.api_key == API_VERSIONS and self.message is not None:
            return self._lowered()
        if not self.addressed:
            return self.data
        for item in self.addressed:
            node_id = getattr(item, "broker_id", None)
            node_id = item.node_id if node_id is None else node_id
            if node_id in ours or not self.cut:
                item.host, item.port = ours[node_id]
        data = encode_response(self.message, self.api_key)
        for item, theirs in zip(self.addressed, self.theirs, strict=True):
            item.host, item.port = theirs
        return _cut(data, self.cut)

    def _lowered(self) -> bytes:
        """What ApiVersions must tell: of APIs with addresses, nothing that kproxy cannot read."""
        keys = self.message.body.api_keys
        offered = [item.max_version for item in keys]
        for item in keys:
            newest = max(_VERSIONS.get(item.api_key, (32_767,)))
            if item.api_key in _ADDRESS_KEYS and item.min_version <= newest:
                item.max_version = min(item.max_version, newest)
        data = encode_response(self.message, self.api_key)
        for item, version in zip(keys, offered, strict=True):
            item.max_version = version
        return _cut(data, self.cut)

    def again(self, correlation_id: int) -> Answer:
        """The same answer to another request: brokers repeat themselves."""
        header = attrs.evolve(self.message.header, correlation_id=correlation_id)
        message = attrs.evolve(self.message, header=header)
        data = encode_response(message, self.api_key)
        return attrs.evolve(self, data=data, recorded=data, message=message, garbage=False)


@attrs.define(eq=False)
class Step:
    """One request, and how the broker answers it."""

    request: bytes
    recorded: bytes
    answer: Callable[[], Answer] | None
    """None if the broker does not answer it."""
    api_key: int
    api_version: int
    correlation_id: int
    known: bool = True
    secret: bool = False
    token: bool = False
    wait: bool = False
    """Whether the client waits for the answer before it goes on."""
    no_response: bool = False
    """Whether the recording must say that there is no answer (acks=0)."""
    garbage: bool = False


def starred(data: bytes, secrets: list[bytes]) -> bytes:
    """The bytes with each of these secrets starred."""
    for secret in secrets:
        data = data.replace(secret, b"*" * len(secret))
    return data


def _explained(message: Any) -> Any:
    """A copy of a message in which all is zero that no field explains."""
    found = copy.deepcopy(message)
    found.trailing = bytes(len(found.trailing))
    _zero_tags(found.header)
    _zero_tags(found.body)
    return found


def _zero_tags(value: Any) -> None:
    if isinstance(value, list):
        for each in value:
            _zero_tags(each)
    elif hasattr(value, "unknown_tags"):
        value.unknown_tags = tuple((tag, bytes(len(data))) for tag, data in value.unknown_tags)
        for name in type(value).__slots__:
            _zero_tags(getattr(value, name))


class Scripts:
    """Makes the steps of connections."""

    def __init__(
        self, rng: random.Random, filler: Filler, malformed: bool, told_apart: bool = False
    ) -> None:
        self._rng = rng
        self._filler = filler
        self._told_apart = told_apart
        """Whether the requests of a connection can be told apart by their correlation ids, and none
        is a login: a rule could refuse it, and what is watched then is not recorded in full."""
        self._malformed = malformed
        """Whether brokers sometimes send what cannot be decoded."""
        self.uncertain = False
        """Whether some addresses may or may not have been found by the machine."""
        self._repeats = rng.choice((0.1, 0.2, 0.7))
        """How often clients ask, and brokers answer, the same as before."""
        self._last: dict[tuple[int, int], Answer] = {}
        """The last answer with addresses, by API and version."""

    def script(self, length: int) -> list[Step]:
        """The steps of one connection."""
        rng = self._rng
        ids = self._correlation_ids()
        steps: list[Step] = []
        start = 1 if self._told_apart else rng.random()
        if start < 0.12:
            steps += self._raw_sasl(ids)
        elif start < 0.2:
            steps += self._login(ids)
        else:
            steps.append(self._certain(ids))
        key = rng.choice(_ADDRESS_KEYS)
        habit = key, rng.choice(_VERSIONS[key])
        while len(steps) < length:
            repeats = rng.random() < self._repeats
            if repeats:
                steps.append(self._api(*habit, next(ids)))
            elif rng.random() < 0.01 and not self._told_apart:
                steps += self._login(ids)  # anew (KIP-368)
            else:
                steps.append(self._any(next(ids)))
                if steps[-1].api_key == HANDSHAKE:
                    steps += self._login(ids)  # it was refused: a connection is watched until then
        return steps

    def _login(self, ids) -> list[Step]:
        """A login by SaslAuthenticate, which the broker takes, and the request after it."""
        steps = [self._exact(HANDSHAKE, 1, next(ids))]
        while len(steps) < 3:
            step = self._api(AUTHENTICATE, self._rng.randint(0, 2), next(ids), wait=True)
            if step.recorded != _blanked(step.request):  # what cannot be walked may be a token
                steps.append(step)
        return [*steps, self._certain(ids)]

    def _correlation_ids(self):
        rng = self._rng
        style = rng.randrange(2 if self._told_apart else 5)
        number = rng.choice((0, 1, 2**31 - 3, -5, rng.randint(-(2**31), 2**31 - 1)))
        few = [rng.randint(-(2**31), 2**31 - 1) for _ in range(2)]
        while True:
            match style:
                case 0 | 1:
                    yield number
                    number = (number + 1 + 2**31) % 2**32 - 2**31
                case 2:
                    yield rng.randint(-(2**31), 2**31 - 1)
                case 3:
                    yield rng.choice(few)
                case 4:
                    yield few[0]

    def _any(self, correlation_id: int) -> Step:
        rng = self._rng
        kind = rng.random()
        if kind < 0.04:
            return self._unknown(correlation_id)
        if kind < 0.05:
            return self._headless(correlation_id)
        if kind < 0.35:
            key = rng.choice(_ADDRESS_KEYS)
        elif kind < 0.5:
            key = rng.choice(_SENSITIVE_KEYS)
        elif kind < 0.65:
            # Controllers' own addresses, in what they say to each other, are no leak.
            key = rng.choice(list(_VERSIONS) if self._malformed else _FOR_CLIENTS)
        else:
            key = rng.choice(_COMMON)
        if key in (HANDSHAKE, AUTHENTICATE):
            key = METADATA  # see _login
        return self._api(key, rng.choice(_VERSIONS[key]), correlation_id)

    # ---- requests

    def _api(self, key: int, version: int, correlation_id: int, wait: bool = False) -> Step:
        """A step of an API that the proxy knows."""
        rng, filler = self._rng, self._filler
        size = 200
        if key in (PRODUCE, FETCH, 78) and rng.random() < 0.04:
            size = rng.choice((70_000, 262_144, 300_000, 300_000, 600_000, 1_300_000))
        before = len(filler.secrets)
        body = filler.body(key, "request", version, size if key == PRODUCE else 200)
        no_response = False
        if key == PRODUCE:
            body.acks = rng.choice((-1, 1, 0))
            no_response = body.acks == 0
        if key == HANDSHAKE:
            body.mechanism = rng.choice(("PLAIN", "SCRAM-SHA-256"))
        frame, recorded = self._request(key, version, correlation_id, body, before)
        known = True
        readable = key not in (API_VERSIONS, HANDSHAKE) and (key != PRODUCE or version == 13)
        if readable and rng.random() < 0.03:
            # A version newer than the table; the broker's answer is as new.
            version = 99
            known = False
            frame = frame[:6] + version.to_bytes(2) + frame[8:]
            recorded = _blanked(frame) if is_sensitive(key) else frame
        answer = None
        if not no_response:
            answer = self._answering(key, version, correlation_id, size, known)
        return Step(
            frame,
            recorded,
            answer,
            key,
            version,
            correlation_id,
            known,
            is_sensitive(key),
            wait=wait,
            no_response=no_response,
        )

    def _request(
        self, key: int, version: int, correlation_id: int, body: Any, secrets_before: int
    ) -> tuple[bytes, bytes]:
        """The frame, and how it is recorded."""
        rng, filler = self._rng, self._filler
        header = messages.RequestHeader(
            api_key=key,
            api_version=version,
            correlation_id=correlation_id,
            client_id=rng.choice(CLIENT_IDS),
            unknown_tags=filler.tags(),
        )
        trailing = rng.randbytes(rng.randint(1, 4)) if rng.random() < 0.02 else b""
        message = Request(header, body, trailing)
        frame = encode_request(message)
        explained = encode_request(_explained(message)) if is_sensitive(key) else frame
        recorded = starred(explained, filler.secrets[secrets_before:])
        if trailing and has_token(key, Side.CLIENT):
            recorded = _blanked(frame)
        if is_sensitive(key) and rng.random() < 0.05:
            # What cannot be walked is blanked out whole.
            count = len(trailing) + 1
            frame = _cut(frame, rng.randint(count, max(count, len(frame) - 30)))
            recorded = _blanked(frame)
        return frame, recorded

    def _unknown(self, correlation_id: int) -> Step:
        """An API that nobody knows."""
        rng = self._rng
        key = rng.choice((999, 95, 32_767, -2))
        version = rng.randint(-1, 20)
        frame = _framed(struct.pack(">hhi", key, version, correlation_id), rng.randbytes(9))
        data = _framed(struct.pack(">i", correlation_id), rng.randbytes(rng.randint(0, 30)))
        answer = Answer(data, data, api_key=key)
        return Step(frame, frame, lambda: answer, key, version, correlation_id, known=False)

    def _headless(self, correlation_id: int) -> Step:
        """A request of a known API that is nothing but the fixed part of its header."""
        keys = (PRODUCE, PRODUCE, FETCH, METADATA, 33, HANDSHAKE)
        key = self._rng.choice(keys[:-1] if self._told_apart else keys)
        version = self._rng.choice(_VERSIONS[key])
        frame = _framed(struct.pack(">hhi", key, version, correlation_id))
        refused = key == HANDSHAKE  # or else tokens would follow
        data = _framed(struct.pack(">i", correlation_id), b"\0\x21" if refused else b"")
        secret = is_sensitive(key)
        answer = Answer(data, _blanked(data, 8) if refused else data, secret, api_key=key)
        return Step(
            frame, frame, lambda: answer, key, version, correlation_id, secret=secret, wait=refused
        )  # fmt: skip

    # ---- SASL tokens without headers (KIP-43)

    def _raw_sasl(self, ids) -> list[Step]:
        rng = self._rng
        mechanism = rng.choice(("PLAIN", "SCRAM-SHA-512", "GSSAPI", "OAUTHBEARER"))
        refused = rng.random() < 0.1
        waits = refused or rng.random() < 0.7
        correlation_id = next(ids)
        body = messages.SaslHandshakeRequest(mechanism=mechanism)
        frame = recorded = b""
        while not frame or redact(frame, Side.CLIENT, HANDSHAKE, 0) is not None:
            frame, recorded = self._request(HANDSHAKE, 0, correlation_id, body, 0)
        made = messages.SaslHandshakeResponse(error_code=33 * refused, mechanisms=[mechanism])
        header = messages.ResponseHeader(correlation_id=correlation_id)
        data = encode_response(Response(header, made, 0), HANDSHAKE)
        answer = Answer(data, data, True, api_key=HANDSHAKE)
        steps = [Step(frame, recorded, lambda: answer, HANDSHAKE, 0, correlation_id, wait=waits)]
        match "none" if refused else mechanism:
            case "SCRAM-SHA-512":
                steps += [self._token(b"n,,n="), self._token(rng.choice((b"c=", _LIKE_METADATA)))]
            case "PLAIN":
                steps.append(self._token(rng.choice((b"\0", _LIKE_METADATA)), b""))
            case "OAUTHBEARER":
                steps.append(self._token(b"n,,\1auth=Bearer ", b""))
            case "GSSAPI":
                steps += [self._token(b"\x60\x82"), self._token(b"")]
                if rng.random() < 0.5:
                    steps.append(self._token(b"\x05\x04", None))
        # Nothing but a request of a known API tells that the tokens are over.
        return [*steps, *(self._login(ids) if refused else [self._certain(ids)])]

    def _certain(self, ids) -> Step:
        """A request of a known API, in a known version, after whose answer no token may come."""
        return self._exact(self._rng.choice((METADATA, 12)), 4, next(ids))

    def _exact(self, key: int, version: int, correlation_id: int) -> Step:
        """A request without bytes that no field explains, which are zero while a login is open."""
        while True:
            step = self._api(key, version, correlation_id, wait=True)
            if step.known and redact(step.request, Side.CLIENT, key, version) is None:
                return step

    def _token(self, start: bytes, answered: bytes | None = b"r=") -> Step:
        rng, filler = self._rng, self._filler
        size = rng.choice((0, 0, 3000, 300_000)) if rng.random() < 0.2 else 0
        frame = _framed(start, filler.secret(size))
        answer = None
        if answered is not None:
            token = _framed(answered, filler.secret() if answered else b"")
            made = Answer(token, _starred_token(token), True, token=True)
            answer = lambda: made  # noqa: E731
        recorded = _starred_token(frame)
        return Step(
            frame, recorded, answer, NO_API, NO_API, 0, secret=True, token=True,
            wait=answer is not None,
        )  # fmt: skip

    # ---- responses

    def _answering(self, key: int, version: int, correlation_id: int, size: int, known: bool):
        """What makes the answer when the broker has the request: not before, for its addresses
        are those of that time."""

        def answer() -> Answer:
            return self._answer(key, version, correlation_id, size, known)

        return answer

    def _answer(
        self, key: int, version: int, correlation_id: int, size: int, known: bool
    ) -> Answer:
        rng, filler = self._rng, self._filler
        secret = is_sensitive(key)
        if not known:
            content = filler.secret() if secret else rng.randbytes(rng.randint(0, 60))
            data = _framed(struct.pack(">i", correlation_id), content)
            return Answer(data, _blanked(data, 8) if secret else data, secret, api_key=key)
        last = self._last.get((key, version))
        if last and rng.random() < self._repeats:
            return last.again(correlation_id)
        before = len(filler.secrets)
        body_version = version
        if key == API_VERSIONS and version and rng.random() < 0.2:
            body_version = 0
        body = filler.body(key, "response", body_version, 200 if key == PRODUCE else size)
        if key == API_VERSIONS:
            body.error_code = 35 if body_version != version else 0
        if key in (HANDSHAKE, AUTHENTICATE):
            body.error_code = 0
        header = messages.ResponseHeader(correlation_id=correlation_id)
        if key != API_VERSIONS:
            header.unknown_tags = filler.tags()
        trailing = rng.randbytes(rng.randint(1, 3)) if rng.random() < 0.03 else b""
        message = Response(header, body, body_version, trailing)
        data = encode_response(message, key)
        explained = encode_response(_explained(message), key) if secret else data
        recorded = starred(explained, filler.secrets[before:])
        if trailing and has_token(key, Side.BROKER):
            recorded = _blanked(data, 8)
        addressed, cut = filler.addressed, 0
        malformed = self._malformed and not trailing and len(data) > 25
        malformed &= key not in (HANDSHAKE, AUTHENTICATE)  # it would be a refusal
        if malformed and rng.random() < (0.2 if size > 1000 else 0.03):
            # It does not decode: what addresses can be found in it are rewritten all the same, and
            # if it could hold secrets it is blanked out.
            if len(data) > 1000:
                data = data[:9] + b"\xff" * 16 + data[25:]
                addressed = []
            else:
                cut = rng.randint(1, 12)
                data = _cut(data, cut)
                self.uncertain |= bool(addressed)
            recorded = _blanked(data, 8) if secret else data
        theirs = [(item.host, item.port) for item in addressed]
        made = Answer(data, recorded, secret, False, message, addressed, theirs, key, cut=cut)
        if addressed and not cut:
            self._last[key, version] = made
        return made


def _framed(*parts: bytes) -> bytes:
    content = b"".join(parts)
    return struct.pack(">i", len(content)) + content


def _cut(frame: bytes, count: int) -> bytes:
    """The frame without its last bytes, its size corrected."""
    return _framed(frame[4 : len(frame) - count])


def _blanked(frame: bytes, kept: int = 12) -> bytes:
    return frame[:kept] + bytes(len(frame) - kept)


def _starred_token(frame: bytes) -> bytes:
    return frame[:4] + b"*" * (len(frame) - 4)
