"""What a key or a value means, as plain values of JSON.

    topic, key, value, headers ─▶ a user's decoder ─▶ Kafka's own topics ─▶ schema ─▶ Decoded
                                                                              └─ or Undecoded: why

Invariants: nothing is raised, whatever the bytes and the schema are; the work is bounded by
`DATA_BYTES_MAX` and by what the decoders refuse. Bytes that name no schema are None: they speak for
themselves.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import attrs

from kproxy.payloads.framing import Framed, framed
from kproxy.payloads.schemas import Schema, Schemas
from kproxy.units import format_bytes

Headers = Sequence[tuple[str, bytes | None]]
DATA_BYTES_MAX = 1 << 20
"""Larger keys and values are not decoded."""
_LONG_BYTES = 8
"""The size of a number that LongSerializer writes, which may look like an id."""


@attrs.frozen
class Decoded:
    """What some bytes mean."""

    value: Any
    """Plain values of JSON."""
    by: str
    """By what: `Avro shop.Order, schema 17`."""


@attrs.frozen
class Undecoded:
    """Bytes that name a schema, and do not follow it, or it is not to be had."""

    why: str
    """In a few words, for people."""


class PayloadError(ValueError):
    """Bytes do not follow their schema; the message says in a few words why."""


def decode(
    part: str,
    topic: str,
    key: bytes | None,
    value: bytes | None,
    headers: Headers,
    schemas: Schemas,
) -> Decoded | Undecoded | None:
    """Return what a part of a record, `key` or `value`, means; None if it names no schema."""
    data = key if part == "key" else value
    if data is None:
        return None
    from kproxy.payloads.internal import TOPICS, decode_internal  # it needs this module

    if topic in TOPICS:
        return decode_internal(part, topic, key, value)
    found = framed(part, data, headers)
    if found is None:
        return None
    schema = schemas.find(found.schema_id)
    if schema is None:
        if len(data) == _LONG_BYTES and not found.in_header and not schemas.any:
            return None
        return Undecoded(f"schema {found.schema_id} is not in the recording")
    if len(data) > DATA_BYTES_MAX:
        return Undecoded(f"{format_bytes(len(data))} are not decoded")
    decoder = _DECODERS.get(schema.kind)
    if decoder is None:
        return Undecoded(f"schema {found.schema_id} is of an unknown kind")
    try:
        plain, name = decoder(schema, found)
    except PayloadError as error:
        return Undecoded(f"not of schema {found.schema_id}: {error}")
    return Decoded(plain, f"{name}, schema {found.schema_id}")


def _json(schema: Schema, given: Framed) -> tuple[Any, str]:
    try:
        return json.loads(given.data), "JSON"
    except (ValueError, RecursionError) as error:
        raise PayloadError("it is no JSON") from error


_DECODERS: dict[str, Callable[[Schema, Framed], tuple[Any, str]]] = {"JSON": _json}
