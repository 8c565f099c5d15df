"""Filter terms answered from a table of exchanges, column by column.

Invariant: a row is never NO if its exchange matches, nor YES if it does not.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from kproxy.exchange.entries import NO_API, SASL_TOKEN
from kproxy.exchange.filter.values import ABSOLUTE, Glob, Range, TimeRange, Value
from kproxy.exchange.meanings import Meaning, apis_with
from kproxy.exchange.row_verdicts import MAYBE, NO, UNKNOWN_TEXT, YES, Columns
from kproxy.protocol import schema

ColumnDecision = Callable[[Columns, Sequence[Value]], bytes | None]
"""A function that returns the verdicts of all rows on a term with these values; None where columns
are missing."""


def either(verdicts: Sequence[bytes]) -> bytes:
    """Return the verdicts of an `or` of terms."""
    return _combined(verdicts, int.__or__)


def both(verdicts: Sequence[bytes]) -> bytes:
    """Return the verdicts of an `and` of terms."""
    return _combined(verdicts, int.__and__)


def _combined(verdicts: Sequence[bytes], operation: Callable[[int, int], int]) -> bytes:
    if len(verdicts) == 1:
        return verdicts[0]
    # As one large number: a million rows take a millisecond.
    numbers = (int.from_bytes(each) for each in verdicts)
    return functools.reduce(operation, numbers).to_bytes(len(verdicts[0]))


def _bounds(value: Value) -> tuple[int, int]:
    if not isinstance(value, Range):
        raise ValueError(f"{value} names a recording, and which one this is, is not known")
    return (
        -(1 << 64) if value.low is None else value.low,
        1 << 64 if value.high is None else value.high,
    )


def numbers(name: str, none: int | None = None) -> ColumnDecision:
    """Decide by a column of numbers, where `none` stands for no number."""

    def decide(columns: Columns, values: Sequence[Value]) -> bytes | None:
        column = columns.get(name)
        if column is None:
            spans = columns.get("numbers") if name == "number" else None
            return None if spans is None else _of_spans(spans, list(map(_bounds, values)))
        found: list[bytes] = []
        for low, high in map(_bounds, values):
            found.append(bytes([YES if low <= v <= high and v != none else NO for v in column]))
        return either(found)

    return decide


def header_numbers(name: str) -> ColumnDecision:
    """Decide by a column of numbers that only requests with a header have."""

    def decide(columns: Columns, values: Sequence[Value]) -> bytes | None:
        found = numbers(name)(columns, values)
        keys = columns.get("api_key")
        if found is None or keys is None:
            return None
        return both([found, bytes([NO if key == NO_API else YES for key in keys])])

    return decide


def durations(name: str) -> ColumnDecision:
    """Decide by a column of microseconds, where negative ones stand for none."""

    def decide(columns: Columns, values: Sequence[Value]) -> bytes | None:
        column = columns.get(name)
        if column is None:
            return None
        found: list[bytes] = []
        for low, high in map(_bounds, values):
            wanted = range(max(0, -(-low // 1000)), high // 1000 + 1)
            found.append(bytes([YES if v in wanted else NO for v in column]))
        return either(found)

    return decide


def parts_of_duration(name: str) -> ColumnDecision:
    """Rule out exchanges that took less than a part of their time may be."""

    def decide(columns: Columns, values: Sequence[Value]) -> bytes | None:
        column = columns.get(name)
        if column is None:
            return None
        least = min(-(-low // 1000) for low, _ in map(_bounds, values))
        return bytes([MAYBE if v >= least else NO for v in column])

    return decide


def times(columns: Columns, values: Sequence[Value]) -> bytes | None:
    """Decide by when the request arrived."""
    column = columns.get("time_ns")
    ranges = [value for value in values if isinstance(value, TimeRange)]
    if column is None:
        spans = columns.get("times_ns")
        absolute = all(each.kind == ABSOLUTE for each in ranges)
        return _of_spans(spans, map(_time_bounds, ranges)) if spans and absolute else None
    return either([_time_verdicts(column, each) for each in ranges])


def _time_verdicts(column: Sequence[int], wanted: TimeRange) -> bytes:
    if wanted.kind != ABSOLUTE:
        return bytes([YES if wanted.matches(v // 1000 * 1000) else NO for v in column])
    low, high = _time_bounds(wanted)
    return bytes([YES if low <= v <= high else NO for v in column])


def _time_bounds(wanted: TimeRange) -> tuple[int, int]:
    # An exchange has whole microseconds of its time.
    low = -1 if wanted.low_ns is None else -(-wanted.low_ns // 1000) * 1000
    high = 1 << 64 if wanted.high_ns is None else wanted.high_ns // 1000 * 1000 + 999
    return low, high


def _of_spans(spans: Sequence[tuple[int, int]], bounds: Iterable[tuple[int, int]]) -> bytes:
    """Decide by the least and greatest value that each row may have."""
    return either([bytes([_of_span(span, *each) for span in spans]) for each in bounds])


def _of_span(span: tuple[int, int], low: int, high: int) -> int:
    if span[1] < low or high < span[0]:
        return NO
    return YES if low <= span[0] and span[1] <= high else MAYBE


def column_texts(name: str) -> ColumnDecision:
    """Decide by a column of texts."""

    def decide(columns: Columns, values: Sequence[Value]) -> bytes | None:
        column = columns.get(name)
        return (
            None if column is None else _by_value(column, lambda text: _text_verdict(values, text))
        )

    return decide


def _by_value(column: Sequence[Any], verdict: Callable[[Any], int]) -> bytes:
    """Decide once for each different value."""
    verdicts = {value: verdict(value) for value in set(column)}
    return bytes(map(verdicts.__getitem__, column))


def _text_verdict(values: Sequence[Value], text: str | None) -> int:
    if text is None or text is UNKNOWN_TEXT:
        return NO if text is None else MAYBE
    return YES if any(isinstance(v, Glob) and v.matches(text) for v in values) else NO


def apis(columns: Columns, values: Sequence[Value]) -> bytes | None:
    """Decide by the name of the API."""

    def verdict(key: int) -> int:
        if key == NO_API:
            return min(MAYBE, _text_verdict(values, SASL_TOKEN))
        return _text_verdict(values, schema.api_name(key))

    column = columns.get("api_key")
    return None if column is None else _by_value(column, verdict)


def only_with(meaning: Meaning) -> ColumnDecision:
    """Rule out APIs that have no field with this meaning."""

    def decide(columns: Columns, values: Sequence[Value]) -> bytes | None:
        column = columns.get("api_key")
        if column is None:
            return None
        keys = apis_with(meaning)
        return _by_value(column, lambda key: MAYBE if key in keys else NO)

    return decide


def only_answered_with(meaning: Meaning) -> ColumnDecision:
    """Rule out exchanges without a response, and APIs that have no field with this meaning."""

    def decide(columns: Columns, values: Sequence[Value]) -> bytes | None:
        found = only_with(meaning)(columns, values)
        sizes = columns.get("response_bytes")
        if found is None or sizes is None:
            return found
        return both([found, bytes([MAYBE if size else NO for size in sizes])])

    return decide


def flag(flag: int) -> ColumnDecision:
    """Decide by a flag of the request or the response."""

    def decide(columns: Columns, values: Sequence[Value]) -> bytes | None:
        flags = columns.get("flags")
        return None if flags is None else bytes([YES if f & flag else NO for f in flags])

    return decide


def truth(name: str) -> Callable[[Columns], bytes | None]:
    """Decide by a boolean column."""

    def decide(columns: Columns) -> bytes | None:
        column = columns.get(name)
        return None if column is None else bytes([YES if v else NO for v in column])

    return decide


def faults(columns: Columns, values: Sequence[Value]) -> bytes | None:
    """Rule out exchanges that no fault rule touched."""
    faulted = columns.get("faulted")
    return None if faulted is None else bytes([MAYBE if v else NO for v in faulted])


def never(columns: Columns) -> bytes | None:
    """Rule out all rows."""
    column = columns.get("number")
    return None if column is None else bytes([NO]) * len(column)


def undecided(columns: Columns, values: Sequence[Value]) -> bytes | None:
    """Decide nothing: return None for MAYBE everywhere."""
    return None
