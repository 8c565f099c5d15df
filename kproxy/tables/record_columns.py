"""Columns of many records at once, out of the bodies of exchanges.

::

    table of exchanges ─▶ bodies ─▶ batches ─▶ queue ─▶ record_spans ─▶ columns
                                       │                      │ malformed
                                       │                      └▶ read_fields, batch by batch ─▶
                                       └ unusual ─▶ topic_records.read_carried ─▶ columns

A queue of batches becomes one piece of memory, out of which Arrow cuts keys, values and headers:
no record is an object.

Invariants: the rows are those of `topic_records.read`, in its order: what is malformed or unusual
is read by that. A record batch has at most `ROWS_MAX` rows, and about `BYTES_MAX` bytes, unless one
record is larger.
"""

from __future__ import annotations

import functools
import itertools
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import attrs
import numpy as np
import pyarrow as pa

from kproxy.exchange import topic_records
from kproxy.exchange.entries import Note
from kproxy.exchange.recording_context import RecordingContext
from kproxy.exchange.topic_records import Carried
from kproxy.protocol import ProtocolError
from kproxy.protocol.compression import Allowance
from kproxy.protocol.record_batch import BATCH_HEADER, CONTROL, LOG_APPEND_TIME, content, entries
from kproxy.protocol.record_fields import Fields, Headers, read_fields
from kproxy.recording import RecordingFile
from kproxy.recording.exchanges import StoredFrames, offer_names
from kproxy.recording.table_messages import ExchangeTable
from kproxy.tables import exchange_columns, record_spans
from kproxy.tables.arrow_types import BOOLEAN, BYTES, INT32, INT64, TEXT, TIME
from kproxy.tables.carried import Bodies
from kproxy.tables.record_spans import BatchSpan, Spans
from kproxy.tables.views import TIMESTAMP_MS_MAX, wrapped

ROWS_MAX = 64 << 10
BYTES_MAX = 16 << 20

Columns = dict[str, Any]
"""Columns by their names."""

_SIZE = struct.Struct(">i")
_CARRIERS = frozenset(("number", "time", "connection", "client_id", "node_id"))
"""The columns that records have from their exchange."""
_COMMON = {"topic": TEXT, "partition": INT32, "produced": BOOLEAN, "aborted": BOOLEAN}
"""Those that are the same for all records of a batch."""


class Where(NamedTuple):
    """What the records of one batch have in common."""

    carrier: int
    """The exchange that carried it, by the order in which exchanges came."""
    topic: str
    partition: int
    produced: bool
    aborted: bool = False
    base_offset: int | None = None
    """Of a produced batch: the offset of its first record, None if nothing tells it."""
    base_timestamp: int = 0
    max_timestamp: int | None = None
    """With LogAppendTime: the timestamp of all records."""


@attrs.frozen(eq=False)
class Cells:
    """Some records, column by column."""

    wheres: Sequence[Where]
    batch: Any
    """Which of these each record is of."""
    offset: Any
    timestamp_ms: Any
    bytes: Callable[[int], Any]
    """Makes the column of keys (0) or values (1)."""
    headers: Callable[[], Any]

    def timestamp(self) -> Any:
        """Return the timestamps as Spark has them; null where there is none."""
        known = (self.timestamp_ms >= 0) & (self.timestamp_ms <= TIMESTAMP_MS_MAX)
        microseconds = np.where(known, self.timestamp_ms, 0) * 1000
        return pa.array(microseconds, TIME, mask=~known)

    def common(self, name: str) -> Any:
        """Return one of the columns that are the same for all records of a batch."""
        values = [getattr(where, name) for where in self.wheres]
        if name == "topic":
            values = list(map(exchange_columns.clean, values))
        return pa.array(values, _COMMON[name]).take(pa.array(self.batch))


_OWN: dict[str, Callable[[Cells], Any]] = {
    "offset": lambda cells: cells.offset,
    "timestamp": Cells.timestamp,
    "timestamp_ms": lambda cells: pa.array(cells.timestamp_ms),
    "key": lambda cells: cells.bytes(0),
    "value": lambda cells: cells.bytes(1),
    "headers": lambda cells: cells.headers(),
}


