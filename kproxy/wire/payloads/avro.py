"""Avro: the values that bytes have by the schema that wrote them.

    definition, references ─ compiled ─▶ reader:  bytes ─▶ plain value

A schema becomes nested functions `(data, position, room) -> value, position`, which make plain
values at once. fastavro is what tests compare with. It is no faster up to the JSON text, and it
trusts what it reads: 10 KB of a recursive schema overflow its stack and end the process, six bytes
make a list of any length, a decimal of 1 MB takes minutes.

Invariants: a value has at most `TEXT_CHARS_MAX` of room, which each of its parts takes with what
its name or symbol has, before it is read: a record all of its fields, a block of an array all of
its items; what is recursive takes it when it is met. Where `plain` has no text for a logical type
(a date of the year 10,000), the number stays.
"""

from __future__ import annotations

import base64
import datetime
import json
import struct
import uuid
from collections.abc import Callable
from typing import Any, NamedTuple

import attrs

from kproxy.wire.payloads.plain import (
    DEPTH_MAX,
    TEXT_CHARS_MAX,
    PayloadError,
    SchemaError,
    number,
    parsed,
)

_Read = Callable[[bytes, int, "_Room"], tuple[Any, int]]
_SCALAR = 32
_CONTAINER = 64
"""The room that a value takes, beside texts."""
_DECIMAL_BYTES_MAX = 64
_DECIMAL_SCALE_MAX = 1000


@attrs.define
class _Room:
    """The room that is left to a value."""

    chars: int = TEXT_CHARS_MAX
    depth: int = DEPTH_MAX

    def take(self, chars: int) -> None:
        self.chars -= chars
        if self.chars < 0:
            raise PayloadError("it is too large")


class _CompiledType(NamedTuple):
    """A compiled type."""

    read: _Read
    chars: int
    """The room that it takes without items of arrays and maps, and without what is recursive."""
    depth: int


@attrs.define
class _NamedTypes:
    """The named types of a schema, by their full names; None while one is being defined."""

    types: dict[str, _CompiledType | None] = attrs.Factory(dict)

    def find(self, name: str, namespace: str) -> _CompiledType:
        full = _full_name(name, namespace)
        if full not in self.types:
            full = name
        if full not in self.types:
            raise SchemaError(f"lacks the type {name[:80]}")
        return self.types[full] or _CompiledType(self._recursive(full), _SCALAR, 1)

    def _recursive(self, name: str) -> _Read:
        def read(data: bytes, at: int, room: _Room) -> tuple[Any, int]:
            found = self.types[name]
            assert found is not None
            if room.depth < found.depth:
                raise PayloadError("it is nested too deeply")
            room.depth -= found.depth
            room.take(found.chars)
            value, at = found.read(data, at, room)
            room.depth += found.depth
            return value, at

        return read


