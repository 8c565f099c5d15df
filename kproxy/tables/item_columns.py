"""Columns of exchanges, frames, records and notes, from one item at a time.

    Exchange, Note, … ─▶ a row of values ─ some thousands, or 16 MiB ─▶ record batch

Invariant: an item is released after its values were taken, so that memory is bounded by the values
of one record batch, whatever a body expands to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from kproxy.tables import exchange_columns
from kproxy.tables.arrow_types import BYTES, TEXT
from kproxy.tables.views import ViewColumn, schema_of

ROWS_MAX = 4096
BYTES_MAX = 16 << 20
"""Limits of a record batch; of bytes, counting texts and frames, only roughly."""


def batches(
    items: Iterable[Any],
    columns: Sequence[ViewColumn],
    constants: Mapping[str, str],
    schema: pa.Schema | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield items of a view as record batches; `constants` are columns with one value for all."""
    schema = schema_of(columns) if schema is None else schema
    getters = getters_of(columns, constants)
    sized = [at for at, each in enumerate(columns) if each.type in (TEXT, BYTES)]
    rows: list[list[Any]] = []
    size = 0
    for item in items:
        row = [get(item) for get in getters]
        rows.append(row)
        size += sum(len(row[at] or "") for at in sized)
        if len(rows) >= ROWS_MAX or size >= BYTES_MAX:
            yield batch_of(rows, schema)
            rows, size = [], 0
    if rows:
        yield batch_of(rows, schema)


def getters_of(
    columns: Iterable[ViewColumn], constants: Mapping[str, str]
) -> list[Callable[[Any], Any]]:
    """Return the functions that take the values of columns out of an item."""
    return [each.get or (lambda item, value=constants[each.name]: value) for each in columns]


def batch_of(rows: Iterable[Sequence[Any]], schema: pa.Schema) -> pa.RecordBatch:
    """Return rows, at least one, as a record batch."""
    values = zip(*rows, strict=True)
    arrays = [array_of(list(each), field.type) for each, field in zip(values, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def array_of(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Return values as an array; bytes that are no valid Unicode become U+FFFD."""
    try:
        return pa.array(values, kind)
    except UnicodeEncodeError:
        return pa.array(list(map(cleaned, values)), kind)


def cleaned(value: Any) -> Any:
    """Return a value with all its texts as valid Unicode."""
    if isinstance(value, str):
        return exchange_columns.clean(value)
    if isinstance(value, list):
        return list(map(cleaned, value))
    if isinstance(value, dict):
        return {key: cleaned(each) for key, each in value.items()}
    return value
