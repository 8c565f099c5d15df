"""Shared by the tests of faults: requests and responses of every API, and what rules make of them.

`sample` fills every field of a version with plain values, two elements in each array, so that
items can be told apart; `ask` and `respond` play a connection.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterable
from typing import Any

from kproxy.exchange.entities import TopicNames
from kproxy.proxy.faults import Rules
from kproxy.proxy.verdicts import RequestContext, Verdict
from kproxy.wire.protocol import codec, messages, schema
from kproxy.wire.protocol.codec import Request, Response
from kproxy.wire.protocol.plain import uuid_text
from kproxy.wire.protocol.schema import Layout, Slot

NOW = 1_700_000_000_000_000_000
KINDS = sorted(schema.known_versions())
"""Every (api key, version)."""
LATEST = dict(KINDS)
TOPIC_IDS = {name: uuid.UUID(int=1000 + number) for number, name in enumerate(("a", "b", "c"))}
TOPIC_NAMES = TopicNames()
for _name, _value in TOPIC_IDS.items():
    TOPIC_NAMES.note({"topic_id": uuid_text(_value), "topic": _name})
BROKERS = {1: ("one.example", 9092), 2: ("two.example", 9092), 3: ("three.example", 9092)}


def kind_name(kind: tuple[int, int]) -> str:
    """How a parameter is shown in the name of a test."""
    return f"{schema.api_name(kind[0])}-{kind[1]}"


def hold_for(kinds: Iterable[tuple[int, int]], check: Callable[..., None], *more: Any) -> None:
    """Check every kind; a failure names it. As many parameters take longer than what they test."""
    for kind in kinds:
        try:
            check(kind, *more)
        except Exception as error:
            error.add_note(kind_name(kind))
            raise


def sample(api_key: int, version: int, direction: str = schema.REQUEST) -> Any:
    """A body with something in every field, two elements in every array, no error."""
    message = schema.message(api_key, direction)
    assert message is not None
    return _struct(schema.layout(message, version), itertools.count(1))


def _struct(layout: Layout, numbers: itertools.count[int]) -> Any:
    cls: Any = messages.message_class(layout.message.name)
    if layout.path:
        cls = getattr(cls, layout.name)
    return cls(**{slot.name: _slot(slot, numbers) for slot in layout.slots})


def _slot(slot: Slot, numbers: itertools.count[int]) -> Any:
    if slot.is_array:
        return [_one(slot, numbers) for _ in range(2)]
    return _one(slot, numbers)


def _one(slot: Slot, numbers: itertools.count[int]) -> Any:
    if slot.struct:
        return _struct(slot.struct, numbers)
    number = next(numbers) % 100
    if slot.name.endswith("error_code"):
        return 0
    match slot.kind:
        case "string":
            return f"s{number}"
        case "bytes" | "records":
            return b"b%d" % number
        case "uuid":
            return uuid.UUID(int=number)
        case "bool":
            return False
        case "float64":
            return float(number)
        case _:
            return number


def request_frame(
    api_key: int,
    version: int,
    body: Any,
    correlation_id: int = 7,
    client_id: str | None = "app",
    trailing: bytes = b"",
) -> bytes:
    """The frame of a request."""
    header = messages.RequestHeader(
        api_key=api_key,
        api_version=version,
        correlation_id=correlation_id,
        client_id=client_id,
    )
    return codec.encode_request(Request(header, body, trailing))


def response_frame(
    api_key: int, version: int, body: Any, correlation_id: int = 7, trailing: bytes = b""
) -> bytes:
    """The frame of a response."""
    header = messages.ResponseHeader(correlation_id=correlation_id)
    return codec.encode_response(Response(header, body, version, trailing), api_key)


def context(
    connection: int = 1,
    number: int = 1,
    node_id: int | None = 1,
    topic_names: TopicNames = TOPIC_NAMES,
) -> RequestContext:
    """Where a request comes from."""
    return RequestContext(
        connection, number, node_id, "127.0.0.1:5000", NOW, topic_names, lambda: BROKERS
    )


def ask(rules: Rules, frame: bytes, now: int = NOW, **where: Any) -> Verdict | None:
    """Show a request to the rules, if they want to see it."""
    kind = int.from_bytes(frame[4:6]), int.from_bytes(frame[6:8])
    return rules.on_request(context(**where), frame, now) if rules.wants(*kind) else None


def respond(verdict: Verdict | None, frame: bytes, now: int = NOW + 1_000_000) -> Verdict:
    """What becomes of the broker's response."""
    response = None if verdict is None else verdict.response
    return (response(frame, now) if callable(response) else response) or Verdict()


def answer_body(verdict: Verdict | None, api_key: int, version: int) -> Any:
    """The body of our own response, which must be well formed and respond to request 7."""
    assert verdict is not None and verdict.own_response is not None
    return response_body(frame_of(verdict.own_response), api_key, version)


def frame_of(verdict: Verdict) -> bytes | None:
    """The frame that leaves in place of a response; None: the response as it came, or nothing."""
    return verdict.frames[0] if verdict.frames else None


def response_body(frame: bytes | None, api_key: int, version: int) -> Any:
    """The body of a response frame."""
    assert frame is not None
    response = codec.decode_response(frame, api_key, version)
    assert response.header.correlation_id == 7
    assert codec.encode_response(response, api_key) == frame
    return response.body


def request_body(frame: bytes, key: int | None = None) -> Any:
    """The body of a request frame."""
    return codec.decode_request(frame).body
