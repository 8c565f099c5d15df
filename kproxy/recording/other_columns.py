"""Tables that another version of kproxy wrote: read as ours, and what is not ours kept.

::

    schema in the file ─▶ TableColumns ─┬▶ columns: ours by name, in our types, with defaults
    message in the file ────────────────┴▶ unknown: what each row says besides ─┐
    message of ours ───────────────────────────────────────────▶ recast ◀───────┘
                                                                   └─▶ message of another schema

Invariant: where the schema is our own, nothing of this costs anything.
"""

from __future__ import annotations

import itertools
import struct
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs

from kproxy.recording.arrow import CODES, ArrowColumns, Buffer, Column, Schema
from kproxy.recording.arrow_schema import BITS, ArrowField, fields_of
from kproxy.recording.layout import DEFAULTS, EXCHANGES, FRAMES, IN_EVERY_FILE, Channel
from kproxy.recording.mcap import CHUNK_BYTES_MAX

Values = Mapping[str, Any]
"""Values of a row in columns that are not ours: integers, bytes, lists, and tuples for structs."""


@attrs.frozen(eq=False)
class _OwnColumns(Mapping[str, memoryview]):
    """The columns of a message in our schema, by name, in our order."""

    _places: Mapping[str, int]
    _found: ArrowColumns

    def __getitem__(self, name: str) -> memoryview:
        return self._found[self._places[name]]

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


class TableColumns:
    """The columns of a table in a file.

    Raises: ValueError, when a required column is missing, or one has another type than ours.
    """

    def __init__(self, topic: str, own: Schema, found: Schema) -> None:
        self.found = found
        """The fields of the file's schema."""
        self.own = own
        self._by_name = {column.name: place for place, column in enumerate(own.columns)}
        self._places: list[int | None] = []
        """For each column of ours, its index in the file."""
        self._row_bytes = sum(struct.calcsize(column.code) for column in own.columns)
        there = {field.name: place for place, field in enumerate(found.fields)}
        for field, span in zip(own.fields, own.spans, strict=True):
            place = there.get(field.name)
            if place is None:
                if field.name in IN_EVERY_FILE:
                    raise ValueError(f"{topic} has no column {field.name}")
                self._places += [None] * len(span)
            elif _alike(field, found.fields[place]):
                self._places += found.spans[place]
            else:
                raise ValueError(f"column {field.name} of {topic} is of another kind than ours")
        names = {field.name for field in own.fields}
        self.unknown_fields = {
            field.name: span
            for field, span in zip(found.fields, found.spans, strict=True)
            if field.name not in names
        }
        self._rows_at = self._by_name["number"]

    def columns(self, message: memoryview) -> Mapping[str, memoryview]:
        """Return our columns of a message, by name, in our order.

        Raises: ValueError, when it is no such table, or has values that do not fit into our
        columns.
        """
        found = self.found.decode(message)
        if self.found is self.own:
            return _OwnColumns(self._by_name, found)
        number = self._places[self._rows_at]
        rows = 0 if number is None else len(found[number])
        if rows * self._row_bytes > CHUNK_BYTES_MAX:
            raise ValueError(f"it has {rows} rows, which are more than any has")
        return {
            column.name: self._default(column, rows)
            if place is None
            else _cast(column, found[place])
            for column, place in zip(self.own.columns, self._places, strict=True)
        }

    def _default(self, column: Column, rows: int) -> memoryview:
        """Return the default values of a column of ours that the file lacks."""
        if column.divides:
            return memoryview(bytes(4 * (rows + 1))).cast("i")
        if not column.code or f"{column.name}[]" in self._by_name:
            return memoryview(b"").cast(column.code or "B")
        return memoryview(array(column.code, [DEFAULTS.get(column.name, 0)]) * rows)

    def unknown(self, message: memoryview) -> list[Values]:
        """Return the values of the other columns, row by row; nothing if there are none.

        Raises: ValueError.
        """
        if not self.unknown_fields:  # which are looked for in every batch
            return []
        found = self.found.decode(message)
        columns = [
            _values(field, map(found.__getitem__, span))
            for field, span in zip(self.found.fields, self.found.spans, strict=True)
            if field.name in self.unknown_fields
        ]
        rows = zip(*columns, strict=True)
        return [dict(zip(self.unknown_fields, row, strict=True)) for row in rows]


def fitting(values: Values, schema: Schema) -> Values:
    """Return the values, as JSON has them, that fit into columns of a schema."""
    return {
        field.name: values[field.name]
        for field in schema.fields
        if field.name in values and _has_room(field, values[field.name])
    }


def _has_room(field: ArrowField, value: object) -> bool:
    if field.many:
        one = attrs.evolve(field, many=False)
        return isinstance(value, list) and all(_has_room(one, each) for each in value)
    if field.type not in BITS or type(value) is not int:
        return False  # JSON has no bytes
    limit = 1 << BITS[field.type] - 1
    return -limit <= value < limit


