"""Columns of records from the bodies of exchanges, for many records at once.

::

    table of exchanges ─▶ bodies ─▶ batches ─▶ queue ─▶ record_spans ─▶ columns
                                       │                      │ malformed
                                       │                      └▶ read_fields, batch by batch ─▶
                                       └ unusual ─▶ topic_records.read_batches ─▶ columns

A queue of batches becomes one piece of memory, from which Arrow cuts keys, values and headers: no
record is a Python object.

Invariants: the rows are those of `topic_records.read`, in its order; it reads malformed or unusual
batches itself. An Arrow record batch has at most `ROWS_MAX` rows, and about `BYTES_MAX` bytes,
unless one record is larger.
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
from kproxy.exchange.body_facts import BodyFacts, DecodedFacts
from kproxy.exchange.entries import Note
from kproxy.exchange.topic_records import CarriedBatches
from kproxy.payloads.decoding import decode
from kproxy.payloads.schemas import Schemas
from kproxy.protocol import ProtocolError
from kproxy.protocol.compression import Allowance
from kproxy.protocol.record_batch import BATCH_HEADER, CONTROL, LOG_APPEND_TIME, content, read_heads
from kproxy.protocol.record_fields import Fields, Headers, read_fields, wrapped
from kproxy.recording.row_table import ExchangeTable
from kproxy.recording.stored_frames import offer_names
from kproxy.tables import exchange_columns, record_spans
from kproxy.tables.arrow_types import BOOLEAN, BYTES, INT32, INT64, TEXT, TIME
from kproxy.tables.carried import Bodies
from kproxy.tables.choosing import Chooser
from kproxy.tables.record_spans import BatchSpan, Spans
from kproxy.tables.views import DECODED, TIMESTAMP_MS_MAX, decoded_text

ROWS_MAX = 64 << 10
BYTES_MAX = 16 << 20

Columns = dict[str, Any]
"""Columns by their names."""

_SIZE = struct.Struct(">i")
_CARRIERS = frozenset(("number", "time", "connection", "client_id", "node_id"))
"""The columns that records take from their exchange."""
_COMMON = {"topic": TEXT, "partition": INT32, "produced": BOOLEAN, "aborted": BOOLEAN}
"""The columns with one value for all records of a batch."""


class BatchOrigin(NamedTuple):
    """The values that all records of a batch have in common."""

    carrier: int
    """Number of the exchange that carried the batch, in the order of the tables' rows."""
    topic: str
    partition: int
    produced: bool
    aborted: bool = False
    base_offset: int | None = None
    """Offset of the first record; None for a produced batch whose offset is unknown."""
    base_timestamp: int = 0
    max_timestamp: int | None = None
    """The timestamp of all records with LogAppendTime; None otherwise."""


@attrs.frozen(eq=False)
class RecordColumns:
    """Records, column by column."""

    origins: Sequence[BatchOrigin]
    batch: Any
    """Index in `origins`, by record."""
    offset: Any
    timestamp_ms: Any
    bytes: Callable[[int], Any]
    """Returns the column of keys (0) or values (1)."""
    headers: Callable[[], Any]

    def timestamp(self) -> Any:
        """Return the timestamps as Spark has them; null if out of range."""
        known = (self.timestamp_ms >= 0) & (self.timestamp_ms <= TIMESTAMP_MS_MAX)
        microseconds = np.where(known, self.timestamp_ms, 0) * 1000
        return pa.array(microseconds, TIME, mask=~known)

    def common(self, name: str) -> Any:
        """Return one of the columns with one value for all records of a batch."""
        values = [getattr(origin, name) for origin in self.origins]
        if name == "topic":
            values = list(map(exchange_columns.clean, values))
        return pa.array(values, _COMMON[name]).take(pa.array(self.batch))

    def decoded(
        self, names: Sequence[str], schemas: Schemas
    ) -> Iterator[tuple[int, list[list[str | None]]]]:
        """Yield columns of `DECODED`, and the first row of each portion: decoded values may be
        many times their bytes."""
        texts: list[list[str | None]] = [[] for _ in names]
        start = size = 0
        keys, values = self.bytes(0).to_pylist(), self.bytes(1).to_pylist()
        headers = [[(h["key"], h["value"]) for h in each] for each in self.headers().to_pylist()]
        topics = [self.origins[each].topic for each in self.batch.tolist()]
        for place, record in enumerate(zip(topics, keys, values, headers, strict=True)):
            for column, name in zip(texts, names, strict=True):
                text = decoded_text(decode(DECODED[name], *record, schemas))
                column.append(text)
                size += len(text or "")
            if size > BYTES_MAX:
                yield start, texts
                texts, start, size = [[] for _ in names], place + 1, 0
        if texts[0]:
            yield start, texts


