"""The rows of the exchanges that end in a batch, and their columns."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Iterator, Sequence
from typing import Any

import attrs

from kproxy.exchange.entries import ExchangeRow
from kproxy.recording.layout import EXCHANGE_INTEGERS

_CODES = {"int64": "q", "int32": "i", "int16": "h"}
_TYPES = {name: _CODES[kind] for name, kind in EXCHANGE_INTEGERS}
_FIELDS = {name: place for place, name in enumerate(ExchangeRow._fields)}


@attrs.define(eq=False)
class ExchangeTable:
    """Rows, and columns that are made of them when somebody asks."""

    _rows: list[ExchangeRow]
    _columns: dict[str, array[int]] = attrs.field(factory=dict[str, "array[int]"], init=False)

    def __len__(self) -> int:
        return len(self._rows)

    def chosen(self, places: Sequence[int]) -> ExchangeTable:
        """Return a table of the rows at these places alone."""
        if len(places) == len(self):
            return self
        return ExchangeTable([self._rows[at] for at in places])

    def column(self, name: str) -> array[int]:
        """Return a column, named as in `ExchangeRow`; "fault_ids[]" are offsets into these."""
        found = self._columns.get(name)
        if found is None:
            found = self._columns[name] = self._column(name)
        return found

    def _column(self, name: str) -> array[int]:
        if name == "fault_ids":
            return _of_type("i", [each for row in self._rows for each in row.fault_ids])
        if name == "fault_ids[]":
            lengths = (len(row.fault_ids) for row in self._rows)
            return array("i", itertools.accumulate(lengths, initial=0))
        place = _FIELDS[name]
        return _of_type(_TYPES[name], [row[place] for row in self._rows])

    def rows(self) -> Iterator[ExchangeRow]:
        """Yield the rows."""
        return iter(self._rows)

    def row(self, index: int) -> ExchangeRow:
        """Return one row."""
        return self._rows[index]


def _of_type(code: str, values: list[Any]) -> array[int]:
    """Return integers as an array; those of a forged file that have no room are the next ones."""
    try:
        return array(code, values)
    except OverflowError:
        most = (1 << 8 * array(code).itemsize - 1) - 1
        return array(code, [max(-most - 1, min(most, each)) for each in values])
