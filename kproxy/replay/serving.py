"""Turn a request into a response: the table of handlers, decoding and encoding.

::

    frame ─▶ decode ─▶ Call ─▶ HANDLERS[api] ─▶ body ─▶ encode ─▶ frame
                                  or `semantic`

All of it is done in `steps`.

Nothing is guessed: a request that neither the state nor the recording can answer is refused and
reported.
"""

from __future__ import annotations

from collections.abc import Generator
from inspect import isgeneratorfunction
from typing import Any

import attrs

from kproxy.exchange.entries import NO_API
from kproxy.proxy import diagnosis
from kproxy.proxy.faults import errors, items
from kproxy.recording import RecordingError
from kproxy.replay import (
    administering,
    classic_group,
    consumer_group,
    fetch,
    groups,
    metadata,
    produce,
    producers,
    sasl,
    versions,
)
from kproxy.replay.call import Call, Reply, Unanswerable
from kproxy.replay.connection import ReplayConnection, encode, encode_in_steps
from kproxy.replay.settings import Mode
from kproxy.replay.state import Handler, State
from kproxy.replay.steps import STEPS_MAX, Steps, counted, finished, release
from kproxy.wire.protocol import (
    ProtocolError,
    api_key,
    api_name,
    decode_request,
    decode_response,
    is_known,
)
from kproxy.wire.protocol.codec import decode_request_in_steps
from kproxy.wire.protocol.schema import api_names

_BY_NAME: dict[str, Handler] = {
    **versions.HANDLERS,
    **metadata.HANDLERS,
    **administering.HANDLERS,
    **fetch.HANDLERS,
    **produce.HANDLERS,
    **producers.HANDLERS,
    **groups.HANDLERS,
    **classic_group.HANDLERS,
    **consumer_group.HANDLERS,
    **sasl.HANDLERS,
}
_AS_RECORDED = frozenset(
    {"CreatePartitions", "CreateTopics", "DescribeConfigs", "DescribeTransactions"}
)
"""APIs that the state answers with the help of recorded exchanges."""
_ALWAYS_STATE = frozenset(
    {
        "ApiVersions",
        "SaslHandshake",
        "SaslAuthenticate",
        "Fetch",
        "ListOffsets",
        "Produce",
        *groups.REFUSED,
    }
)
"""APIs that the state answers in semantic mode too: records are found by their offsets."""

SERVED = frozenset(_BY_NAME)
"""The names of the APIs that the state models."""
HANDLERS: dict[int, Handler] = {api_key(name) or 0: each for name, each in _BY_NAME.items()}


def modelled(mode: Mode) -> frozenset[int]:
    """Return the API keys whose exchanges a loader need not keep."""
    names = SERVED - _AS_RECORDED if mode is Mode.STATE else _ALWAYS_STATE
    return frozenset(api_key(name) or 0 for name in names)


_FOLLOWED = {
    "CreatePartitions": "results",
    "CreateTopics": "topics",
    "DeleteRecords": "topics",
    "DeleteTopics": "responses",
}
"""APIs whose recorded responses change topics, and the results in them."""
_BEFORE_LOGIN = (*diagnosis.LOGIN_KEYS, versions.API_VERSIONS)
_VERSIONS_MAX = 256
"""No API has so many versions."""
_UNKNOWN_SERVER_ERROR = -1
_PRODUCE = b"\0\0"
"""The API key of Produce."""
_LARGE_BYTES = 16 << 10
"""Larger requests are decoded in steps, which costs half as much again, and the responses to them
encoded in steps."""
_ELEMENTS_MAX = 50_000
"""A larger request to an API that is not handled in steps is refused."""
_REFUSED = "the recording that is replayed has no answer to this"