_OWN: dict[str, Callable[[RecordColumns], Any]] = {
    "offset": lambda cells: cells.offset,
    "timestamp": RecordColumns.timestamp,
    "timestamp_ms": lambda cells: pa.array(cells.timestamp_ms),
    "key": lambda cells: cells.bytes(0),
    "value": lambda cells: cells.bytes(1),
    "headers": lambda cells: cells.headers(),
}


class RecordRows:
    """Reads the records of exchanges, and yields their columns."""

    def __init__(self, chooser: Chooser, columns: Sequence[str], bodies_min: int) -> None:
        self._choose = chooser.places
        self._context = chooser.context
        self._frames = chooser.frames
        names = self._context.names
        self._bodies = Bodies(names, self._frames, "offset" in columns, bodies_min)
        self._columns = columns
        self._queue: list[tuple[BatchOrigin, BatchSpan]] = []
        self._rows = 0
        self._bytes = 0
        self._tables: list[ExchangeTable] = []
        """The tables with the exchanges of queued batches, and the current one."""
        self._first = self._next = 0
        """Carrier numbers of the first row of `_tables`, and after their last row."""

    def note(self, notes: Iterable[Note]) -> None:
        """Take the notes of the next batch of the recording."""
        for note in notes:
            self._context.note(note)

    def read(self, exchanges: ExchangeTable, given: bool) -> Iterator[tuple[int, Columns]]:
        """Take a table of exchanges; yield numbers of records, each with their columns. Tables that
        are not `given` are only read for names."""
        offer_names(self._context.names, exchanges, self._frames)
        if given:
            exchanges = exchanges.chosen(self._choose(exchanges))
            yield from self._read(exchanges, self._bodies.carried(exchanges, self._next))

    def read_facts(
        self, exchanges: ExchangeTable, facts: Iterable[BodyFacts | DecodedFacts]
    ) -> Iterator[tuple[int, Columns]]:
        """As `read`, where all facts in the bodies of the table have been found already."""
        carried = enumerate(map(topic_records.carried_batches, facts), self._next)
        yield from self._read(exchanges, carried)

    def _read(
        self, exchanges: ExchangeTable, every: Iterable[tuple[int, Sequence[CarriedBatches]]]
    ) -> Iterator[tuple[int, Columns]]:
        before = self._first
        self._tables.append(exchanges)
        self._next += len(exchanges)
        for carrier, carried in every:
            allowance = topic_records.allowance_of(carried)
            for each in carried:
                yield from self._take(carrier, each, allowance)
        if self._first != before or self._next - before >= ROWS_MAX:
            yield from self.flush()  # so that what was read can be forgotten
        if not self._queue:
            self._tables, self._first = [], self._next
            self._context.forget()

    def flush(self) -> Iterator[tuple[int, Columns]]:
        """Yield the queued records."""
        queue, self._queue, self._rows, self._bytes = self._queue, [], 0, 0
        if queue:
            spans = record_spans.find([run for _, run in queue])
            cells = _cells(_batch_by_batch(queue)) if spans is None else _at_once(queue, spans)
            yield from itertools.chain.from_iterable(map(self._named, cells))
        # The batches that are still to be read are in the last table.
        self._first = self._next - len(self._tables[-1]) if self._tables else self._next
        del self._tables[:-1]

    # ---- batches

    def _named(self, cells: RecordColumns) -> Iterator[tuple[int, Columns]]:
        found: Columns = {}
        batch = pa.array(cells.batch)
        table = ExchangeTable([row for table in self._tables for row in table.rows()])
        rows = exchange_columns.ExchangeRows(table, self._context, self._frames)
        carriers = pa.array([origin.carrier - self._first for origin in cells.origins])
        for name in self._columns:
            if name in _OWN:
                found[name] = _OWN[name](cells)
            elif name in _COMMON:
                found[name] = cells.common(name)
            elif name in _CARRIERS:
                found[name] = rows.column(name).take(carriers).take(batch)
        decoded = [name for name in self._columns if name in DECODED]
        if not decoded:
            yield len(batch), found
            return
        for start, texts in cells.decoded(decoded, self._context.names.schemas):
            count = len(texts[0])
            part = {name: column.slice(start, count) for name, column in found.items()}
            arrays = [pa.array(each, TEXT) for each in texts]
            yield count, part | dict(zip(decoded, arrays, strict=True))

    def _take(
        self, carrier: int, found: CarriedBatches, allowance: Allowance
    ) -> Iterator[tuple[int, Columns]]:
        places = _plain_batches(found)
        if places is None:
            yield from self.flush()
            for cells in _cells(_one_by_one(carrier, found, allowance)):
                yield from self._named(cells)
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


