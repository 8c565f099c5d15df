"""Exchanges as JSON: one object per line, with the keys that filters and columns have too.

    Exchange ──pieces──▶ JSON text, records batch by batch ──▶ out

Bodies are those of `exchange.body_json`: an exchange never stands in memory as a whole with its
records.

The end of a connection is an object of its own, with `"event": "closed"`.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from json.encoder import encode_basestring_ascii as _text
from typing import Any

import attrs

from kproxy.exchange.body_json import allowance, body_pieces
from kproxy.exchange.endings import ConnectionEnd
from kproxy.exchange.exchange import Exchange
from kproxy.protocol import schema
from kproxy.units import moment

_PIECE_CHARACTERS = 64 << 10


def pieces(shown: Exchange | ConnectionEnd) -> Iterator[str]:
    """Yield the line of JSON of an exchange, or of the end of a connection, in pieces of ASCII."""
    if isinstance(shown, ConnectionEnd):
        yield _dumps(end_json(shown))
        return
    text: list[str] = []
    characters = 0
    for piece in _pieces(shown):
        text.append(piece)
        characters += len(piece)
        if characters > _PIECE_CHARACTERS:
            yield "".join(text)
            text, characters = [], 0
    yield "".join(text)


def _pieces(shown: Exchange) -> Iterator[str]:
    shared = allowance(shown)
    yield _about(shown)
    for direction in (schema.REQUEST, schema.RESPONSE):
        yield f', "{direction}": '
        yield from body_pieces(shown, direction, shared)
    yield "}"


def to_line(exchange: Exchange) -> str:
    """Return an exchange as one line of JSON, in ASCII, without the line end."""
    return "".join(pieces(exchange))


def to_json(exchange: Exchange) -> dict[str, Any]:
    """Return an exchange as plain values; the keys are those of `kproxy show --json`, in order.

    `request` and `response` are None where there is none: acks=0, never answered, not in the
    file; and for SASL tokens without a Kafka header, which are blanked out anyway.
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
    """All of an exchange but its bodies."""
    return json.loads(_about(exchange) + "}")


def _about(exchange: Exchange) -> str:
    """The beginning of its line: all that stands before the bodies."""
    row, waited = exchange.row, exchange.unanswered
    partitions = [
        f'{{"topic": {_text(topic)}, "partition": {partition}}}'
        for topic, partition in exchange.partitions
    ]
    return (
        f'{{"number": {row.number}, "time": "{_iso8601(exchange.time_ns)}"'
        f', "connection": {row.connection}'
        f', "client_address": {_text_or_null(exchange.client_address)}'
        f', "client_id": {_text_or_null(exchange.client_id)}'
        f', "node_id": {_number(exchange.node_id)}, "api": {_text_or_null(exchange.api)}'
        f', "api_key": {_number(exchange.api_key)}'
        f', "api_version": {_number(exchange.api_version)}'
        f', "correlation_id": {_number(exchange.correlation_id)}'
        f', "request_bytes": {_number(exchange.request_bytes)}'
        f', "response_bytes": {_number(exchange.response_bytes)}'
        f', "broker_ms": {_number(exchange.broker_ms)}'
        f', "queued_ms": {_number(exchange.queued_ms)}'
        f', "waiting_ms": {_number(exchange.waiting_ms)}'
        f', "service_ms": {_number(exchange.service_ms)}'
        f', "proxy_ms": {_number(exchange.proxy_ms)}'
        f', "topics": {_texts(exchange.topics)}, "partitions": [{", ".join(partitions)}]'
        f', "groups": {_texts(exchange.groups)}'
        f', "transactional_ids": {_texts(exchange.transactional_ids)}'
        f', "errors": {_texts(exchange.errors)}'
        f', "error_messages": {_texts(exchange.error_messages)}'
        f', "opaque": {_TRUTH[exchange.opaque]}, "redacted": {_TRUTH[exchange.redacted]}'
        f', "injected": {_TRUTH[exchange.injected]}, "truncated": {_TRUTH[exchange.truncated]}'
        f', "faults": {_texts(exchange.faults)}'
        f', "unanswered": {"null" if waited is None else _dumps(attrs.asdict(waited))}'
    )


_TRUTH = ("false", "true")


def _text_or_null(text: str | None) -> str:
    return "null" if text is None else _text(text)


def _number(value: float | None) -> str:
    return "null" if value is None else repr(value)


def _texts(texts: list[str]) -> str:
    return f"[{', '.join(map(_text, texts))}]" if texts else "[]"


KEYS = (
    *("number", "time", "connection", "client_address", "client_id", "node_id"),
    *("api", "api_key", "api_version", "correlation_id", "request_bytes", "response_bytes"),
    *("broker_ms", "queued_ms", "waiting_ms", "service_ms", "proxy_ms"),
    *("topics", "partitions", "groups", "transactional_ids", "errors", "error_messages"),
    *("opaque", "redacted", "injected", "truncated", "faults", "unanswered"),
    *("request", "response"),
)
"""The keys of an exchange."""


def _iso8601(time_ns: int) -> str:
    seconds, microseconds = divmod(time_ns // 1000, 1_000_000)
    return f"{_seconds_text(seconds)}.{microseconds:06}Z"


@functools.lru_cache(maxsize=1024)
def _seconds_text(seconds: int) -> str:
    return moment(seconds * 1_000_000_000).isoformat()[: len("1970-01-01T00:00:00")]


_dumps = json.JSONEncoder(allow_nan=False).encode