def compiled(
    definition: str, references: tuple[tuple[str, str], ...] = ()
) -> tuple[str, Callable[[bytes], Any]]:
    """Return the name of a schema's record or type, and what reads bytes: it returns a plain value,
    or raises PayloadError.

    Raises:
        SchemaError: it is no schema of Avro, or one of values that are too large.
    """
    names = _NamedTypes()
    try:
        for _, text in references:
            _compile(parsed(text.encode()), "", names)
        schema = parsed(definition.encode())
        found = _checked(_compile(schema, "", names))
        name = _name(schema)
    except SchemaError:
        raise
    except (LookupError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise SchemaError("is none of Avro") from error

    def read(data: bytes) -> Any:
        room = _Room(TEXT_CHARS_MAX - found.chars, DEPTH_MAX - found.depth)
        try:
            value, end = found.read(data, 0, room)
        except (IndexError, struct.error) as error:
            raise PayloadError("it ends too early") from error
        except UnicodeDecodeError as error:
            raise PayloadError("a text is not UTF-8") from error
        except RecursionError as error:
            raise PayloadError("it is nested too deeply") from error
        if end != len(data):
            raise PayloadError(f"{len(data) - end} bytes are left over")
        return value

    return name, _bare(read) if found.read is _bytes else read


def _bare(read: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """Return what also reads bytes without their length: where they are all, Confluent's serialiser
    of Java leaves it out, and others do not."""

    def read_bare(data: bytes) -> Any:
        try:
            return read(data)
        except PayloadError:
            return base64.b64encode(data).decode()

    return read_bare


def _name(schema: Any) -> str:
    if isinstance(schema, dict):
        named = schema.get("name")
        if isinstance(named, str):
            return _full_name(named, schema.get("namespace") or "")
        return _name(schema["type"])
    return "union" if isinstance(schema, list) else str(schema)


def _full_name(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


# ---------------------------------------------------------------- schemas


def _compile(schema: Any, namespace: str, names: _NamedTypes) -> _CompiledType:
    if isinstance(schema, str):
        return _PRIMITIVES.get(schema) or names.find(schema, namespace)
    if isinstance(schema, list):
        return _union([_compile(each, namespace, names) for each in schema])
    kind = schema["type"]
    if not isinstance(kind, str):
        return _compile(kind, namespace, names)
    match kind:
        case "record" | "error" | "enum" | "fixed":
            return _named(kind, schema, namespace, names)
        case "array":
            return _checked(_array(_compile(schema["items"], namespace, names)))
        case "map":
            return _checked(_map(_compile(schema["values"], namespace, names)))
    return _logical(schema, _compile(kind, namespace, names))


def _named(kind: str, schema: dict[str, Any], namespace: str, names: _NamedTypes) -> _CompiledType:
    given = schema.get("namespace")
    full = _full_name(schema["name"], namespace if given is None else given)
    names.types[full] = None
    if kind == "enum":
        found = _enum(tuple(schema["symbols"]))
    elif kind == "fixed":
        found = _logical(schema, _fixed(schema["size"]))
    else:
        inner, fields = full.rpartition(".")[0], schema["fields"]
        types = [(_text_of(each["name"]), _compile(each["type"], inner, names)) for each in fields]
        found = _record(types)
    names.types[full] = _checked(found)
    return found


def _text_of(name: Any) -> str:
    if not isinstance(name, str):
        raise TypeError(name)
    return name


def _checked(found: _CompiledType) -> _CompiledType:
    """Return a type, unless no value of it is small enough: sizes may double with each name."""
    if found.depth > DEPTH_MAX or found.chars > TEXT_CHARS_MAX:
        raise SchemaError("makes values that are too large")
    return found


def _record(fields: list[tuple[str, _CompiledType]]) -> _CompiledType:
    reads = [(name, found.read) for name, found in fields]

    def read(data: bytes, at: int, room: _Room) -> tuple[Any, int]:
        value: dict[str, Any] = {}
        for name, read_field in reads:
            value[name], at = read_field(data, at, room)
        return value, at

    chars = sum([len(json.dumps(name)) + found.chars for name, found in fields])
    return _CompiledType(read, _CONTAINER + chars, 1 + max([f.depth for _, f in fields], default=0))


def _union(branches: list[_CompiledType]) -> _CompiledType:
    reads = [each.read for each in branches]
    count = len(reads)

    def read(data: bytes, at: int, room: _Room) -> tuple[Any, int]:
        nth = data[at]
        if nth & 0x81:  # more than one byte, or negative
            nth, at = _long(data, at, room)
        else:
            nth, at = nth >> 1, at + 1
        if not 0 <= nth < count:
            raise PayloadError(f"its union has no branch {nth}")
        return reads[nth](data, at, room)

    chars, depth = max([e.chars for e in branches]), max([e.depth for e in branches])
    return _CompiledType(read, chars, depth)


def _array(item: _CompiledType) -> _CompiledType:
    read_item, chars = item.read, item.chars

    def read(data: bytes, at: int, room: _Room) -> tuple[Any, int]:
        value: list[Any] = []
        while data[at]:
            count, at = _count(data, at, room)
            room.take(count * chars)
            for _ in range(count):
                each, at = read_item(data, at, room)
                value.append(each)
        return value, at + 1

    return _CompiledType(read, _CONTAINER, 1 + item.depth)


def _map(item: _CompiledType) -> _CompiledType:
    read_item, chars = item.read, item.chars + _SCALAR

    def read(data: bytes, at: int, room: _Room) -> tuple[Any, int]:
        value: dict[str, Any] = {}
        while data[at]:
            count, at = _count(data, at, room)
            room.take(count * chars)
            for _ in range(count):
                name, at = _string(data, at, room)
                value[name], at = read_item(data, at, room)
        return value, at + 1

    return _CompiledType(read, _CONTAINER, 1 + item.depth)


def _enum(symbols: tuple[str, ...]) -> _CompiledType:
    chars = max([len(json.dumps(str(each))) for each in symbols])
    symbols = tuple(map(str, symbols))
    count = len(symbols)

    def read(data: bytes, at: int, room: _Room) -> tuple[Any, int]:
        nth, at = _long(data, at, room)
        if not 0 <= nth < count:
            raise PayloadError(f"its enum has no symbol {nth}")
        return symbols[nth], at

    return _CompiledType(read, _SCALAR + chars, 0)


def _fixed(size: int) -> _CompiledType:
    if isinstance(size, bool) or not isinstance(size, int) or size < 0:
        raise SchemaError("has a fixed of no size")

    def read(data: bytes, at: int, room: _Room) -> tuple[Any, int]:
        raw, at = _cut(data, at, size)
        return base64.b64encode(raw).decode(), at

    return _CompiledType(read, _SCALAR, 0)


# ---------------------------------------------------------------- values


def _long(data: bytes, at: int, room: _Room) -> tuple[int, int]:
    byte = data[at]
    at += 1
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), at
    found, shift = byte & 0x7F, 7
    while byte & 0x80:
        byte = data[at]
        at += 1
        found |= (byte & 0x7F) << shift
        shift += 7
        if found >> 64:
            raise PayloadError("a number is too long")
    if shift > 70:
        raise PayloadError("a number is too long")
    return (found >> 1) ^ -(found & 1), at


def _int(data: bytes, at: int, room: _Room) -> tuple[int, int]:
    found, at = _long(data, at, room)
    if not -0x80000000 <= found <= 0x7FFFFFFF:
        raise PayloadError("an int is too large")
    return found, at


def _count(data: bytes, at: int, room: _Room) -> tuple[int, int]:
    """Return the count of a block of items; a negative one has the block's size behind it."""
    count, at = _long(data, at, room)
    if not count:  # in more than one byte
        raise PayloadError("a number is too long")
    if count < 0:
        _, at = _long(data, at, room)
    return abs(count), at


def _cut(data: bytes, at: int, size: int) -> tuple[bytes, int]:
    end = at + size
    if size < 0 or end > len(data):
        raise PayloadError("it ends too early")
    return data[at:end], end


def _string(data: bytes, at: int, room: _Room) -> tuple[str, int]:
    size = data[at]
    if size & 0x81:  # more than one byte, or negative
        size, at = _long(data, at, room)
    else:
        size, at = size >> 1, at + 1
    end = at + size
    if size < 0 or end > len(data):
        raise PayloadError("it ends too early")
    return data[at:end].decode(), end


def _raw(data: bytes, at: int, room: _Room) -> tuple[bytes, int]:
    size, at = _long(data, at, room)
    return _cut(data, at, size)


def _bytes(data: bytes, at: int, room: _Room) -> tuple[str, int]:
    raw, at = _raw(data, at, room)
    return base64.b64encode(raw).decode(), at


def _null(data: bytes, at: int, room: _Room) -> tuple[None, int]:
    return None, at


def _boolean(data: bytes, at: int, room: _Room) -> tuple[bool, int]:
    if data[at] > 1:
        raise PayloadError("a boolean is neither 0 nor 1")
    return data[at] == 1, at + 1


_FLOAT = struct.Struct("<f").unpack_from
_DOUBLE = struct.Struct("<d").unpack_from


def _float(data: bytes, at: int, room: _Room) -> tuple[Any, int]:
    return number(_FLOAT(data, at)[0]), at + 4


def _double(data: bytes, at: int, room: _Room) -> tuple[Any, int]:
    return number(_DOUBLE(data, at)[0]), at + 8


_PRIMITIVES = {
    "null": _CompiledType(_null, _SCALAR, 0),
    "boolean": _CompiledType(_boolean, _SCALAR, 0),
    "int": _CompiledType(_int, _SCALAR, 0),
    "long": _CompiledType(_long, _SCALAR, 0),
    "float": _CompiledType(_float, _SCALAR, 0),
    "double": _CompiledType(_double, _SCALAR, 0),
    "bytes": _CompiledType(_bytes, _SCALAR, 0),
    "string": _CompiledType(_string, _SCALAR, 0),
}


# ---------------------------------------------------------------- logical types


def _logical(schema: dict[str, Any], found: _CompiledType) -> _CompiledType:
    """Return a type with the texts of its logical type; unknown ones have none, as Avro has it."""
    kind, logical = schema["type"], schema.get("logicalType")
    if logical == "decimal" and kind in ("bytes", "fixed"):
        return _decimal(schema, found)
    if (logical, kind) == ("uuid", "fixed") and schema["size"] == 16:
        return _CompiledType(_uuid, _SCALAR, 0)
    if kind in ("int", "long") and isinstance(logical, str) and logical in _TEXTS:
        return _CompiledType(_worded(found.read, _TEXTS[logical]), _SCALAR, 0)
    return found


def _worded(read_number: _Read, text: Callable[[int], str]) -> _Read:
    def read(data: bytes, at: int, room: _Room) -> tuple[Any, int]:
        found, at = read_number(data, at, room)
        try:
            return text(found), at
        except (OverflowError, ValueError):
            return found, at

    return read


_EPOCH = datetime.datetime.fromisoformat("1970-01-01")
_EPOCH_DAY = _EPOCH.toordinal()


def _millis(value: int) -> str:
    return (_EPOCH + datetime.timedelta(0, 0, 0, value)).isoformat("T", "milliseconds")


def _micros(value: int) -> str:
    return (_EPOCH + datetime.timedelta(0, 0, value)).isoformat("T", "microseconds")


def _nanos(value: int) -> str:
    return f"{_micros(value // 1000)}{value % 1000:03}"


def _of_day(value: int, text: Callable[[int], str], day: int) -> str:
    if not 0 <= value < day:
        raise ValueError
    return text(value)[11:]


_TEXTS: dict[str, Callable[[int], str]] = {
    "date": lambda days: datetime.date.fromordinal(_EPOCH_DAY + days).isoformat(),
    "time-millis": lambda value: _of_day(value, _millis, 86_400_000),
    "time-micros": lambda value: _of_day(value, _micros, 86_400_000_000),
    "timestamp-millis": lambda value: _millis(value) + "Z",
    "timestamp-micros": lambda value: _micros(value) + "Z",
    "timestamp-nanos": lambda value: _nanos(value) + "Z",
    "local-timestamp-millis": _millis,
    "local-timestamp-micros": _micros,
    "local-timestamp-nanos": _nanos,
}


def _uuid(data: bytes, at: int, room: _Room) -> tuple[str, int]:
    raw, at = _cut(data, at, 16)
    return str(uuid.UUID(bytes=raw)), at


def _decimal(schema: dict[str, Any], found: _CompiledType) -> _CompiledType:
    scale, size = schema.get("scale", 0), schema["size"] if schema["type"] == "fixed" else 0
    if not isinstance(scale, int) or not 0 <= scale <= _DECIMAL_SCALE_MAX:
        return found
    if size > _DECIMAL_BYTES_MAX:
        return found

    def read(data: bytes, at: int, room: _Room) -> tuple[str, int]:
        raw, at = _cut(data, at, size) if size else _raw(data, at, room)
        if len(raw) > _DECIMAL_BYTES_MAX:
            raise PayloadError("a decimal is too long")
        unscaled = int.from_bytes(raw, "big", signed=True)
        digits = str(abs(unscaled)).zfill(scale + 1)
        text = f"{digits[:-scale]}.{digits[-scale:]}" if scale else digits
        return f"-{text}" if unscaled < 0 else text, at

    return _CompiledType(read, _SCALAR + scale + 3 * _DECIMAL_BYTES_MAX, 0)