def _plain_batches(found: CarriedBatches) -> list[tuple[int, int]] | None:
    """Return the start and end of batches; None if they must be read one by one: old formats, and
    batches whose offsets, or being aborted, depend on those before."""
    if found.aborted:
        return None
    data = found.data
    if (
        len(data) >= BATCH_HEADER.size
        and data[16] == 2
        and data[8:12] == _SIZE.pack(len(data) - 12)
    ):
        return [(0, len(data))]
    places = read_heads(found.data)
    if (found.produced and len(places) > 1) or any(each.magic != 2 for each in places):
        return None
    return [(each.start, each.end) for each in places]


def _opened(
    carrier: int, found: CarriedBatches, start: int, end: int, allowance: Allowance
) -> tuple[BatchOrigin, BatchSpan] | None:
    """Decompress a batch; return None if that fails, or if it has no record of an application."""
    offset, *_, attributes, _, base_time, max_time, _, _, _, count = BATCH_HEADER.unpack_from(
        found.data, start
    )
    position = start + BATCH_HEADER.size
    try:
        data, start, stop, damage = content(found.data, position, end, attributes, count, allowance)
    except ProtocolError:
        return None
    if attributes & CONTROL or not count:
        return None
    base_offset = found.base_offset if found.produced else offset
    appended = max_time if attributes & LOG_APPEND_TIME else None
    origin = BatchOrigin(
        carrier, *found.where, found.produced, False, base_offset, base_time, appended
    )
    return origin, BatchSpan(data, start, stop, count, damage)


# ---------------------------------------------------------------- all at once


def _at_once(
    queue: Sequence[tuple[BatchOrigin, BatchSpan]], spans: Spans
) -> Iterator[RecordColumns]:
    origins = [origin for origin, _ in queue]
    counts = np.array([run.records for _, run in queue])
    batch = np.repeat(np.arange(len(queue), dtype=np.int32), counts)
    own = [origin.max_timestamp is None for origin in origins]
    bases = [w.base_timestamp if w.max_timestamp is None else w.max_timestamp for w in origins]
    times = np.array(bases, np.int64)[batch] + spans.time_deltas * np.array(own)[batch]
    # The offsets in a produced batch may be anything: count from the response's base offset.
    produced = np.array([origin.produced for origin in origins])[batch]
    nths = np.arange(len(batch)) - (np.cumsum(counts) - counts)[batch]
    deltas = np.where(produced, nths, spans.offset_deltas)
    known = np.array([origin.base_offset is not None for origin in origins])[batch]
    offsets = np.array([origin.base_offset or 0 for origin in origins], np.int64)[batch] + deltas
    for first, last in _windows(spans.starts):
        part = slice(first, last)
        yield RecordColumns(
            origins,
            batch[part],
            pa.array(offsets[part], mask=~known[part]),
            times[part],
            functools.partial(_spans_bytes, spans, part),
            functools.partial(_spans_headers, spans, part),
        )


