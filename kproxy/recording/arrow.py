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

import functools
import operator
import struct
from collections.abc import Sequence
from typing import Any, Literal

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
_FIXED = "<I6HiIqhB5x5H2xiqII4xI"
"""The metadata of a record batch before its field nodes, as a struct."""
_LAYOUTS_KEPT = 512


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
        self._metadata = struct.Struct(f"{_FIXED}{2 * nodes}q4xI{2 * buffers}q")
        self._body_starts = PREFIX.size + self._metadata.size
        self._numbers = struct.Struct(self._numbers_format())
        """The numbers in a message from which all others follow (`laid_out`)."""
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

    def _numbers_format(self) -> str:
        nodes_at = PREFIX.size + struct.calcsize(_FIXED)
        buffers_at = nodes_at + 16 * len(self._nodes) + 8
        free = [node for node, like in enumerate(self._nodes) if like is None or not node]
        sizes = [
            buffer
            for column, buffer in zip(self.columns, self._places, strict=True)
            if not column.code
        ]
        found, at = "<", 0
        for place in (*(nodes_at + 16 * node for node in free),
                      *(buffers_at + 16 * buffer + 8 for buffer in sizes)):  # fmt: skip
            found += f"{place - at}xq"
            at = place + 8
        return found

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

    def decode(self, data: memoryview) -> ArrowColumns:
        """Return the columns of a record batch, in the order of `columns`.

        Raises: ValueError, when it is not exactly what `encode` makes.
        """
        start = self._body_starts
        if len(data) < start:
            raise ValueError("its metadata are cut off")
        numbers = self._numbers.unpack_from(data)
        if min(numbers) < 0 or max(numbers) > len(data):
            raise ValueError("the number of its rows is wrong")
        layout = _layout(self, numbers)
        if data[:start].tobytes() != layout.head:
            raise ValueError("its metadata are not those of this table")
        if len(data) != layout.end:
            raise ValueError("it runs past the end, or ends before it")
        found = ArrowColumns(data, layout.places)
        for place, last in layout.ends:
            _check_offsets(found[place], last, self.columns[place].name)
        return found

    def laid_out(self, numbers: Sequence[int]) -> _Layout:
        """Return where all is in a record batch with these numbers of rows, of values of each list,
        and of bytes."""
        given = iter(numbers)
        lengths: list[int] = []
        for node, like in enumerate(self._nodes):
            lengths.append(next(given) if like is None or not node else lengths[like])
        found: list[tuple[int, int, Code | Literal["B"]]] = []
        ends: list[tuple[int, int]] = []
        places = [0] * (2 * self._buffers)
        at = 0
        for column, buffer in zip(self.columns, self._places, strict=True):
            if column.code:
                count = lengths[column.node] + bool(column.divides)
                size = count * struct.calcsize(column.code)
            else:
                size = next(given)
                ends.append((len(found) - 1, size))
            if column.divides == "values":
                ends.append((len(found), lengths[column.node + 1]))
            places[2 * buffer : 2 * buffer + 2] = at, size
            start = self._body_starts + at
            found.append((start, start + size, column.code or "B"))
            at += size + -size % ALIGNMENT
        metadata = self._metadata.pack(*self._metadata_values(at, lengths, places))
        head = PREFIX.pack(CONTINUATION, len(metadata)) + metadata
        return _Layout(head, self._body_starts + at, found, ends)


@attrs.frozen(eq=False)
class _Layout:
    """Where all is in a message with certain numbers of values."""

    head: bytes
    """All of it before the body."""
    end: int
    places: Sequence[tuple[int, int, Code | Literal["B"]]]
    """The start and the end of each column, and the type of its values."""
    ends: Sequence[tuple[int, int]]
    """For each column of offsets, the last of them."""


@attrs.frozen(eq=False)
class ArrowColumns(Sequence[memoryview]):
    """The columns of a message, each made when it is asked for: few are, of many."""

    _data: memoryview
    _places: Sequence[tuple[int, int, Code | Literal["B"]]]

    def __getitem__(self, place: Any) -> Any:
        start, end, code = self._places[place]
        return self._data[start:end].cast(code)

    def __len__(self) -> int:
        return len(self._places)


@functools.lru_cache(_LAYOUTS_KEPT)
def _layout(schema: Schema, numbers: tuple[int, ...]) -> _Layout:
    """Return a layout: small batches often have the same numbers of values as others, and making
    one takes longer than all else."""
    return schema.laid_out(numbers)


def _check_offsets(offsets: memoryview, last: int, name: str) -> None:
    """Check that offsets begin at 0, never fall, and end where they should."""
    if not last and offsets.nbytes <= _ZEROS_MAX and offsets.tobytes() == bytes(offsets.nbytes):
        return
    values = offsets.tolist()
    if values[0] or values[-1] != last or not all(map(operator.le, values, values[1:])):
        raise ValueError(f"{name}: its offsets are not in order")