class RecordRows:
    """Reads the records of exchanges; yields columns of them."""

    def __init__(
        self, known: RecordingContext, files: list[RecordingFile], columns: Sequence[str]
    ) -> None:
        self._known = known
        self._frames = StoredFrames(files)
        self._bodies = Bodies(known.names, self._frames, "offset" in columns)
        self._columns = columns
        self._queue: list[tuple[Where, BatchSpan]] = []
        self._rows = 0
        self._bytes = 0
        self._tables: list[ExchangeTable] = []
        """Those that have the exchanges of what is queued, and the one that is read."""
        self._first = self._next = 0
        """Carriers are the rows of all tables, counted: the first of these, the one behind them."""

    def note(self, notes: Iterable[Note]) -> None:
        """Take the notes of a batch of the recording."""
        for note in notes:
            self._known.note(note)

    def read(self, exchanges: ExchangeTable, given: bool) -> Iterator[tuple[int, Columns]]:
        """Take a table of exchanges; yield how many records there are, and columns of them. Where
        they are not `given`, they only tell names."""
        offer_names(self._known.names, exchanges, self._frames)
        if not given:
            return
        before, first = self._first, self._next
        self._tables.append(exchanges)
        self._next += len(exchanges)
        for carrier, carried in self._bodies.carried(exchanges, first):
            allowance = topic_records.allowance_of(carried)
            for each in carried:
                yield from self._take(carrier, each, allowance)
        if self._first != before or self._next - before >= ROWS_MAX:
            yield from self.flush()  # so that what was read can be forgotten
        if not self._queue:
            self._tables, self._first = [], self._next
            self._known.forget()

    def flush(self) -> Iterator[tuple[int, Columns]]:
        """Yield what is queued."""
        queue, self._queue, self._rows, self._bytes = self._queue, [], 0, 0
        if queue:
            spans = record_spans.find([run for _, run in queue])
            cells = _cells(_in_turn(queue)) if spans is None else _at_once(queue, spans)
            yield from map(self._named, cells)
        # What is still to be read is in the last of them.
        self._first = self._next - len(self._tables[-1]) if self._tables else self._next
        del self._tables[:-1]

    # ---- batches

    def _named(self, cells: Cells) -> tuple[int, Columns]:
        found: Columns = {}
        batch = pa.array(cells.batch)
        rows = exchange_columns.ExchangeRows(self._tables, self._known, self._frames)
        carriers = pa.array([where.carrier - self._first for where in cells.wheres])
        for name in self._columns:
            if name in _OWN:
                found[name] = _OWN[name](cells)
            elif name in _COMMON:
                found[name] = cells.common(name)
            elif name in _CARRIERS:
                found[name] = rows.column(name).take(carriers).take(batch)
        return len(batch), found

    def _take(
        self, carrier: int, found: Carried, allowance: Allowance
    ) -> Iterator[tuple[int, Columns]]:
        places = _plain_batches(found)
        if places is None:
            yield from self.flush()
            yield from map(self._named, _cells(_one_by_one(carrier, found, allowance)))
            return
        for start, end in places:
            batch = _opened(carrier, found, start, end, allowance)
            if batch is None:
                continue
            run = batch[1]
            size = run.stop - run.start
            if self._rows + run.records > ROWS_MAX or self._bytes + size > BYTES_MAX:
                yield from self.flush()
            self._queue.append(batch)
            self._rows += run.records
            self._bytes += size


def _plain_batches(found: Carried) -> list[tuple[int, int]] | None:
    """Where batches lie; None if they must be read one by one: old formats, and batches whose
    records get their offsets, or their fate, from those before."""
    if found.aborted:
        return None
    data = found.data
    if (
        len(data) >= BATCH_HEADER.size
        and data[16] == 2
        and data[8:12] == _SIZE.pack(len(data) - 12)
    ):
        return [(0, len(data))]
    try:
        places = list(entries(found.data))
    except ProtocolError:
        return []
    if (found.produced and len(places) > 1) or any(magic != 2 for *_, magic in places):
        return None
    return [(start, end) for start, end, _ in places]


def _opened(
    carrier: int, found: Carried, start: int, end: int, allowance: Allowance
) -> tuple[Where, BatchSpan] | None:
    """Decompress a batch; None if that is not possible, or no record of it is an application's."""
    offset, *_, attributes, _, base_time, max_time, _, _, _, count = BATCH_HEADER.unpack_from(
        found.data, start
    )
    position = start + BATCH_HEADER.size
    try:
        data, start, stop = content(found.data, position, end, attributes, count, allowance)
    except ProtocolError:
        return None
    if attributes & CONTROL or not count:
        return None
    base_offset = found.base_offset if found.produced else offset
    appended = max_time if attributes & LOG_APPEND_TIME else None
    where = Where(carrier, *found.where, found.produced, False, base_offset, base_time, appended)
    return where, BatchSpan(data, start, stop, count)


# ---------------------------------------------------------------- all at once


def _at_once(queue: Sequence[tuple[Where, BatchSpan]], spans: Spans) -> Iterator[Cells]:
    wheres = [where for where, _ in queue]
    counts = np.array([run.records for _, run in queue])
    batch = np.repeat(np.arange(len(queue), dtype=np.int32), counts)
    own = [where.max_timestamp is None for where in wheres]
    bases = [w.base_timestamp if w.max_timestamp is None else w.max_timestamp for w in wheres]
    times = np.array(bases, np.int64)[batch] + spans.time_deltas * np.array(own)[batch]
    # Producers count offsets from 0, but need not: what they got is told by the response.
    produced = np.array([where.produced for where in wheres])[batch]
    nths = np.arange(len(batch)) - (np.cumsum(counts) - counts)[batch]
    deltas = np.where(produced, nths, spans.offset_deltas)
    known = np.array([where.base_offset is not None for where in wheres])[batch]
    offsets = np.array([where.base_offset or 0 for where in wheres], np.int64)[batch] + deltas
    for first, last in _windows(spans.starts):
        part = slice(first, last)
        yield Cells(
            wheres,
            batch[part],
            pa.array(offsets[part], mask=~known[part]),
            times[part],
            functools.partial(_spans_bytes, spans, part),
            functools.partial(_spans_headers, spans, part),
        )