def _alike(one: ArrowField, other: ArrowField) -> bool:
    both_integers = one.type in BITS and other.type in BITS
    return one.many == other.many and (both_integers or one.type == other.type)


def _cast(column: Column, found: memoryview) -> memoryview:
    """Return a column of a file in our type."""
    if not column.code or found.format == column.code:
        return found
    return memoryview(_array(column.name, column.code, found.tolist()))


def _array(name: str, code: str, values: Sequence[int]) -> array[int]:
    try:
        return array(code, values)
    except OverflowError:
        what = f"{name} has values that are too large for this kproxy: read it with a newer kproxy"
        raise ValueError(what) from None


# ---------------------------------------------------------------- which schema


OWN = {
    channel: TableColumns(channel.topic, schema, schema)
    for channel, schema in {Channel.FRAMES: FRAMES, Channel.EXCHANGES: EXCHANGES}.items()
}


def table_columns(channel: Channel, message: bytes) -> TableColumns:
    """Return the columns of a channel's table by the message of its schema.

    Raises: ValueError.
    """
    own = OWN[channel].found
    if message == own.message:
        return OWN[channel]
    try:
        found = Schema(*fields_of(message))
    except ValueError as error:
        raise ValueError(f"the schema of {channel.topic}: {error}") from None
    return TableColumns(channel.topic, own, found)


def merged(channel: Channel, others: Iterable[TableColumns]) -> Schema:
    """Return a schema of our columns of a channel, and of all other columns in `others`.

    Raises: ValueError, when two of them have different columns of one name.
    """
    own = OWN[channel].found
    fields = {field.name: field for field in own.fields}
    for columns in (each for each in others if each.own is own):
        for field in columns.found.fields:
            if field.name in columns.unknown_fields:
                fields[field.name] = _wider(fields.get(field.name, field), field)
    return own if len(fields) == len(own.fields) else Schema(*fields.values())


def _wider(one: ArrowField, other: ArrowField) -> ArrowField:
    if one == other:
        return one
    if not _alike(one, other):
        raise ValueError(f"its column {one.name} is of another kind than in the files before it")
    return max(one, other, key=lambda field: BITS[str(field.type)])


# ---------------------------------------------------------------- writing


def recast(
    own: Schema, wanted: Schema, parts: Iterable[Buffer], unknown: Mapping[int, Values]
) -> tuple[list[Buffer], int]:
    """Return a message of ours as one of another schema, as buffers, and its size. `unknown` has
    values of some rows in columns that are not ours; for other rows these are 0 or empty.

    Raises: ValueError, when a value is too large for its column.
    """
    columns = own.decode(memoryview(b"".join(parts)))
    count = len(columns[0])
    known = {
        field.name: _values(field, map(columns.__getitem__, span))
        for field, span in zip(own.fields, own.spans, strict=True)
    }
    lengths: list[int] = []
    buffers: list[bytes] = []
    for field in wanted.fields:
        values = known.get(field.name)
        if values is None:
            nothing = _nothing(field)
            rows = (unknown.get(row, {}) for row in range(count))
            values = [row.get(field.name, nothing) for row in rows]
        _add(field, values, lengths, buffers)
    return wanted.encode(lengths, buffers[:-1], buffers[-1:])


def _nothing(field: ArrowField) -> Any:
    if field.many:
        return []
    if isinstance(field.type, tuple):
        return tuple(map(_nothing, field.type))
    return b"" if field.type == "binary" else 0


def _values(field: ArrowField, columns: Iterator[memoryview]) -> list[Any]:
    """Return the values of a field, one for each row, out of its columns."""
    if field.many or field.type == "binary":
        ends = next(columns).tolist()
        items = (
            _values(attrs.evolve(field, many=False), columns)
            if field.many
            else next(columns).tobytes()
        )
        return [items[start:end] for start, end in itertools.pairwise(ends)]
    if isinstance(field.type, tuple):
        return list(zip(*[_values(child, columns) for child in field.type], strict=True))
    return next(columns).tolist()


def _add(
    field: ArrowField, values: Sequence[Any], lengths: list[int], buffers: list[bytes]
) -> None:
    """Append the columns of a field, and the number of values of each of its nodes."""
    lengths.append(len(values))
    if field.many or field.type == "binary":
        ends = itertools.accumulate(map(len, values), initial=0)
        buffers.append(_array(field.name, "i", list(ends)).tobytes())
    if field.many:
        items = list(itertools.chain.from_iterable(values))
        _add(attrs.evolve(field, many=False), items, lengths, buffers)
    elif isinstance(field.type, tuple):
        for nth, child in enumerate(field.type):
            _add(child, [value[nth] for value in values], lengths, buffers)
    elif field.type == "binary":
        buffers.append(b"".join(values))
    else:
        buffers.append(_array(field.name, CODES[field.type], values).tobytes())
