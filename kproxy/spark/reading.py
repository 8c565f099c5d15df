"""Reads stretches of recordings: the rows of a view, as Arrow record batches.

::

    Stretch ─▶ tables of exchanges ─▶ Rows, body_columns ─▶ record batches    columns of the table
            └▶ Reader ─▶ Exchange, Frame, Note ─▶ items ──▶ record batches    whole bodies

Invariant: both ways give the same values. Rows open no frames, and cost nanoseconds each;
body_columns do, but decode nearly nothing.
"""

from __future__ import annotations

import contextlib
import functools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from kproxy.exchange.entries import (
    FRAGMENT,
    MORE,
    UNANSWERED,
    Frame,
    Note,
    Position,
)
from kproxy.exchange.exchange import Exchange
from kproxy.exchange.known import Known
from kproxy.exchange.meanings import RECORDS, apis_with
from kproxy.recording import RecordingError, RecordingFile
from kproxy.recording.exchanges import Reader, StoredFrames, offer_names
from kproxy.recording.file import frame_in
from kproxy.recording.layout import EXCHANGE_INTEGERS
from kproxy.recording.stored import StoredBatch
from kproxy.recording.tables import ExchangeTable
from kproxy.recording.uri import located
from kproxy.spark import body_columns, damage, frame_columns, record_columns, table
from kproxy.spark.columns import (
    FILE,
    HEADERS,
    PARTITIONS,
    RECORDING,
    TEXTS,
    WAITED,
    Column,
)
from kproxy.spark.frame_columns import FrameRows
from kproxy.spark.frame_pieces import Piece, Pieces
from kproxy.spark.plan import END, Stretch

_TABLE_ROWS = 64 << 10
_ITEM_ROWS = 4096
_ITEM_BYTES = 16 << 20
"""A record batch has no more rows, and about no more bytes of keys, values and frames."""
FOUND_IN_TABLES = frozenset(table.COLUMNS) | {name for name, _ in EXCHANGE_INTEGERS} | {
    "unanswered", RECORDING, FILE
}  # fmt: skip
"""The columns of exchanges that come from tables, without a look at frames."""
_FOUND_BESIDE = FOUND_IN_TABLES | frozenset(body_columns.COLUMNS)
"""Those, and the ones that come from bodies without an `Exchange`."""

TYPES: dict[str, pa.DataType] = {
    "BIGINT": pa.int64(),
    "INT": pa.int32(),
    "SMALLINT": pa.int16(),
    "DOUBLE": pa.float64(),
    "BOOLEAN": pa.bool_(),
    "STRING": pa.string(),
    "BINARY": pa.binary(),
    "TIMESTAMP": pa.timestamp("us", tz="UTC"),
    TEXTS: pa.list_(pa.string()),
    PARTITIONS: body_columns.PARTITIONS_TYPE,
    HEADERS: pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
    WAITED: table.WAITED_TYPE,
}
"""Arrow's types for the types of columns."""


def schema_of(columns: Sequence[Column]) -> pa.Schema:
    """Return the schema of the record batches of these columns."""
    return pa.schema([(column.name, TYPES[column.type]) for column in columns])


