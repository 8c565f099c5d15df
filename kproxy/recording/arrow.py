"""Arrow's encoding of tables, written without a library (arrow.apache.org, IPC format).

A stream of Arrow is a schema message and record batches, encapsulated alike::

    ff ff ff ff · size of the metadata i32 · metadata (a flatbuffer) · body

The body of a record batch holds the buffers of its columns one behind the other, each from a
multiple of 8 on. The metadata says where they are, and how many values there are. For one schema
all metadata are alike but for these integers, so that a single `struct` call makes them.

Invariants: no value is null, so validity buffers are absent. What this module writes has one legal
form, and it reads nothing else: the metadata must be the schema's own, every buffer must be where
it belongs, every list's offsets must be in order and end where its values do. A crafted file gives
an error and nothing worse.
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Sequence
from typing import Literal

import attrs

from kproxy.recording.arrow_schema import (
    ALIGNMENT,
    CONTINUATION,
    PREFIX,
    VERSION_5,
    ArrowField,
    schema_message,
)

Buffer = bytes | memoryview

Code = Literal["b", "h", "i", "q"]
CODES: dict[str, Code] = {"int8": "b", "int16": "h", "int32": "i", "int64": "q"}
"""Types of integers, and their codes of `struct`, `array` and `memoryview`."""

_ZEROS_MAX = 1 << 20
"""Up to this size offsets are compared with zeros at once: most lists are empty."""

_RECORD_BATCH = 3
"""The number of a RecordBatch message in Arrow's schema."""


@attrs.frozen
class Column:
    """One buffer of a record batch."""

    name: str
    """The path of its field, "splices.offset"; offsets have "[]" behind it."""
    code: Code | Literal[""]
    """The type of its integers; "" for bytes."""
    node: int
    """The field node that holds its number of values."""
    divides: str = ""
    """For offsets, the lists that they divide: "values" of the fields that follow, or "bytes"."""


