"""Arrow's message of a schema: which columns a table has, as a flatbuffer.

::

    fields ─▶ schema_message ─▶ ff ff ff ff · size i32 · Message { Schema { Field … } } ─▶ fields_of

A flatbuffer is tables, strings and vectors that refer to each other by offsets: a table begins with
the distance to its vtable, which says where in it each of its fields stands.

Invariants: `fields_of` reads what any writer of Arrow makes of these types; any other bytes give a
ValueError. Every offset is checked before it is followed, and leads on, never back. What comes out
is no larger than some hundreds of columns, however often a part of the bytes is referred to.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any

import attrs

BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
CONTINUATION = 0xFFFFFFFF
PREFIX = struct.Struct("<Ii")
ALIGNMENT = 8

# Numbers of Arrow's own (Message.fbs, Schema.fbs)
VERSION_5 = 4
_SCHEMA = 1
_INT, _BINARY, _LIST, _STRUCT = 2, 4, 12, 13

# Of what is read
_FIELDS_MAX = 400
"""Fields of a schema, fields of structs and lists included."""
_DEPTH_MAX = 8
_NAME_BYTES_MAX = 100


@attrs.frozen
class ArrowField:
    """A column, or a field of a struct."""

    name: str
    type: str | tuple[ArrowField, ...]
    """`int8` … `int64`, `binary`, or the fields of a struct."""
    many: bool = False
    """True if each value is a list of these."""


def schema_message(fields: Sequence[ArrowField]) -> bytes:
    """Return the schema as an encapsulated message."""
    schema: _Node = {1: [_field(field) for field in fields]}
    out = bytearray(4)
    message: _Node = {0: _Scalar("h", VERSION_5), 1: _Scalar("B", _SCHEMA), 2: schema}
    struct.pack_into("<I", out, 0, _put_table(out, message))
    out += bytes(-len(out) % ALIGNMENT)
    return PREFIX.pack(CONTINUATION, len(out)) + out


# ---------------------------------------------------------------- writing


@attrs.frozen
class _Scalar:
    code: str
    value: int


_Node = dict[int, Any]
"""A table of a flatbuffer: its fields by slot: a scalar, a string, a table or a list of tables."""


def _field(field: ArrowField) -> _Node:
    if field.many:
        return _typed(field.name, _LIST, {}, [_field(attrs.evolve(field, name="item", many=False))])
    if isinstance(field.type, tuple):
        return _typed(field.name, _STRUCT, {}, [_field(child) for child in field.type])
    if field.type == "binary":
        return _typed(field.name, _BINARY, {}, [])
    signed = {0: _Scalar("i", BITS[field.type]), 1: _Scalar("B", 1)}
    return _typed(field.name, _INT, signed, [])


def _typed(name: str, number: int, about: _Node, children: list[_Node]) -> _Node:
    return {0: name, 2: _Scalar("B", number), 3: about, 5: children}


def _put(out: bytearray, value: Any) -> int:
    """Append a value that a table refers to; return its place."""
    if isinstance(value, dict):
        return _put_table(out, value)
    out += bytes(-len(out) % 4)
    place = len(out)
    if isinstance(value, str):
        data = value.encode()
        out += struct.pack("<I", len(data)) + data + b"\0"
        return place
    out += struct.pack("<I", len(value)) + bytes(4 * len(value))
    for index, table in enumerate(value):
        at = place + 4 + 4 * index
        struct.pack_into("<I", out, at, _put_table(out, table) - at)
    return place


def _put_table(out: bytearray, fields: _Node) -> int:
    """Append a table, behind its vtable, then all that it refers to; return its place."""
    slots = max(fields, default=-1) + 1
    offsets, inline, referred = [0] * slots, bytearray(4), {}
    for slot, value in fields.items():
        scalar = isinstance(value, _Scalar)
        code = value.code if scalar else "I"
        inline += bytes(-len(inline) % struct.calcsize(code))
        offsets[slot] = len(inline)
        if not scalar:
            referred[len(inline)] = value
        inline += struct.pack(f"<{code}", value.value if scalar else 0)
    out += bytes(-len(out) % 4)
    vtable = len(out)
    inline += bytes(-len(inline) % 4)
    out += struct.pack(f"<{2 + slots}H", 4 + 2 * slots, len(inline), *offsets)
    out += bytes(-len(out) % 4)
    place = len(out)
    struct.pack_into("<i", inline, 0, place - vtable)
    out += inline
    for offset, value in referred.items():
        at = place + offset
        struct.pack_into("<I", out, at, _put(out, value) - at)
    return place


# ---------------------------------------------------------------- reading


def fields_of(message: bytes) -> tuple[ArrowField, ...]:
    """Return the columns that a schema message names.

    Raises: ValueError, when it is no schema, or has types that kproxy does not read.
    """
    if len(message) < PREFIX.size:
        raise ValueError("it is cut off")
    mark, size = PREFIX.unpack_from(message)
    if mark != CONTINUATION or size != len(message) - PREFIX.size:
        raise ValueError("it is no message of Arrow, or cut off")
    return _FlatbufferParser(message[PREFIX.size :]).schema()


@attrs.define(eq=False)
class _FlatbufferParser:
    """Follows the offsets of a flatbuffer; raises ValueError where they lead nowhere."""

    data: bytes
    _fields_left: int = _FIELDS_MAX

    def schema(self) -> tuple[ArrowField, ...]:
        """Read the message, which is all of the data."""
        message = self._followed(0)
        version, kind = self._number("h", message, 0), self._number("B", message, 1)
        if (version, kind) != (VERSION_5, _SCHEMA):
            raise ValueError("it is no schema of Arrow's version 5")
        schema = self._referred(message, 2)
        if self._number("h", schema, 0):
            raise ValueError("its numbers are big-endian")
        fields = tuple(self._field(table, 0) for table in self._tables(schema, 1))
        if len({field.name for field in fields}) < len(fields):
            raise ValueError("two of its columns have one name")
        return fields

    def _field(self, table: int, depth: int) -> ArrowField:
        self._fields_left -= 1
        if self._fields_left < 0 or depth > _DEPTH_MAX:
            raise ValueError(f"it has more than {_FIELDS_MAX} columns, or more levels than any has")
        name = self._name(table)
        kind, about = self._number("B", table, 2), self._referred(table, 3)
        children = tuple(self._field(child, depth + 1) for child in self._tables(table, 5))
        if self._place(table, 4) is None:  # it is no dictionary
            signed = self._number("B", about, 1) if kind == _INT else 0
            bits = self._number("i", about, 0) if signed else 0
            if kind == _INT and f"int{bits}" in BITS:
                return ArrowField(name, f"int{bits}")
            if kind == _BINARY:
                return ArrowField(name, "binary")
            if kind == _STRUCT and children:
                return ArrowField(name, children)
            if kind == _LIST and len(children) == 1 and not children[0].many:
                return ArrowField(name, children[0].type, many=True)
        raise ValueError(f"column {name!r} is of a type that kproxy does not read")

    def _name(self, table: int) -> str:
        start = self._referred(table, 0)
        size = self._read("I", start)
        if size > _NAME_BYTES_MAX or start + 4 + size > len(self.data):
            raise ValueError("it has a column whose name is too long")
        return self.data[start + 4 : start + 4 + size].decode()

    def _tables(self, table: int, slot: int) -> Iterator[int]:
        """Yield the places of the tables in a vector."""
        if self._place(table, slot) is None:
            return
        vector = self._referred(table, slot)
        for nth in range(self._read("I", vector)):
            yield self._followed(vector + 4 + 4 * nth)

    def _number(self, code: str, table: int, slot: int) -> int:
        place = self._place(table, slot)
        return 0 if place is None else self._read(code, place)

    def _referred(self, table: int, slot: int) -> int:
        """Return the place that a field refers to."""
        place = self._place(table, slot)
        if place is None:
            raise ValueError("something is missing in it")
        return self._followed(place)

    def _place(self, table: int, slot: int) -> int | None:
        """Return the place of a field in a table; None if the table lacks it."""
        vtable = table - self._read("i", table)
        size = self._read("H", vtable)
        offset = self._read("H", vtable + 4 + 2 * slot) if 4 + 2 * slot < size else 0
        return table + offset if offset else None

    def _followed(self, place: int) -> int:
        return place + self._read("I", place)

    def _read(self, code: str, place: int) -> int:
        if not 0 <= place <= len(self.data) - struct.calcsize(code):
            raise ValueError("an offset in it leads nowhere")
        return struct.unpack_from(f"<{code}", self.data, place)[0]
