"""Columns of items: exchanges, frames, records and notes, value by value.

    Exchange, Note, … ─▶ a row of values ─ some thousands, or 16 MiB ─▶ record batch

Invariant: an item is let go of when its values are taken, so that memory is bounded by the values
of one record batch, whatever a body expands to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from kproxy.tables import exchange_columns
from kproxy.tables.arrow_types import BYTES, TEXT
from kproxy.tables.views import Column, schema_of

ROWS_MAX = 4096
BYTES_MAX = 16 << 20
"""A record batch has no more rows, and about no more bytes of texts and frames."""


def batches(
    items: Iterable[Any],
    columns: Sequence[Column],
    constants: Mapping[str, str],
    schema: pa.Schema | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of items of a view; `constants` are the columns that are the same in all."""
    schema = schema_of(columns) if schema is None else schema
    getters = getters_of(columns, constants)
    weighed = [at for at, each in enumerate(columns) if each.type in (TEXT, BYTES)]
    rows: list[list[Any]] = []
    size = 0
    for item in items:
        row = [get(item) for get in getters]
        rows.append(row)
        size += sum(len(row[at] or "") for at in weighed)
        if len(rows) >= ROWS_MAX or size >= BYTES_MAX:
            yield batch_of(rows, schema)
            rows, size = [], 0
    if rows:
        yield batch_of(rows, schema)


def getters_of(
    columns: Iterable[Column], constants: Mapping[str, str]
) -> list[Callable[[Any], Any]]:
    """Return what takes the values of columns out of an item."""
    return [each.get or (lambda item, value=constants[each.name]: value) for each in columns]


def batch_of(rows: Iterable[Sequence[Any]], schema: pa.Schema) -> pa.RecordBatch:
    """Return rows, of which there is at least one, as columns."""
    values = zip(*rows, strict=True)
    arrays = [array_of(list(each), field.type) for each, field in zip(values, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def array_of(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Return values as an array; what is no valid Unicode becomes U+FFFD."""
    try:
        return pa.array(values, kind)
    except UnicodeEncodeError:
        return pa.array(list(map(cleaned, values)), kind)


def cleaned(value: Any) -> Any:
    """Return a value whose texts are valid Unicode."""
    if isinstance(value, str):
        return exchange_columns.clean(value)
    if isinstance(value, list):
        return list(map(cleaned, value))
    if isinstance(value, dict):
        return {key: cleaned(each) for key, each in value.items()}
    return value
