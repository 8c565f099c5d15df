"""Read stretches of recordings: the rows of a view, as Arrow record batches.

::

    Stretch ─▶ tables of exchanges ─▶ ExchangeRows, body_columns ─▶ record batches
            └▶ Reader ─▶ Exchange, Note ─▶ items, value by value ─▶ record batches

`together` yields exchanges, records and notes at once, in one reading of the tables.

Invariant: all ways give the same values. ExchangeRows opens no frames, and takes nanoseconds per
row; body_columns opens them, but decodes very little. The second way is for whole bodies.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import pyarrow as pa

from kproxy.exchange.body_facts import BodyFacts, DecodedFacts
from kproxy.exchange.entities import TopicNames
from kproxy.exchange.entries import ExchangeRow, Note
from kproxy.exchange.exchange import Exchange
from kproxy.exchange.filter import Filter, parse
from kproxy.exchange.filter.terms import terms_of
from kproxy.exchange.meanings import RECORDS, apis_with
from kproxy.exchange.recording_context import RecordingContext
from kproxy.exchange.unpacking import Unpacking
from kproxy.protocol import schema as kafka
from kproxy.recording import RecordingError, RecordingFile
from kproxy.recording.exchanges import Reader
from kproxy.recording.layout import EXCHANGE_INTEGERS
from kproxy.recording.paths import Paths, info
from kproxy.recording.reader import warn
from kproxy.recording.row_table import ExchangeTable
from kproxy.recording.schema_notes import schemas_ahead
from kproxy.recording.stored import StoredBatch
from kproxy.recording.stored_frames import StoredFrames, follow_beginnings, offer_names
from kproxy.recording.uri import located
from kproxy.tables import (
    body_columns,
    carried,
    damage,
    exchange_columns,
    frame_columns,
    item_columns,
    record_columns,
    splits,
)
from kproxy.tables.arrow_types import TEXT
from kproxy.tables.choosing import Chooser
from kproxy.tables.splits import END, Stretch
from kproxy.tables.views import FILE, RECORDING, ViewColumn, chosen, schema_of

_ROUTINE = "routine"
_LOOKED_MAX = 8192
"""Exchanges whose bodies' values are held at once."""


@attrs.frozen
class Portions:
    """How much is read at once."""

    rows: int = 64 << 10
    """Rough limit of rows in a record batch without bytes of frames or records."""
    bodies_min: int = carried.BODIES_MIN
    """Fewer bodies that carry records are decoded one by one."""


PORTIONS = Portions()
FOUND_IN_TABLES = (
    frozenset(exchange_columns.COLUMNS)
    | {name for name, _ in EXCHANGE_INTEGERS}
    | {RECORDING, FILE}
) - {_ROUTINE}
"""The columns of exchanges that come from tables, without opening frames."""
_IN_COLUMNS = FOUND_IN_TABLES | frozenset(body_columns.MEANINGS) | {_ROUTINE}
"""The columns of exchanges that can be read without an `Exchange`: these, and body columns."""


def read(
    paths: Paths,
    view: str = "exchanges",
    columns: Iterable[str] | None = None,
    wanted: Filter | str | None = None,
) -> pa.RecordBatchReader:
    """Return the rows of recordings: files, folders, globs and URIs, torn ones as far as they go.

    Rows are read lazily, some thousands at a time. `view` is exchanges, records, frames or events.
    Columns that require decoding bodies are only included if they are named. With a filter, the
    rows are those of the exchanges that match it. A torn file gives a RecordingWarning.

    Raises: RecordingError, also while rows are read; ValueError if there is no such view or column,
    or the text is no filter.
    """
    selected = chosen(view, columns)
    if isinstance(wanted, str):
        wanted = parse(wanted)
    if wanted is not None:
        check_filtered(view)
    given = [paths] if isinstance(paths, str | Path) else paths
    found = splits.find(list(map(str, given)))
    info(found.files[0])  # its head was read before, if there are several
    wanted = splits.resolved(wanted, found)
    schema = schema_of(selected)

    def batches() -> Iterator[pa.RecordBatch]:
        for stretch in splits.stretches(found, END):
            yield from record_batches(stretch, view, selected, schema, wanted)
            if (torn := _torn(stretch)) is not None:
                warn(torn)

    return pa.RecordBatchReader.from_batches(schema, batches())


