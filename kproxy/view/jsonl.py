"""Exchanges as JSON: one object per line, with the same names as filter keys and columns.

    Exchanges ──pieces──▶ JSON text, records batch by batch ──▶ out

Bodies come from `exchange.body_json` in pieces, so the JSON of all records of an exchange is never
in memory at once. The end of a connection is a separate object, with `"event": "closed"`.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from json.encoder import encode_basestring_ascii as _text
from typing import Any

import attrs

from kproxy.exchange.body_facts import BodyFacts, DecodedFacts
from kproxy.exchange.body_json import body_pieces
from kproxy.exchange.derived import UNKNOWN, Durations
from kproxy.exchange.endings import ConnectionEnd, Unanswered
from kproxy.exchange.entities import TopicPartition
from kproxy.exchange.exchange import FIELDS, Exchange
from kproxy.exchange.fields import (
    BodyFact,
    Duration,
    ExchangeField,
    Flag,
    HeaderColumn,
    RowColumn,
    Type,
)
from kproxy.protocol import schema
from kproxy.protocol.source import Source
from kproxy.units import moment

_PIECE_CHARACTERS = 64 << 10


def pieces(shown: Exchange | ConnectionEnd, recording: str | None = None) -> Iterator[str]:
    """Yield the line of JSON of an exchange, or of the end of a connection, in pieces of ASCII,
    none of which is much larger than what it is joined of. `recording`, if given, is added as a
    key, and so is an exchange's name.

    Raises: RecordingError.
    """
    if isinstance(shown, ConnectionEnd):
        of = {} if recording is None else {"recording": recording}
        yield f"{_dumps(end_json(shown) | of)}\n"
        return
    head, end = _about_writer()(shown), _end(shown, recording)
    with shown.topic_names.unpacking.of(shown) as together:
        request = body_pieces(shown, schema.REQUEST, together)
        response = body_pieces(shown, schema.RESPONSE, together)
        yield from _joined(
            chain((head, ', "request": '), request, (', "response": ',), response, (end,))
        )


def _joined(pieces: Iterable[str]) -> Iterator[str]:
    """Yield pieces in larger ones."""
    text, characters = list[str](), 0
    for piece in pieces:
        text.append(piece)
        characters += len(piece)
        if characters > _PIECE_CHARACTERS:
            yield "".join(text)
            text, characters = [], 0
    yield "".join(text)


def _end(exchange: Exchange, recording: str | None) -> str:
    if recording is None:
        return "}\n"
    return f", {_dumps({'recording': recording, 'name': exchange.name})[1:]}\n"


def to_line(exchange: Exchange) -> str:
    """Return an exchange as one line of JSON, in ASCII, without the line end."""
    return "".join(pieces(exchange)).removesuffix("\n")


def to_json(exchange: Exchange) -> dict[str, Any]:
    """Return an exchange as plain values; the keys are those of `kproxy show --json`, in order.

    `request` and `response` are None if the recording has none (acks=0, never answered, not in the
    file), and for SASL tokens without a Kafka header, which are blanked out anyway.
    """
    return json.loads(to_line(exchange))


def end_json(end: ConnectionEnd) -> dict[str, Any]:
    """Return the end of a connection as plain values."""
    first = end.first
    return {
        "event": "closed",
        "time": _iso8601(end.time_ns),
        "connection": end.connection,
        "client_address": end.client_address,
        "node_id": end.node_id,
        "first": None if first is None else first.side,
        "reason": end.reason,
        "ends": [
            {"side": each.side, "how": each.how, "time": _iso8601(each.time_ns)}
            for each in end.ends
        ],
    }


def about(exchange: Exchange) -> dict[str, Any]:
    """Return an exchange as plain values, without its bodies."""
    return json.loads(_about_writer()(exchange) + "}")


def _text_or_null(text: str | None) -> str:
    return "null" if text is None else _text(text)


def _number(value: float | None) -> str:
    return "null" if value is None else repr(value)


def _texts(texts: list[str]) -> str:
    return f"[{', '.join(map(_text, texts))}]"


def _partitions(partitions: list[TopicPartition]) -> str:
    found = [
        f'{{"topic": {_text(topic)}, "partition": {partition}}}' for topic, partition in partitions
    ]
    return f"[{', '.join(found)}]"


def _waited(waited: Unanswered | None) -> str:
    return "null" if waited is None else _dumps(attrs.asdict(waited))


def _time(time_ns: int) -> str:
    return f'"{_second(time_ns // 1_000_000_000)}.{time_ns // 1000 % 1_000_000:06}Z"'


def _iso8601(time_ns: int) -> str:
    return _time(time_ns)[1:-1]


@functools.lru_cache(maxsize=64)
def _second(second: int) -> str:
    """Return a second since 1970 up to its decimal point: many exchanges begin in one."""
    return moment(second * 1_000_000_000).isoformat()[: len("1970-01-01T00:00:00")]


_WRITE: dict[Type, Callable[[Any], str]] = {
    Type.INT16: _number,
    Type.INT32: _number,
    Type.INT64: _number,
    Type.FLOAT: _number,
    Type.BOOL: ("false", "true").__getitem__,
    Type.TEXT: _text_or_null,
    Type.TEXTS: _texts,
    Type.TIME: _time,
    Type.PARTITIONS: _partitions,
    Type.WAITED: _waited,
}
KEYS = tuple(each.name for each in FIELDS.values() if each.in_json)
"""The keys of an exchange in the order of writing: the bodies come last."""


_USUAL = {
    "errors": "[]",
    "error_messages": "[]",
    "routine": "false",
    "opaque": "false",
    "redacted": "false",
    "injected": "false",
    "truncated": "false",
    "undelivered": "false",
    "faults": "[]",
    "unanswered": "null",
}
"""The last keys of an exchange, with the values that most have: these are written as they are."""


def _is_usual(exchange: Exchange, facts: BodyFacts | DecodedFacts) -> bool:
    """Return whether the last keys of an exchange are known to have their usual values.

    Invariant: where this is true, each key of `_USUAL` has that value, so whatever the values of
    these keys depend on is asked here. (test_usual_values_are_those_that_would_be_written)
    """
    row = exchange.row
    return not (
        row.request_flags or row.response_flags or row.fault_ids or not row.response_sent_ns
        or type(facts) is not BodyFacts or facts.errors or facts.error_messages
        or exchange.unanswered is not None
    )  # fmt: skip


@functools.cache
def _about_writer() -> Callable[[Exchange], str]:
    """Return the function that writes all keys before the bodies: one expression over the row, as
    calls for each key would be most of the time."""
    source = Source(namespace={"UNKNOWN": UNKNOWN, "is_usual": _is_usual})
    wanted = {name: FIELDS[name] for name in KEYS if FIELDS[name].type is not Type.BODY}
    first = [field for name, field in wanted.items() if name not in _USUAL]
    last = [wanted[name] for name in _USUAL]
    usual = "".join(f', "{name}": {value}' for name, value in _USUAL.items())
    with source.block("def about(exchange):"):
        source("row, named = exchange.row, exchange.named")
        source(f"{', '.join(Durations._fields)} = exchange.durations")
        source("facts = exchange.facts")
        source(f"text = {_members(source, first)}")
        source(f"if is_usual(exchange, facts): return '{{' + text + {usual!r}")
        source("flags = row.request_flags | row.response_flags")
        source(f"return '{{' + text + ', ' + {_members(source, last)}")
    return source.build("JSON of exchanges", "about")


def _members(source: Source, fields: Iterable[ExchangeField]) -> str:
    """Return an expression for the members of a JSON object that fields become."""
    form = ", ".join(f'"{field.name}": %s' for field in fields)
    return f"{form!r} % ({', '.join([_value(source, field) for field in fields])},)"


def _value(source: Source, field: ExchangeField) -> str:
    """Return an expression for the JSON of a field."""
    match field.source:
        case RowColumn(none=None):
            return f"row.{field.name}"
        case RowColumn(none=none):
            return f"'null' if row.{field.name} == {none} else row.{field.name}"
        case HeaderColumn():
            return f"row.{field.name} if named else 'null'"
        case Flag(flag=flag):
            return f"'true' if flags & {flag} else 'false'"
        case Duration(column=column) if column in Durations._fields:
            # Most of them are zero.
            return f"'0.0' if not {column} else 'null' if {column} == UNKNOWN else {column} / 1000"
        case BodyFact():
            write = source.constant(f"write_{field.type.name}", _WRITE[field.type])
            text = f"{write}(facts.{field.name})"
            is_list = field.type in (Type.TEXTS, Type.PARTITIONS)
            return f"{text} if facts.{field.name} else '[]'" if is_list else text
        case _:
            write = source.constant(f"write_{field.type.name}", _WRITE[field.type])
            if field.type is Type.TIME:
                return f"{write}(exchange.{field.name}_ns)"
            # Values out of bodies are cached by the exchange; others are computed faster than
            # looked up.
            if field.need.opens_bodies:
                return f"{write}(exchange.{field.name})"
            return f"{write}({source.value('read', field.make)}(exchange))"


_dumps = json.JSONEncoder(allow_nan=False).encode