def _windows(starts: Any) -> Iterator[tuple[int, int]]:
    """Yield the ranges of records for Arrow record batches; `starts` are their places."""
    first = 0
    while first < len(starts):
        last = int(np.searchsorted(starts, starts[first] + BYTES_MAX))
        last = min(len(starts), first + ROWS_MAX, max(first + 1, last))
        yield first, last
        first = last


def _spans_bytes(spans: Spans, part: slice, nth: int) -> Any:
    return _cut(spans.joined, spans.fields[part], nth, spans.nulls[part, nth])


def _cut(joined: bytes, spans: Any, nth: int, nulls: Any) -> Any:
    """Return the first or the second span of each row as an array. All of `joined` becomes an Arrow
    array, with the gaps between spans as values, too; the wanted values are taken out of that."""
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
    """Return the column of headers; `keys` are bytes."""
    try:
        texts = keys.cast(TEXT)
    except pa.ArrowInvalid:
        texts = pa.array([each.decode("utf-8", "replace") for each in keys.to_pylist()])
    structs = pa.StructArray.from_arrays([texts, values], ["key", "value"])
    return pa.ListArray.from_arrays(pa.array(offsets, INT32), structs)


# ---------------------------------------------------------------- one by one

_Row = tuple[BatchOrigin, int | None, int, bytes | None, bytes | None, Headers]
"""Origin, offset, timestamp, key, value and headers of a record."""


def _batch_by_batch(queue: Sequence[tuple[BatchOrigin, BatchSpan]]) -> Iterator[_Row]:
    """Yield the records of batches, as far as they can be read."""
    for origin, run in queue:
        base = origin.base_offset or 0
        into = Fields([], [], [], [], [])
        bounds = run.start, run.stop, run.records
        read_fields(run.data, *bounds, into, base, origin.base_timestamp, run.damage, Allowance())
        offsets: Iterable[int | None] = into.offsets
        if origin.produced:
            known = origin.base_offset is not None
            offsets = itertools.count(base) if known else itertools.repeat(None)
        times: Iterable[int] = into.timestamps
        if origin.max_timestamp is not None:
            times = itertools.repeat(origin.max_timestamp)
        yield from zip(itertools.repeat(origin), offsets, times, *into[2:], strict=False)


def _one_by_one(carrier: int, found: CarriedBatches, allowance: Allowance) -> Iterator[_Row]:
    """Yield the records of unusual batches."""
    for record in topic_records.read_batches(found, allowance):
        origin = BatchOrigin(carrier, *found.where, record.produced, record.aborted)
        yield origin, record.offset, record.timestamp, record.key, record.value, record.headers


def _cells(rows: Iterator[_Row]) -> Iterator[RecordColumns]:
    taken: list[_Row] = []
    size = 0
    for row in rows:
        taken.append(row)
        size += len(row[3] or b"") + len(row[4] or b"")
        if size >= BYTES_MAX or len(taken) >= ROWS_MAX:
            yield _of_rows(taken)
            taken, size = [], 0
    if taken:
        yield _of_rows(taken)


def _of_rows(rows: list[_Row]) -> RecordColumns:
    origins, offsets, times, keys, values, headers = zip(*rows, strict=True)
    return RecordColumns(
        origins,
        np.arange(len(rows), dtype=np.int32),
        pa.array([None if each is None else wrapped(each) for each in offsets], INT64),
        np.array(times, np.int64),
        lambda nth: pa.array((keys, values)[nth], BYTES),
        functools.partial(_list_headers, headers),
    )


def _list_headers(headers: Sequence[Headers]) -> Any:
    ends = itertools.accumulate(map(len, headers), initial=0)
    keys = [key.encode("utf-8", "surrogateescape") for each in headers for key, _ in each]
    values = [value for each in headers for _, value in each]
    return _headers(list(ends), pa.array(keys, BYTES), pa.array(values, BYTES))