@damage.named
def record_batches(
    stretch: Stretch, view: str, columns: Sequence[Column], schema: pa.Schema | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a stretch; `schema` is what Spark calls these types, if it matters.

    Raises: RecordingError.
    """
    if stretch.rest and not stretch.last and view != "events":
        return  # the files that follow have their rows
    schema = schema_of(columns) if schema is None else schema
    names = [column.name for column in columns]
    if view == "exchanges" and not stretch.rest and _FOUND_BESIDE.issuperset(names):
        for count, column in _rows(stretch, names):
            yield _from_columns(stretch, column, count, schema)
        return
    if view == "frames":
        yield from _frame_batches(stretch, schema)
        return
    if view == "records" and not stretch.rest:
        for count, found in _record_columns(stretch, names):
            yield _from_columns(stretch, found.__getitem__, count, schema)
        return
    items = _ITEMS[view](stretch)
    for some in _grouped(items, _WEIGHTS.get(view, _weightless)):
        yield _from_items(stretch, some, columns, schema)


# ---------------------------------------------------------------- from tables


_Columns = tuple[int, Callable[[str], Any]]
"""How many rows there are, and what gives a column of them by its name."""


def _rows(stretch: Stretch, names: Sequence[str]) -> Iterator[_Columns]:
    """Yield the rows of a stretch, some at a time."""
    waits = "unanswered" in names
    of_bodies = body_columns.COLUMNS.keys() & set(names)
    with _opened(stretch) as file:
        known = _known(stretch)
        files = [*_earlier(stretch), file]
        frames, stored = functools.partial(frame_in, files), StoredFrames(files)
        waiting = table.Waiting()
        tables: list[tuple[ExchangeTable, table.Waited, dict[str, Any]]] = []
        count = size = 0

        def rows() -> _Columns:
            some, waited, bodies = zip(*tables, strict=True)
            found = table.Rows(some, known, frames, waited)
            made = {name: pa.concat_arrays([each[name] for each in bodies]) for name in of_bodies}
            return len(found), lambda name: made[name] if name in made else found.column(name)

        for batch, given in _batches(file, stretch):
            for note in batch.notes:
                known.note(note)
            found = file.exchanges(batch) if given or waits or of_bodies else None
            waited = waiting.take(found) if waits and found is not None else {}
            waiting.forget(known.closed)
            if of_bodies and found is not None:
                offer_names(known.names, found, stored)
            if not given:
                known.forget()
            elif found is not None and len(found):
                # At once: names that are told later are not those of now.
                bodies = body_columns.of_table(found, stored, known.names, of_bodies)
                tables.append((found, waited, bodies))
                count += len(found)
                size += sum(array.nbytes for array in bodies.values())
            if count >= _TABLE_ROWS or size >= _ITEM_BYTES:
                yield rows()
                tables, count, size = [], 0, 0
                known.forget()
        if tables:
            yield rows()


def _from_frames(stretch: Stretch, some: Sequence[FrameRows], schema: pa.Schema) -> pa.RecordBatch:
    column = functools.partial(frame_columns.column, some)
    return _from_columns(stretch, column, sum(map(len, some)), schema)


def _from_columns(
    stretch: Stretch, column: Callable[[str], Any], rows: int, schema: pa.Schema
) -> pa.RecordBatch:
    arrays: list[pa.Array] = []
    constants = file_values(stretch)
    for field in schema:
        constant = constants.get(field.name)
        if constant is not None:
            array = pa.repeat(pa.scalar(constant, pa.string()), rows)
        else:
            array = column(field.name)
        arrays.append(array if array.type.equals(field.type) else array.cast(field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _record_columns(
    stretch: Stretch, names: Sequence[str]
) -> Iterator[tuple[int, record_columns.Columns]]:
    """Yield the records of a stretch, but for the rest of a torn file, as columns."""
    with _opened(stretch) as file:
        rows = record_columns.RecordRows(_known(stretch), [*_earlier(stretch), file], names)
        for batch, given in _batches(file, stretch):
            rows.note(batch.notes)
            found = file.exchanges(batch)
            if found is not None:
                yield from rows.read(found, given)
        yield from rows.flush()


def file_values(stretch: Stretch) -> dict[str, str]:
    """Return the columns that have one value for all rows of a stretch."""
    return {
        RECORDING: table.clean(stretch.recording),
        FILE: table.clean(str(located(stretch.path))),
    }


# ---------------------------------------------------------------- from items


def _from_items(
    stretch: Stretch, items: list[Any], columns: Sequence[Column], schema: pa.Schema
) -> pa.RecordBatch:
    constants = file_values(stretch)
    arrays: list[pa.Array] = []
    for column, field in zip(columns, schema, strict=True):
        if column.get is None:
            arrays.append(pa.repeat(pa.scalar(constants[column.name], pa.string()), len(items)))
            continue
        values = [column.get(item) for item in items]
        try:
            arrays.append(pa.array(values, field.type))
        except UnicodeEncodeError:
            arrays.append(pa.array(list(map(cleaned, values)), field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def cleaned(value: Any) -> Any:
    """Return a value whose texts are valid Unicode."""
    if isinstance(value, str):
        return table.clean(value)
    if isinstance(value, list):
        return list(map(cleaned, value))
    if isinstance(value, dict):
        return {key: cleaned(each) for key, each in value.items()}
    return value


def _grouped(items: Iterator[Any], weight: Callable[[Any], int]) -> Iterator[list[Any]]:
    some: list[Any] = []
    weighs = 0
    for item in items:
        some.append(item)
        weighs += weight(item)
        if len(some) >= _ITEM_ROWS or weighs >= _ITEM_BYTES:
            yield some
            some, weighs = [], 0
    if some:
        yield some


def _weightless(item: Any) -> int:
    return 0


def exchanges(stretch: Stretch) -> Iterator[Exchange]:
    """Yield the exchanges of a stretch.

    Raises: RecordingError.
    """
    reader = Reader(lambda note: None)
    with _opened(stretch) as file:
        earlier, notes = _earlier(stretch), list(stretch.notes)
        if stretch.rest and earlier and not deque(file.batches(), 1):
            # A kill left a head alone: who is connected, and until when, the file before says.
            earlier[-1] = RecordingFile(earlier[-1].path)
            notes += [note for batch in earlier[-1].batches() for note in batch.notes]
        for each in (*earlier, file):
            deque(reader.begin(each), 0)
        deque(reader.batch(file, StoredBatch(-1, notes=notes), False), 0)
        for batch, given in _batches(file, stretch):
            for exchange in reader.batch(file, batch, stretch.rest):
                if given and not stretch.rest:
                    yield exchange
        if stretch.rest:
            yield from reader.finish()


def _records(stretch: Stretch) -> Iterator[tuple[Exchange, Any]]:
    for exchange in exchanges(stretch):
        if exchange.api_key in apis_with(RECORDS):
            for record in exchange.records:
                yield exchange, record


def _frame_batches(stretch: Stretch, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    some: list[FrameRows] = []
    count = data_bytes = 0
    for rows in _frames(stretch):
        some.append(rows)
        count += len(rows)
        data_bytes += rows.data_bytes
        if count >= _TABLE_ROWS or data_bytes >= _ITEM_BYTES:
            yield _from_frames(stretch, some, schema)
            some, count, data_bytes = [], 0, 0
    if some:
        yield _from_frames(stretch, some, schema)


def _frames(stretch: Stretch) -> Iterator[FrameRows]:
    """Yield the frames whose last piece lies in a stretch, put together. Of some, the pieces behind
    it were lost. The rest of a torn file are those that do not end in it."""
    known = _known(stretch)
    pieces = Pieces.begun(stretch.begun or ())
    with _opened(stretch) as file:
        frames = functools.partial(frame_in, [*_earlier(stretch), file])
        together = functools.partial(_put_together, frames=frames, known=known)
        for batch, given in _noted(file, stretch, known):
            if not given and not stretch.rest:
                continue
            found = file.frames(batch)
            cut = together(list(pieces.follow(found, batch)))
            if stretch.rest:
                continue
            yield from cut
            if found is None:
                continue
            peers = {number: known.peer(number) for number in set(found.column("connection"))}
            for some in frame_columns.of_table(found, peers):
                if isinstance(some, range):
                    for frame in _whole(file, batch, some, frames):
                        yield frame_columns.of_frames([frame], peers)
                else:
                    yield some
        if stretch.begun is None and not stretch.rest:
            yield from together(_cut_behind(pieces, file, stretch))
        if stretch.rest or stretch.last:
            yield from together(pieces.unfinished)


def _cut_behind(pieces: Pieces, file: RecordingFile, stretch: Stretch) -> Iterator[Piece]:
    """Yield the frames of which the batches behind a stretch tell that no more pieces come."""
    for batch in file.batches() if pieces.unfinished else ():
        if batch.offset >= stretch.stop:
            yield from pieces.follow(file.frames(batch), batch, begins=False)
            if not pieces.unfinished:
                return
    for path in stretch.later if pieces.unfinished else ():
        with contextlib.suppress(RecordingError), RecordingFile(path) as later:
            for batch in later.batches():
                yield from pieces.follow(later.frames(batch), batch, begins=False)
                if not pieces.unfinished:
                    return


def _put_together(
    some: Iterable[Piece], frames: Callable[[Position], Frame | None], known: Known
) -> Iterator[FrameRows]:
    for piece in some:
        frame = frames(piece.position)
        if frame is not None:
            yield frame_columns.of_frames([frame], {frame.connection: known.peer(frame.connection)})


def _whole(
    file: RecordingFile,
    batch: StoredBatch,
    runs: range,
    frames: Callable[[Position], Frame | None],
) -> Iterator[Frame]:
    for run in runs:
        for frame in _run(file, batch, run):
            if frame.flags & FRAGMENT and not frame.flags & (MORE | UNANSWERED):
                frame = frames(Position(batch.number, run, 0))
            if frame is not None and not frame.flags & (MORE | UNANSWERED):
                yield frame


def _noted(
    file: RecordingFile, stretch: Stretch, known: Known
) -> Iterator[tuple[StoredBatch, bool]]:
    """Yield what `_batches` does, with what each batch tells known while it is read."""
    for batch, given in _batches(file, stretch):
        for note in batch.notes:
            known.note(note)
        yield batch, given
        known.forget()


def _run(file: RecordingFile, batch: StoredBatch, run: int) -> Any:
    found = file.frames(batch)
    try:
        return found.run(run) if found is not None else ()
    except ValueError as error:
        raise file.wrong(batch.frames, error) from None


def events(stretch: Stretch) -> Iterator[Note]:
    """Yield the notes of a stretch; that of the rest of a torn file says where it stops.

    Raises: RecordingError.
    """
    with _opened(stretch) as file:
        for batch, given in _batches(file, stretch):
            if given and not stretch.rest:
                yield from batch.notes
        if stretch.rest:
            deque(file.batches(), 0)
        if stretch.rest and file.torn is not None:
            yield file.torn


_ITEMS: dict[str, Callable[[Stretch], Iterator[Any]]] = {
    "exchanges": exchanges,
    "records": _records,
    "events": events,
}
_WEIGHTS: dict[str, Callable[[Any], int]] = {
    "exchanges": lambda item: (item.request_bytes or 0) + (item.response_bytes or 0),
    "records": lambda item: len(item[1].key or b"") + len(item[1].value or b""),
}

# ---------------------------------------------------------------- files


def _known(stretch: Stretch) -> Known:
    """What is known where a stretch begins."""
    known = Known()
    for note in stretch.notes:
        known.note(note)
    return known


def _opened(stretch: Stretch) -> RecordingFile:
    file = RecordingFile(stretch.path)
    file.skip_to(stretch.begin)
    return file


def _earlier(stretch: Stretch) -> list[RecordingFile]:
    """The earlier files of a recording: read when a frame is not found in the later ones."""
    found: list[RecordingFile] = []
    for path in stretch.earlier:
        try:
            file = RecordingFile(path)
        except RecordingError:
            continue  # it was deleted since: what lies in it is not known any more
        file.skip_to(END)
        file.close()
        found.append(file)
    return found


def _batches(file: RecordingFile, stretch: Stretch) -> Iterator[tuple[StoredBatch, bool]]:
    """Yield the batches from where a stretch begins, and whether they are in it."""
    for batch in file.batches():
        if batch.offset >= stretch.stop:
            return
        yield batch, batch.offset >= stretch.start or not stretch.start