@attrs.define(eq=False)
class Serving:
    """Turns requests into responses, from the state and the recording."""

    state: State
    _handlers: dict[int, Handler] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        served = SERVED if self.state.settings.mode is Mode.STATE else _ALWAYS_STATE
        self.state.ranges = versions.ranges(self.state, served)
        self._handlers = {key: HANDLERS[key] for key in map(api_key, served) if key is not None}

    def answer(
        self,
        connection: ReplayConnection,
        frame: bytes | bytearray,
        now: int,
    ) -> Steps:
        """Answer a request: the result is its API key, and the response in pieces or a `Reply`.

        Raises:
            Unanswerable: there is no response.
        """
        if connection.is_token(frame):
            return NO_API, [self._token(connection, bytes(frame))]
        if frame[4:6] == _PRODUCE and (response := self.state.check.repeated(frame)) is not None:
            return 0, [response]
        call = yield from self._call(connection, frame, now)
        connection.client_id = connection.client_id or call.client_id
        connection.needs_no_login |= call.api_key not in _BEFORE_LOGIN
        body = yield from self._handle(call)
        if not isinstance(body, Reply):
            body = yield from self.encoded(call, body)
        return call.api_key, body

    def _token(self, connection: ReplayConnection, frame: bytes) -> bytes:
        """Answer a SASL token sent without a header; one without a SaslHandshake is taken as
        PLAIN's.

        Raises:
            Unanswerable: the credentials are not accepted.
        """
        authentication = connection.authentication or sasl.Authentication("PLAIN", {}, "")
        connection.authentication = authentication
        try:
            answer = authentication.token(frame[4:])
        except sasl.Refused as error:
            self.state.report.add("not served", f"SASL {authentication.mechanism}: {error}")
            raise Unanswerable(str(error)) from None
        connection.raw_tokens = not authentication.done
        return len(answer).to_bytes(4, "big") + answer

    def _call(self, connection: ReplayConnection, frame: bytes | bytearray, now: int) -> Steps:
        """Decode a request, and return the `Call`.

        Raises:
            Unanswerable: it cannot be decoded, or its API or version is not served.
        """
        key = int.from_bytes(frame[4:6], "big", signed=True)
        version = int.from_bytes(frame[6:8], "big", signed=True)
        if key == versions.API_VERSIONS and not is_known(key, version) and len(frame) >= 12:
            correlation_id = int.from_bytes(frame[8:12], "big", signed=True)
            return Call(connection, key, 0, correlation_id, "", None, now, frame)
        least, greatest = self.state.ranges.get(key, (0, -1))
        if not least <= version <= greatest:
            text = f"{api_name(key)} v{version} is not served, though a client sends it"
            if connection.in_login and not (key in api_names() and 0 <= version < _VERSIONS_MAX):
                text = "a frame before the end of a login is no request: it may be a SASL token"
            self.state.report.add("not served", text)
            raise Unanswerable(text)
        try:
            if len(frame) < _LARGE_BYTES:
                request = decode_request(bytes(frame))
            else:
                request = yield from self._decoded(frame, key)
        except ProtocolError as error:
            raise Unanswerable(str(error)) from None
        header = request.header
        client_id = header.client_id or ""
        correlation_id = header.correlation_id
        return Call(connection, key, version, correlation_id, client_id, request.body, now, frame)

    def _decoded(self, frame: bytes | bytearray, key: int) -> Steps:
        """Decode a large request."""
        request, elements = yield from counted(decode_request_in_steps(frame))
        handler = self._handlers.get(key)
        if elements > _ELEMENTS_MAX and not isgeneratorfunction(handler):
            yield from release(request.body)
            name = api_name(key)
            text = f"a {name} with {elements} elements is not served; {_ELEMENTS_MAX} are"
            self.state.report.add("not served", text)
            raise Unanswerable(text)
        return request

    def _handle(self, call: Call) -> Steps:
        """Return the body of the response, or a `Reply`.

        Raises:
            Unanswerable: there is none.
        """
        if call.body is None:
            return versions.refusal(self.state.ranges)
        handler = self._handlers.get(call.api_key)
        try:
            body = handler(self.state, call) if handler else None
            if isinstance(body, Generator):
                body, call.steps = yield from counted(body)
        except RecordingError as error:
            self.state.report.add("not served", str(error))
            raise Unanswerable(str(error)) from None
        if body is None:
            body = self.state.semantic.respond(call)
            if body is not None and handler is None:
                self._follow(call, body)
            body = body or _refusal(call)
        if body is None:
            raise Unanswerable(f"{api_name(call.api_key)} v{call.version} cannot be answered")
        return body

    def _follow(self, call: Call, body: Any) -> None:
        """Do to topics and transactions what a recorded response says: the records in them are the
        state's in every mode."""
        name = api_name(call.api_key) or ""
        if name == "EndTxn" and not body.error_code:
            producers.end_as_recorded(self.state, call)
        elif name == "TxnOffsetCommit" and groups.took_offsets(body):
            producers.commit_as_recorded(self.state, call)
        elif name == "OffsetCommit" and groups.took_offsets(body):
            self.state.check.committing.plainly.add(call.body.group_id)
        elif name in _FOLLOWED:
            results = getattr(body, _FOLLOWED[name])
            if not any(getattr(each, "error_code", 0) for each in results):
                finished(_BY_NAME[name](self.state, call))

    def encoded(self, call: Call, body: Any) -> Steps:
        """Return the response as a frame, in pieces; `body` may still be work.

        Raises:
            Unanswerable: it cannot be encoded in this version.
        """
        if isinstance(body, Generator):
            body, call.steps = yield from counted(body)
        how = call.api_key, call.version, call.correlation_id, body
        try:
            if len(call.frame) < _LARGE_BYTES and call.steps < STEPS_MAX:
                pieces = encode(*how)
            else:
                pieces = yield from encode_in_steps(*how)
                yield from release(body)
                yield from release(call.body)
        except ProtocolError as error:
            raise Unanswerable(f"no response to it: {error}") from None
        if call.api_key in self._handlers:
            return pieces
        frame = b"".join(pieces)
        return [self.state.with_our_addresses(call.connection, call.api_key, call.version, frame)]


def _refusal(call: Call) -> Any | None:
    """Return a response with an error code; None if the API's response has no field for one."""
    shape = items.shape(call.api_key, call.version)
    depth = errors.depth(call.api_key, call.version, None, frozenset())
    if shape is None or depth is None:
        return None
    failure = errors.InjectedError(
        call.api_key, call.version, _UNKNOWN_SERVER_ERROR, _REFUSED, depth
    )
    frame = errors.answer(failure, decode_request(bytes(call.frame)), items.items(shape, call.body))
    return decode_response(frame, call.api_key, call.version).body