def check_filtered(view: str) -> None:
    """Check that a view can be filtered.

    Raises: ValueError.
    """
    if view == "events":
        raise ValueError("a filter selects exchanges; events cannot be filtered")


@damage.names_file
def record_batches(
    stretch: Stretch,
    view: str,
    columns: Sequence[ViewColumn],
    schema: pa.Schema | None = None,
    wanted: Filter | None = None,
    portions: Portions = PORTIONS,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a stretch; with a filter, those of the exchanges that match it. `schema`
    has Spark's types, if they differ from those of the columns.

    Raises: RecordingError.
    """
    schema = schema_of(columns) if schema is None else schema
    names = [column.name for column in columns]
    read = _COLUMNS.get(view)
    if read is None or not _in_columns(view, names):
        follows = _ROUTINE in names or _asks_for_routine(wanted)
        items = _ITEMS[view](stretch, wanted, follows)
        yield from item_columns.batches(items, columns, file_values(stretch), schema)
        return
    for count, column in read(stretch, names, wanted, portions):
        yield from_columns(stretch, column, count, schema)


def _asks_for_routine(wanted: Filter | None) -> bool:
    terms = () if wanted is None else terms_of(wanted.node)
    return any(term.name in ("is:error", "is:routine") for term in terms)


def _in_columns(view: str, names: Iterable[str]) -> bool:
    return view != "exchanges" or _IN_COLUMNS.issuperset(names)


# ---------------------------------------------------------------- from tables


def _exchange_columns(
    stretch: Stretch, names: Sequence[str], wanted: Filter | None, portions: Portions
) -> Iterator[_Columns]:
    for rows in _rows(stretch, portions.rows, wanted, names):
        yield len(rows), rows.column


def _frame_columns(
    stretch: Stretch, names: Sequence[str], wanted: Filter | None, portions: Portions
) -> Iterator[_Columns]:
    data_bytes_max = item_columns.BYTES_MAX if "data" in names else None
    for rows in _rows(stretch, portions.rows, wanted):
        for frames in frame_columns.of_rows(rows, data_bytes_max):
            yield len(frames), frames.column


def _record_columns(
    stretch: Stretch, names: Sequence[str], wanted: Filter | None, portions: Portions
) -> Iterator[_Columns]:
    with _opened(stretch, wanted) as file:
        context = _context_at_start(stretch)
        frames = StoredFrames(_files(stretch, file))
        if _asks_for_routine(wanted):
            _offer_earlier(stretch, context.names, frames)
        chooser = Chooser.of(wanted, file.info, context, frames)
        rows = record_columns.RecordRows(chooser, names, portions.bodies_min)
        for found, given in _tables(file, stretch, rows.note, chooser):
            for count, columns in rows.read(found, given):
                yield count, columns.__getitem__
        for count, columns in rows.flush():
            yield count, columns.__getitem__


_Columns = tuple[int, Callable[[str], Any]]
"""The number of rows, and a function that returns their columns by name."""
_COLUMNS: dict[
    str, Callable[[Stretch, Sequence[str], Filter | None, Portions], Iterator[_Columns]]
] = {
    "exchanges": _exchange_columns,
    "records": _record_columns,
    "frames": _frame_columns,
}


def _rows(
    stretch: Stretch, rows_max: int, wanted: Filter | None, names: Sequence[str] = ()
) -> Iterator[exchange_columns.ExchangeRows]:
    """Yield the rows of a stretch that match a filter, in parts of about `rows_max`; `names` are
    the columns that will be read of them."""
    waits, of_bodies = "unanswered" in names, body_columns.MEANINGS.keys() & set(names)
    routine = _ROUTINE in names or _asks_for_routine(wanted)
    names_topics = bool(of_bodies) or routine or wanted is not None
    with _opened(stretch, wanted) as file:
        context = _context_at_start(stretch)
        frames = StoredFrames(_files(stretch, file))
        chooser = Chooser.of(wanted, file.info, context, frames)
        if routine:
            _offer_earlier(stretch, context.names, frames)
        tables = _Tables(context, frames)
        for found, given in _tables(file, stretch, functools.partial(_note, context), chooser):
            waited: exchange_columns.Waited = {}
            if waits:
                waited = exchange_columns.waited_of(found, context)
            if names_topics:
                offer_names(context.names, found, frames)
            if given and wanted is not None:
                places = chooser.places(found)
                waited = {new: waited[at] for new, at in enumerate(places) if at in waited}
                found = found.chosen(places)
            if given and len(found):
                # At once: later notes may change the names of topic ids.
                bodies = body_columns.of_table(found, frames, context.names, of_bodies)
                tables.add(found, waited, bodies)
            if tables.rows >= rows_max or tables.bytes >= item_columns.BYTES_MAX:
                yield tables.take()
            if not tables.rows:
                context.forget()
        if tables.rows:
            yield tables.take()


@attrs.define(eq=False)
class _Tables:
    """Exchanges of some batches, to be made columns together."""

    _context: RecordingContext
    _frames: StoredFrames
    _rows: list[ExchangeRow] = attrs.field(factory=list[ExchangeRow], init=False)
    _waited: exchange_columns.Waited = attrs.field(factory=exchange_columns.Waited, init=False)
    _bodies: list[dict[str, Any]] = attrs.field(factory=list[dict[str, Any]], init=False)
    bytes: int = attrs.field(default=0, init=False)
    """Those that bodies may take."""

    @property
    def rows(self) -> int:
        """The number of exchanges."""
        return len(self._rows)

    def add(
        self, table: ExchangeTable, waited: exchange_columns.Waited, bodies: dict[str, Any]
    ) -> None:
        """Add a table, with the values of `unanswered` and the columns from bodies."""
        before = self.rows
        self._waited |= {before + at: each for at, each in waited.items()}
        self._rows += table.rows()
        self._bodies.append(bodies)
        self.bytes += sum(array.nbytes for array in bodies.values())

    def take(self) -> exchange_columns.ExchangeRows:
        """Return the rows so far, at least one, and begin anew."""
        table, waited, bodies = ExchangeTable(self._rows), self._waited, self._bodies
        self._rows, self._waited, self._bodies, self.bytes = [], {}, [], 0
        return exchange_columns.ExchangeRows(table, self._context, self._frames, waited, bodies)


Look = Callable[[Exchange], Any]
Together = pa.RecordBatch | Note | tuple[exchange_columns.ExchangeRows, list[Any]]


@damage.names_file
def together(stretch: Stretch, look: Look, record_names: Sequence[str]) -> Iterator[Together]:
    """Yield all that a stretch has, in one reading: its notes, its records with these columns, if
    there are any, and its exchanges as columns, with what `look` has made of each.

    Raises: RecordingError.
    """
    with _opened(stretch) as file:
        context, frames = _context_at_start(stretch), StoredFrames(_files(stretch, file))
        _offer_earlier(stretch, context.names, frames)
        tables, looked = _Tables(context, frames), list[Any]()
        # With a context of its own: records wait for others longer than their exchanges.
        chooser = Chooser(None, _context_at_start(stretch), frames)
        records = record_columns.RecordRows(chooser, record_names, PORTIONS.bodies_min)
        schema = schema_of(chosen("records", record_names))
        taken = list[Note]()
        for found, given in _tables(file, stretch, taken.extend, chooser):
            records.note(taken)
            _note(context, taken)
            if given:
                yield from taken
            taken.clear()
            waited = exchange_columns.waited_of(found, context)
            offer_names(context.names, found, frames)
            if given and len(found):
                # At once: later notes may change the names of topic ids.
                facts = list(body_columns.facts_of(found, frames, context.names))
                looked += map(look, _exchanges_of(found, facts, context, frames))
                tables.add(found, waited, {})
                tables.bytes += _body_bytes(found)
                for count, columns in records.read_facts(found, facts) if record_names else ():
                    yield from_columns(stretch, columns.__getitem__, count, schema)
            if tables.rows >= _LOOKED_MAX or tables.bytes >= item_columns.BYTES_MAX:
                yield tables.take(), looked
                looked = []
            if not tables.rows:
                context.forget()
        if tables.rows:
            yield tables.take(), looked
        for count, columns in records.flush():
            yield from_columns(stretch, columns.__getitem__, count, schema)
        if (torn := _torn(stretch, file)) is not None:
            yield torn


def _exchanges_of(
    table: ExchangeTable,
    facts: Iterable[BodyFacts | DecodedFacts],
    context: RecordingContext,
    frames: StoredFrames,
) -> Iterator[Exchange]:
    for row, found in zip(table.rows(), facts, strict=True):
        peer = context.peer(row.connection)
        exchange = Exchange(row, peer.client_address, peer.client_id, frames, context.names)
        Exchange.facts.give(exchange, found)
        yield exchange


def _body_bytes(table: ExchangeTable) -> int:
    """Return the bytes of bodies of which most may be kept: not of those that carry records."""
    carrying = apis_with(RECORDS)
    return sum(row.response_bytes for row in table.rows() if row.api_key not in carrying)


def from_columns(
    stretch: Stretch, column: Callable[[str], Any], rows: int, schema: pa.Schema
) -> pa.RecordBatch:
    """Return columns of a stretch as a record batch."""
    arrays: list[pa.Array] = []
    constants = file_values(stretch)
    for field in schema:
        constant = constants.get(field.name)
        if constant is not None:
            array = pa.repeat(pa.scalar(constant, TEXT), rows)
        else:
            array = column(field.name)
        arrays.append(array if array.type.equals(field.type) else array.cast(field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def file_values(stretch: Stretch) -> dict[str, str]:
    """Return the columns with one value for all rows of a stretch."""
    return {
        RECORDING: exchange_columns.clean(stretch.recording),
        FILE: exchange_columns.clean(str(located(stretch.path))),
    }


# ---------------------------------------------------------------- from items


def exchanges(
    stretch: Stretch, wanted: Filter | None = None, follows: bool = False
) -> Iterator[Exchange]:
    """Yield the exchanges of a stretch; with a filter, those that match it. What is routine in them
    is known if it `follows` what began before the stretch.

    Raises: RecordingError.
    """
    # Rows are streamed, and splits know nothing of each other: each exchange is bounded alone.
    reader = Reader(lambda note: None, wanted, unpacking=Unpacking.endless())
    with _opened(stretch, wanted) as file:
        for each in _files(stretch, file):
            deque(reader.begin(each), 0)
        if follows:
            _offer_earlier(stretch, reader.names, reader.frames)
        deque(reader.batch(file, StoredBatch(-1, notes=list(stretch.notes))), 0)
        for batch, given in _batches(file, stretch):
            for exchange in reader.batch(file, batch):
                if given:
                    yield exchange
        if stretch.last:
            yield from reader.finish()


def _records(
    stretch: Stretch, wanted: Filter | None, follows: bool
) -> Iterator[tuple[Exchange, Any]]:
    for exchange in exchanges(stretch, wanted, follows):
        if exchange.api_key in apis_with(RECORDS):
            for record in exchange.records:
                yield exchange, record


def _frames(
    stretch: Stretch, wanted: Filter | None, follows: bool
) -> Iterator[tuple[Exchange, str]]:
    for exchange in exchanges(stretch, wanted, follows):
        if exchange.request_bytes:
            yield exchange, kafka.REQUEST
        if exchange.response_bytes:
            yield exchange, kafka.RESPONSE


def events(stretch: Stretch) -> Iterator[Note]:
    """Yield the notes of a stretch; the last one of a torn file says where it is torn.

    Raises: RecordingError.
    """
    with _opened(stretch) as file:
        for batch, given in _batches(file, stretch):
            if given:
                yield from batch.notes
        if (torn := _torn(stretch, file)) is not None:
            yield torn


def _torn(stretch: Stretch, file: RecordingFile | None = None) -> Note | None:
    """Return the note that says where the file of a stretch is torn, if it ends with it."""
    if not stretch.to_end:
        return None
    file = _opened(stretch) if file is None else file
    if not file.complete:
        deque(file.batches(), 0)
    return file.torn


_ITEMS: dict[str, Callable[[Stretch, Filter | None, bool], Iterator[Any]]] = {
    "exchanges": exchanges,
    "records": _records,
    "frames": _frames,
    "events": lambda stretch, wanted, follows: events(stretch),
}

# ---------------------------------------------------------------- files


def _context_at_start(stretch: Stretch) -> RecordingContext:
    """Return the connections, topic ids, schemas and fault rules at the start of a stretch."""
    context = RecordingContext()
    context.names.schemas.ahead = functools.partial(schemas_ahead, stretch.path, stretch.begin)
    for note in stretch.notes:
        context.note(note)
    return context


def _offer_earlier(stretch: Stretch, names: TopicNames, frames: StoredFrames) -> None:
    """Offer to follow what began in the same recording before a stretch."""
    names.beginnings.offer(functools.partial(_follow_earlier, stretch, names, frames))


def _follow_earlier(stretch: Stretch, names: TopicNames, frames: StoredFrames) -> None:
    for path in (*stretch.earlier, stretch.path):
        with contextlib.suppress(RecordingError):  # whoever reads that file reports it
            file = RecordingFile(path)
            for batch in file.batches():
                if path == stretch.path and batch.offset >= stretch.begin:
                    break
                follow_beginnings(names, file.exchanges(batch), frames)
            file.close()


def _opened(stretch: Stretch, wanted: Filter | None = None) -> RecordingFile:
    file = RecordingFile(stretch.path)
    if wanted is not None:
        file.use_index()
    file.skip_to(stretch.begin, stretch.notes)
    return file


def _files(stretch: Stretch, file: RecordingFile) -> list[RecordingFile]:
    """Return the file of a stretch behind the earlier ones of its recording: these are read if
    something is not in the later ones."""
    found: list[RecordingFile] = []
    for path in stretch.earlier:
        try:
            earlier = RecordingFile(path)
        except RecordingError:
            continue  # it was deleted since: its frames are unknown
        earlier.skip_to(END)
        earlier.close()
        found.append(earlier)
    found.append(file)
    for before, each in itertools.pairwise(found):
        each.goes_on_with(before)
    return found


def _batches(file: RecordingFile, stretch: Stretch) -> Iterator[tuple[StoredBatch, bool]]:
    """Yield the batches from `begin` of a stretch on, and whether they are part of it."""
    for batch in file.batches():
        if batch.offset >= stretch.stop:
            return
        yield batch, batch.offset >= stretch.start or not stretch.start


def _note(context: RecordingContext, notes: Iterable[Note]) -> None:
    for note in notes:
        context.note(note)


def _tables(
    file: RecordingFile,
    stretch: Stretch,
    on_notes: Callable[[Sequence[Note]], None],
    chooser: Chooser,
) -> Iterator[tuple[ExchangeTable, bool]]:
    """Yield the exchanges of the batches from `begin` of a stretch on, as far as the chooser does
    not skip them, and whether they are part of it; then those that its recording leaves open.
    `on_notes` gets the notes before each."""
    for batch, given in _batches(file, stretch):
        on_notes(batch.notes)
        if not chooser.skips(batch):
            yield file.exchanges(batch), given
    if stretch.last:
        yield ExchangeTable(sorted(file.left(file.end_ns))), True
