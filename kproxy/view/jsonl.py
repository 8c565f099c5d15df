"""Exchanges as JSON: one object per line, with the keys that filters and columns have too.

Bodies have the fields of their version of Kafka's definition, in snake_case; bytes are base64.
Fields of type `records` become lists of batches with their records; where they cannot be read
they stay base64. A body that is opaque is `{"frame": base64}`: all of it, size prefix included.
What embeds a protocol of its own in bytes (JoinGroup's metadata, say) stays base64.
"""

from __future__ import annotations

import base64
import functools
import json
from typing import Any, cast

from kproxy import protocol
from kproxy.exchange.exchange import SASL_TOKEN, Exchange
from kproxy.protocol import ProtocolError, records, schema


def to_json(exchange: Exchange) -> dict[str, Any]:
    """Return an exchange as plain values; the keys are those of `kproxy show --json`, in order.

    `request` and `response` are None where there is none: acks=0, never answered, not in the
    file; and for SASL tokens without a Kafka header, which are blanked out anyway.
    """
    return {
        "number": exchange.number,
        "time": _iso8601(exchange),
        "connection": exchange.connection,
        "client_address": exchange.client_address,
        "client_id": exchange.client_id,
        "node_id": exchange.node_id,
        "api": exchange.api,
        "api_key": exchange.api_key,
        "api_version": exchange.api_version,
        "correlation_id": exchange.correlation_id,
        "request_bytes": exchange.request_bytes,
        "response_bytes": exchange.response_bytes,
        "broker_ms": exchange.broker_ms,
        "proxy_ms": exchange.proxy_ms,
        "errors": exchange.errors,
        "opaque": exchange.opaque,
        "redacted": exchange.redacted,
        "faults": exchange.faults,
        "request": _body(exchange, schema.REQUEST),
        "response": _body(exchange, schema.RESPONSE),
    }


def to_line(exchange: Exchange) -> str:
    """Return an exchange as one line of JSON, in ASCII, without the line end."""
    return json.dumps(to_json(exchange), allow_nan=False)


def _iso8601(exchange: Exchange) -> str:
    return exchange.time.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _body(exchange: Exchange, direction: str) -> Any:
    if direction == schema.REQUEST:
        message, frame = exchange.request_message, exchange.request_frame
    else:
        message, frame = exchange.response_message, exchange.response_frame
    if message is not None and exchange.api_key is not None:
        plain = protocol.to_json(message)
        _put_batches(message.body, plain, _records_fields(exchange.api_key, direction))
        return plain
    if frame is None or exchange.api == SASL_TOKEN:
        return None
    return {"frame": base64.b64encode(frame).decode("ascii")}


@functools.cache
def _records_fields(api_key: int, direction: str) -> tuple[Any, ...]:
    """The records of a message: ((name, None), (name of a struct or array, fields), …)."""
    message = schema.message(api_key, direction)
    return () if message is None else _records_among(message.fields)


def _records_among(fields: tuple[schema.Field, ...]) -> tuple[tuple[str, Any], ...]:
    found: list[tuple[str, Any]] = []
    for field in fields:
        if field.type == "records":
            found.append((field.name, None))
        elif inner := _records_among(field.fields):
            found.append((field.name, inner))
    return tuple(found)


def _put_batches(body: Any, plain: Any, fields: tuple[Any, ...]) -> None:
    """Replace the base64 of records in `plain`, the plain values of `body`, by batches."""
    for name, inner in fields:
        if name not in plain:
            continue
        value = getattr(body, name)
        if inner is None:
            if value is not None:
                plain[name] = _batches(value, plain[name])
        elif isinstance(value, list):
            for element, plain_element in zip(cast("list[Any]", value), plain[name], strict=True):
                _put_batches(element, plain_element, inner)
        elif value is not None:
            _put_batches(value, plain[name], inner)


def _batches(data: bytes, otherwise: Any) -> Any:
    try:
        return records.to_json(records.batches(data))
    except ProtocolError:
        return otherwise