def _windows(starts: Any) -> Iterator[tuple[int, int]]:
    """Divide records, that begin there, into record batches."""
    first = 0
    while first < len(starts):
        last = int(np.searchsorted(starts, starts[first] + BYTES_MAX))
        last = min(len(starts), first + ROWS_MAX, max(first + 1, last))
        yield first, last
        first = last


def _spans_bytes(spans: Spans, part: slice, nth: int) -> Any:
    return _cut(spans.joined, spans.fields[part], nth, spans.nulls[part, nth])


def _cut(joined: bytes, spans: Any, nth: int, nulls: Any) -> Any:
    """Cut the first or the second span of each row out of memory. The memory as it is is an array
    that has what lies between the spans as values, too: of these, those are taken that count."""
    offsets = pa.py_buffer(np.ascontiguousarray(spans, np.int32))
    every = pa.Array.from_buffers(BYTES, 4 * len(spans) - 1, [None, offsets, pa.py_buffer(joined)])
    places = np.arange(2 * nth, 4 * len(spans), 4, dtype=np.int32)
    return every.take(pa.array(places, mask=nulls) if nulls is not None else pa.array(places))


def _spans_headers(spans: Spans, part: slice) -> Any:
    ends = spans.headers_ends[part]
    before = int(spans.headers_ends[part.start - 1]) if part.start else 0
    rows = slice(before, int(ends[-1]))
    offsets = np.concatenate([[0], ends - before])
    found = spans.headers[rows]
    if not len(found):
        return _headers(offsets, pa.array([], BYTES), pa.array([], BYTES))
    keys = _cut(spans.joined, found, 0, None)
    return _headers(offsets, keys, _cut(spans.joined, found, 1, spans.header_nulls[rows]))


def _headers(offsets: Any, keys: Any, values: Any) -> Any:
    """Make the column of headers; its keys are bytes so far."""
    try:
        texts = keys.cast(TEXT)
    except pa.ArrowInvalid:
        texts = pa.array([each.decode("utf-8", "replace") for each in keys.to_pylist()])
    structs = pa.StructArray.from_arrays([texts, values], ["key", "value"])
    return pa.ListArray.from_arrays(pa.array(offsets, INT32), structs)


# ---------------------------------------------------------------- one by one

_Row = tuple[Where, int | None, int, bytes | None, bytes | None, Headers]
"""Offset, timestamp, key, value and headers of a record."""


def _in_turn(queue: Sequence[tuple[Where, BatchSpan]]) -> Iterator[_Row]:
    """Read the batches that can be read."""
    for where, run in queue:
        base = where.base_offset or 0
        into = Fields([], [], [], [], [])
        try:
            read_fields(
                run.data, run.start, run.stop, run.records, into, base, where.base_timestamp
            )
        except (ProtocolError, IndexError):
            continue
        offsets: Iterable[int | None] = into.offsets
        if where.produced:
            known = where.base_offset is not None
            offsets = range(base, base + run.records) if known else itertools.repeat(None)
        times: Iterable[int] = into.timestamps
        if where.max_timestamp is not None:
            times = itertools.repeat(where.max_timestamp)
        yield from zip(itertools.repeat(where), offsets, times, *into[2:], strict=False)


def _one_by_one(carrier: int, found: Carried, allowance: Allowance) -> Iterator[_Row]:
    """Read what is unusual."""
    for record in topic_records.read_carried(found, allowance):
        where = Where(carrier, *found.where, record.produced, record.aborted)
        yield where, record.offset, record.timestamp, record.key, record.value, record.headers


def _cells(rows: Iterator[_Row]) -> Iterator[Cells]:
    some: list[_Row] = []
    size = 0
    for row in rows:
        some.append(row)
        size += len(row[3] or b"") + len(row[4] or b"")
        if size >= BYTES_MAX or len(some) >= ROWS_MAX:
            yield _of_rows(some)
            some, size = [], 0
    if some:
        yield _of_rows(some)


def _of_rows(rows: list[_Row]) -> Cells:
    wheres, offsets, times, keys, values, headers = zip(*rows, strict=True)
    return Cells(
        wheres,
        np.arange(len(rows), dtype=np.int32),
        pa.array([None if each is None else wrapped(each) for each in offsets], INT64),
        np.array(list(map(wrapped, times)), np.int64),
        lambda nth: pa.array((keys, values)[nth], BYTES),
        functools.partial(_list_headers, headers),
    )


def _list_headers(headers: Sequence[Headers]) -> Any:
    ends = itertools.accumulate(map(len, headers), initial=0)
    keys = [key.encode("utf-8", "surrogateescape") for each in headers for key, _ in each]
    values = [value for each in headers for _, value in each]
    return _headers(list(ends), pa.array(keys, BYTES), pa.array(values, BYTES))
