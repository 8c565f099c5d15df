"""Decodes keys and values into plain values of JSON (`plain`).

    topic, key, value, headers ─▶ a user's decoder ─▶ Kafka's own topics ─▶ schema ─▶ Decoded
                                                                              └─ or Undecoded: why

Invariants: nothing is raised, whatever the bytes and the schema are; the work is bounded by
`DATA_BYTES_MAX` and by what the decoders refuse. Bytes that name no schema are None: they speak for
themselves. JSON is not validated against its schema, whose regular expressions may take for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kproxy.units import format_bytes
from kproxy.wire.payloads.framing import Framed, framed, may_be_number
from kproxy.wire.payloads.internal import TOPICS, decode_internal
from kproxy.wire.payloads.meaning import DATA_BYTES_MAX, Decoded, Undecoded
from kproxy.wire.payloads.own import installed
from kproxy.wire.payloads.plain import PayloadError, SchemaError, parsed
from kproxy.wire.payloads.schemas import Reader, Schema, Schemas

Headers = Sequence[tuple[str, bytes | None]]
_SCHEMA_CHARS_MAX = 2 << 20
_NAME_CHARS_MAX = 200


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
    for own in installed() if schemas.own is None else schemas.own:
        try:
            found = own.decode(topic, part, data, headers)
        except PayloadError as error:
            return Undecoded(str(error))
        if found is not None:
            return Decoded(found, own.name)
    if topic in TOPICS:
        return decode_internal(part, topic, key, value)
    named = framed(part, data, headers)
    return None if named is None else _by_schema(data, named, schemas)


def _by_schema(data: bytes, named: Framed, schemas: Schemas) -> Decoded | Undecoded | None:
    schema_id = named.schema_id
    schema = schemas.find(schema_id)
    if schema is None:
        if may_be_number(len(data)) and not named.in_header and not schemas.any:
            return None
        return Undecoded(f"schema {schema_id} is not in the recording")
    if len(data) > DATA_BYTES_MAX:
        return Undecoded(f"{format_bytes(len(data))} are not decoded")
    try:
        plain, name = schemas.reader(schema_id, _reader)(named)
    except SchemaError as error:
        return Undecoded(f"schema {schema_id} {error}")
    except PayloadError as error:
        return Undecoded(f"not of schema {schema_id}: {error}")
    return Decoded(plain, f"{name}, schema {schema_id}")


def _reader(schema: Schema) -> Reader:
    """Return what reads the bytes of a schema.

    Raises:
        SchemaError: it cannot be used.
    """
    kind = schema.kind
    if kind not in _READERS:
        raise SchemaError("is of an unknown kind")
    if len(schema.definition) + sum([len(t) for _, t in schema.references]) > _SCHEMA_CHARS_MAX:
        raise SchemaError("is too large")
    return _READERS[kind](schema)


# A format is imported when a schema of it is read: most who look at exchanges never do.


def _avro(schema: Schema) -> Reader:
    from kproxy.wire.payloads import avro

    name, read = avro.compiled(schema.definition, schema.references)
    name = f"Avro {name[:_NAME_CHARS_MAX]}"
    return lambda named: (read(named.data), name)


def _protobuf(schema: Schema) -> Reader:
    from kproxy.wire.payloads import protobuf

    return protobuf.compiled(schema.definition)


def _json(schema: Schema) -> Reader:
    return lambda named: (parsed(named.data), "JSON")


_READERS: dict[str, Callable[[Schema], Reader]] = {
    "AVRO": _avro,
    "PROTOBUF": _protobuf,
    "JSON": _json,
}
