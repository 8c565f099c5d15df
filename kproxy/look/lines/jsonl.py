"""Exchanges as JSON: one object per line, with the same names as filter keys and columns.

    Exchanges ──pieces──▶ JSON text, records batch by batch ──▶ out

Bodies come from `exchange.body_json` in pieces, so the JSON of all records of an exchange is never
in memory at once. The end of a connection is a separate object, with `"event": "closed"`.
"""

from __future__ import annotations

import functools
import json
import operator
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any

import attrs

from kproxy.exchange import body_json
from kproxy.exchange.endings import ConnectionEnd
from kproxy.exchange.exchange import FIELDS, Exchange
from kproxy.exchange.fields import ExchangeField, Type
from kproxy.units import moment
from kproxy.wire.protocol import schema
from kproxy.wire.protocol.plain import dumps

_PIECE_CHARACTERS = 64 << 10
KEYS = tuple(each.name for each in FIELDS.values() if each.in_json)
"""The keys of an exchange in the order of writing: the bodies come last."""


def pieces(shown: Exchange | ConnectionEnd, recording: str | None = None) -> Iterator[str]:
    """Yield the line of JSON of an exchange, or of the end of a connection, in pieces of ASCII,
    none of which is much larger than what it is joined of. `recording`, if given, is added as a
    key, and so is an exchange's name.

    Raises: RecordingError.
    """
    of = {} if recording is None else {"recording": recording}
    if isinstance(shown, ConnectionEnd):
        yield f"{dumps(end_json(shown) | of)}\n"
        return
    contents: list[body_json.Content] = []
    line = about(shown)
    for direction in (schema.REQUEST, schema.RESPONSE):
        line[direction] = body_json.body_plain(shown, direction, contents)
    if of:
        line |= of | {"name": shown.name}
    with shown.topic_names.unpacking.of(shown) as together:
        yield from _joined(chain(body_json.pieces(shown, line, contents, together), "\n"))


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
    return {name: read(exchange) for name, read in _READERS}


def _reader(field: ExchangeField) -> Callable[[Exchange], Any]:
    """Return the function that gives the value of a field as JSON has it."""
    # What bodies tell is kept by the exchange; other values are made faster than looked up.
    get = operator.attrgetter(field.name) if field.need.opens_bodies else field.make
    match field.type:
        case Type.TIME:
            return lambda exchange: _iso8601(exchange.time_ns)
        case Type.PARTITIONS:
            return lambda exchange: [each._asdict() for each in get(exchange)]
        case Type.WAITED:
            return lambda exchange: None if get(exchange) is None else attrs.asdict(get(exchange))
        case _:
            return get


_READERS = [(name, _reader(FIELDS[name])) for name in KEYS if FIELDS[name].type is not Type.BODY]


def _iso8601(time_ns: int) -> str:
    second, rest_ns = divmod(time_ns, 1_000_000_000)
    return f"{_second(second)}.{rest_ns // 1000:06}Z"


@functools.lru_cache(maxsize=64)
def _second(second: int) -> str:
    """Return a second since 1970: many exchanges begin in one."""
    return moment(second * 1_000_000_000).isoformat()[: len("1970-01-01T00:00:00")]
