"""Record batches, filled value by value.

    Exchange, Note, … ─ a function for each column ─▶ a row ─▶ Rows ─▶ record batch

Invariant: an item is released after its values were taken, so that memory is bounded by the values
of one record batch, whatever a body expands to.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs
import pyarrow as pa

from kproxy.tables.views import ViewColumn, schema_of

ROWS_MAX = 8192
BYTES_MAX = 16 << 20
"""Limits of a record batch; its bytes are counted roughly."""
_TEXTS = (str, bytes)
_UNPAIRED_SURROGATES = re.compile("[\ud800-\udc7f\udd00-\udfff]")
"""Those that do not stand for a byte that is no UTF-8 (`surrogateescape`); JSON can have them."""


@attrs.define(eq=False)
class Rows:
    """The rows of the next record batch."""

    schema: pa.Schema
    _rows: list[Sequence[Any]] = attrs.field(factory=list, init=False)
    _bytes: int = attrs.field(default=0, init=False)
    _sized: list[int] = attrs.field(init=False)
    """The columns whose values have any size."""

    def __attrs_post_init__(self) -> None:
        kinds = enumerate(field.type for field in self.schema)
        self._sized = [at for at, kind in kinds if not pa.types.is_primitive(kind)]

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def full(self) -> bool:
        """True if no more rows should be added."""
        return len(self._rows) >= ROWS_MAX or self._bytes >= BYTES_MAX

    def add(self, row: Sequence[Any]) -> None:
        """Add a row, with a value for each column."""
        self._rows.append(row)
        self._bytes += sum([_size(row[at]) for at in self._sized if row[at]])

    def take(self) -> list[Sequence[Any]]:
        """Return the rows, and begin anew."""
        rows, self._rows, self._bytes = self._rows, [], 0
        return rows


def batches(
    items: Iterable[Any],
    columns: Sequence[ViewColumn],
    constants: Mapping[str, str],
    schema: pa.Schema | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield items of a view as record batches; `constants` are columns with one value for all."""
    getters = getters_of(columns, constants)
    rows = Rows(schema_of(columns) if schema is None else schema)
    for item in items:
        rows.add([get(item) for get in getters])
        if rows.full:
            yield batch_of(rows.take(), rows.schema)
    if len(rows):
        yield batch_of(rows.take(), rows.schema)


def batch_of(rows: Iterable[Sequence[Any]], schema: pa.Schema) -> pa.RecordBatch:
    """Return rows, at least one, as a record batch."""
    columns = zip(zip(*rows, strict=True), schema, strict=True)
    arrays = [_array(values, field.type) for values, field in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def getters_of(
    columns: Iterable[ViewColumn], constants: Mapping[str, str]
) -> list[Callable[[Any], Any]]:
    """Return the functions that take the values of columns out of an item."""
    return [each.value_of or (lambda item, value=constants[each.name]: value) for each in columns]


def _size(value: Any) -> int:
    if isinstance(value, _TEXTS):
        return len(value)
    if isinstance(value, dict):
        value = value.values()
    return sum(map(_size, value)) if hasattr(value, "__iter__") else 8


def _array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    try:
        return pa.array(values, kind)
    except UnicodeEncodeError:
        return pa.array(list(map(cleaned, values)), kind)


def cleaned(value: Any) -> Any:
    """Return a value with valid Unicode in all its texts: bytes that were no UTF-8 are U+FFFD."""
    if isinstance(value, str) and not value.isascii():
        text = _UNPAIRED_SURROGATES.sub("\ufffd", value)
        return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    if isinstance(value, list):
        return list(map(cleaned, value))
    if isinstance(value, dict):
        return {key: cleaned(each) for key, each in value.items()}
    return value