class Schema:
    """The columns of a table, and how its record batches are encoded."""

    def __init__(self, *fields: ArrowField) -> None:
        self.fields = fields
        self.columns: list[Column] = []
        """The columns, in the order in which `encode` takes them."""
        self.spans: list[range] = []
        """The range of columns of each field."""
        self._nodes: list[int | None] = []
        """For each field node, the node with as many values; None where offsets give the number."""
        self._places: list[int] = []
        """For each column, its buffer in the record batch: the others are of validity."""
        self._buffers = 0
        for field in fields:
            first = len(self.columns)
            self._flatten(field, field.name, 0)
            self.spans.append(range(first, len(self.columns)))
        nodes, buffers = len(self._nodes), self._buffers
        self._metadata = struct.Struct(f"<I6HiIqhB5x5H2xiqII4xI{2 * nodes}q4xI{2 * buffers}q")
        self._body_starts = PREFIX.size + self._metadata.size
        self.message = schema_message(fields)
        """The schema as an encapsulated message."""

    def _flatten(self, field: ArrowField, path: str, like: int | None) -> None:
        node = self._node(like)
        if field.many:
            self._column(Column(f"{path}[]", "i", node, "values"))
            node = self._node(None)
        if isinstance(field.type, tuple):
            for child in field.type:
                self._flatten(child, f"{path}.{child.name}", node)
        elif field.type == "binary":
            self._column(Column(f"{path}[]", "i", node, "bytes"))
            self._column(Column(path, "", node))
        else:
            self._column(Column(path, CODES[field.type], node))

    def _node(self, like: int | None) -> int:
        self._nodes.append(like)
        self._buffers += 1
        return len(self._nodes) - 1

    def _column(self, column: Column) -> None:
        self.columns.append(column)
        self._places.append(self._buffers)
        self._buffers += 1

    def encode(
        self, lengths: Sequence[int], values: Sequence[bytes | bytearray], pieces: Sequence[Buffer]
    ) -> tuple[list[Buffer], int]:
        """Return a record batch as buffers that follow each other, and their size.

        `lengths` has the number of values of each field node, `values` the columns but the last,
        which is `pieces` that are not copied.
        """
        body: list[bytes | bytearray] = []
        places = [0] * (2 * self._buffers)
        at = 0
        for buffer, value in zip(self._places, values, strict=False):
            size = len(value)
            places[2 * buffer : 2 * buffer + 2] = at, size
            body.append(value)
            if gap := -size % ALIGNMENT:
                body.append(bytes(gap))
                size += gap
            at += size
        size = sum(map(len, pieces))
        places[-2:] = at, size
        gap = -size % ALIGNMENT
        at += size + gap
        metadata = self._metadata.pack(*self._metadata_values(at, lengths, places))
        head = b"".join((PREFIX.pack(CONTINUATION, len(metadata)), metadata, *body))
        return [head, *pieces, bytes(gap)], self._body_starts + at

    def _metadata_values(
        self, body_bytes: int, lengths: Sequence[int], places: Sequence[int]
    ) -> list[int]:
        """Return the integers of a record batch's metadata: a Message with a RecordBatch.

        Between them stand the offsets that make a flatbuffer of it: of the two tables, their
        vtables, and the vectors of field nodes (length, nulls) and buffers (offset, length).
        """
        nodes, buffers = len(self._nodes), self._buffers
        values = [16, 12, 24, 16, 18, 4, 8, 12, 32, body_bytes, VERSION_5, _RECORD_BATCH]
        values += (10, 20, 4, 12, 16, 12, lengths[0], 12, 16 * nodes + 16, nodes)
        for length in lengths:
            values += (length, 0)
        values.append(buffers)
        values += places
        return values

    def decode(self, data: memoryview) -> list[memoryview]:
        """Return the columns of a record batch, in the order of `columns`.

        Raises: ValueError, when it is not exactly what `encode` makes.
        """
        start = self._body_starts
        if len(data) < start or PREFIX.unpack_from(data) != (CONTINUATION, self._metadata.size):
            raise ValueError("its metadata are not those of this table")
        found = self._metadata.unpack_from(data, PREFIX.size)
        nodes = len(self._nodes)
        lengths = found[_FIXED : _FIXED + 2 * nodes : 2]
        places = found[_FIXED + 2 * nodes + 1 :]
        if min(lengths) < 0 or max(lengths) > len(data):
            raise ValueError("the number of its rows is wrong")
        expected = self._metadata_values(len(data) - start, lengths, places)
        if found != tuple(expected):
            raise ValueError("its metadata are not those of this table")
        return self._columns(data[start:], lengths, places)

    def _columns(
        self, body: memoryview, lengths: Sequence[int], places: Sequence[int]
    ) -> list[memoryview]:
        """Check the number and the place of all values; return the columns."""
        expected = [0] * (2 * self._buffers)
        columns: list[memoryview] = []
        counts: list[int] = []
        given = data_bytes = 0
        at = 0
        for column, buffer in zip(self.columns, self._places, strict=True):
            while len(counts) <= column.node:
                like = self._nodes[len(counts)]
                counts.append(given if like is None else counts[like] if counts else lengths[0])
            size = counts[column.node] + bool(column.divides)
            size = size * struct.calcsize(column.code) if column.code else data_bytes
            content = body[at : at + size]
            if len(content) < size:
                raise ValueError(f"{column.name} runs past the end")
            expected[2 * buffer : 2 * buffer + 2] = at, size
            at += size + -size % ALIGNMENT
            if column.code:
                content = content.cast(column.code)
            if column.divides == "bytes":
                data_bytes = _last_offset(content, column.name)
            elif column.divides:
                given = _last_offset(content, column.name)
            columns.append(content)
        if list(places) != expected or list(lengths) != counts or at != len(body):
            raise ValueError("its buffers are not where they belong")
        return columns


_FIXED = 22
"""The number of integers of the metadata before the field nodes."""


def _last_offset(offsets: memoryview, name: str) -> int:
    """Check that offsets begin at 0 and never fall; return the last one."""
    if offsets.nbytes <= _ZEROS_MAX and offsets.tobytes() == bytes(offsets.nbytes):
        return 0
    values = offsets.tolist()
    if values[0] or not all(map(operator.le, values, values[1:])):
        raise ValueError(f"{name}: its offsets are not in order")
    return values[-1]
