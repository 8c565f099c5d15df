"""Read stretches of recordings: the rows of a view, as Arrow record batches.

    BatchRange ─▶ Reader ─▶ Exchange, Note ─▶ items of a view ─ batches ─▶ record batches

Invariant: nothing that opens a frame is asked for, unless a column or a filter needs it.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import attrs
import pyarrow as pa

from kproxy.exchange import notes
from kproxy.exchange.entities import TopicNames
from kproxy.exchange.entries import Note
from kproxy.exchange.exchange import Exchange
from kproxy.exchange.filter import Filter, parse
from kproxy.exchange.filter.terms import terms_of
from kproxy.exchange.meanings import RECORDS, apis_with
from kproxy.exchange.unpacking import Unpacking
from kproxy.recording import RecordingError, RecordingFile
from kproxy.recording.exchanges import Reader
from kproxy.recording.paths import Paths, info
from kproxy.recording.reader import open_if_there, warn
from kproxy.recording.stored import StoredBatch
from kproxy.recording.uri import located
from kproxy.tables import splits
from kproxy.tables.batches import batches, cleaned
from kproxy.tables.splits import END, BatchRange
from kproxy.tables.views import FILE, RECORDING, ViewColumn, chosen, schema_of
from kproxy.wire.protocol import schema as kafka

OnNote = Callable[[Note], None]
_BEGINNINGS = parse("api:CreateTopics,FindCoordinator")
"""The exchanges that tell of a beginning (`beginnings.FOLLOWED`)."""
_FOREIGN = (pa.ArrowException, ArithmeticError, LookupError, TypeError, ValueError)
"""Errors of pyarrow and Python about values of another type, or out of range."""


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

    def rows() -> Iterator[pa.RecordBatch]:
        for stretch in splits.stretches(found, END):
            yield from record_batches(stretch, view, selected, schema, wanted, warn)

    return pa.RecordBatchReader.from_batches(schema, rows())


def check_filtered(view: str) -> None:
    """Check that a view can be filtered.

    Raises: ValueError.
    """
    if view == "events":
        raise ValueError("a filter selects exchanges; events cannot be filtered")


def record_batches(
    stretch: BatchRange,
    view: str,
    columns: Sequence[ViewColumn],
    schema: pa.Schema | None = None,
    wanted: Filter | None = None,
    on_torn: OnNote = lambda note: None,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a stretch; with a filter, those of the exchanges that match it. `schema`
    has Spark's types, if they differ from those of the columns. `on_torn` gets the note that says
    where its file is torn.

    Raises: RecordingError.
    """
    follows = "routine" in [column.name for column in columns] or _asks_for_routine(wanted)
    if view == "events":
        items: Iterator[Any] = events(stretch, on_torn)
    else:
        items = chain.from_iterable(map(ITEMS[view], exchanges(stretch, wanted, follows, on_torn)))
    with names_file(stretch):
        yield from batches(items, columns, file_values(stretch), schema)


def _asks_for_routine(wanted: Filter | None) -> bool:
    terms = () if wanted is None else terms_of(wanted.node)
    return any(term.name in ("is:error", "is:routine") for term in terms)


def _records(exchange: Exchange) -> Iterator[tuple[Exchange, Any]]:
    if exchange.api_key in apis_with(RECORDS):
        for record in exchange.records:
            yield exchange, record


def _frames(exchange: Exchange) -> Iterator[tuple[Exchange, str]]:
    if exchange.request_bytes:
        yield exchange, kafka.REQUEST
    if exchange.response_bytes:
        yield exchange, kafka.RESPONSE


ITEMS: dict[str, Callable[[Exchange], Iterable[Any]]] = {
    "exchanges": lambda exchange: (exchange,),
    "records": _records,
    "frames": _frames,
}
"""The items that an exchange has in a view."""


@contextlib.contextmanager
def names_file(stretch: BatchRange) -> Iterator[None]:
    """Have errors name the damaged file: values may be wrong even if all its checksums are right.

    Raises: RecordingError.
    """
    try:
        yield
    except (RecordingError, MemoryError):
        raise
    except _FOREIGN as error:
        why = str(error).partition("\n")[0] or type(error).__name__
        raise RecordingError(stretch.path, None, f"is damaged: {why}") from error


def file_values(stretch: BatchRange) -> dict[str, str]:
    """Return the columns with one value for all rows of a stretch."""
    return {RECORDING: cleaned(stretch.recording), FILE: cleaned(str(located(stretch.path)))}


# ---------------------------------------------------------------- stretches


def exchanges(
    stretch: BatchRange,
    wanted: Filter | None = None,
    follows: bool = False,
    on_torn: OnNote = lambda note: None,
) -> Iterator[Exchange]:
    """Yield the exchanges of a stretch; with a filter, those that match it. What is routine in them
    is known if it `follows` what began before the stretch.

    Raises: RecordingError.
    """
    for _, found in _read(stretch, wanted, follows, on_torn):
        yield from found


def events(stretch: BatchRange, on_torn: OnNote = lambda note: None) -> Iterator[Note]:
    """Yield the notes of a stretch; the last one of a torn file says where it is torn.

    Raises: RecordingError.
    """
    torn: list[Note] = []
    if (file := _opened(stretch, torn.append)) is not None:
        with file:
            for batch in _batches(stretch, file):
                yield from batch.notes
            if stretch.to_end and file.torn is not None:
                torn.append(file.torn)
    for each in torn:
        on_torn(each)
        yield each


def everything(stretch: BatchRange) -> Iterator[Note | Exchange]:
    """Yield the notes of a stretch, as `events` does, and its exchanges, in one reading.

    Raises: RecordingError.
    """
    torn: list[Note] = []
    for noted, found in _read(stretch, None, True, torn.append):
        yield from noted
        yield from found
    yield from torn


def _read(
    stretch: BatchRange, wanted: Filter | None, follows: bool, on_torn: OnNote
) -> Iterator[tuple[Iterable[Note], Iterable[Exchange]]]:
    """Yield the notes of each batch, and the exchanges that end in it."""
    # Rows are streamed, and splits know nothing of each other: each exchange is bounded alone.
    reader = Reader(lambda note: None, wanted, unpacking=Unpacking.endless())
    file = _opened(stretch, on_torn)
    if file is None:
        return
    with file:
        for each in (*_earlier(stretch), file):
            deque(reader.begin(each), 0)
        if follows:
            reader.names.beginnings.offer(partial(_follow_earlier, stretch, reader.names))
        deque(reader.batch(file, StoredBatch(-1, notes=list(stretch.notes))), 0)
        for batch in _batches(stretch, file):
            yield batch.notes, reader.batch(file, batch)
        if stretch.last:
            yield (), reader.left()
        if stretch.to_end and file.torn is not None:
            on_torn(file.torn)


def _opened(stretch: BatchRange, on_gone: OnNote) -> RecordingFile | None:
    """Open the file of a stretch; None, with a note, if --keep has removed it meanwhile."""
    path = located(stretch.path)
    file = open_if_there(path, True) if isinstance(path, Path) else RecordingFile(path)
    if file is None:
        on_gone(notes.gone(0, str(path)))
    else:
        file.skip_to(stretch.start, stretch.notes)
    return file


def _earlier(stretch: BatchRange) -> Iterator[RecordingFile]:
    """Yield the earlier files of a recording: they are read if something is not in the later
    ones."""
    for path in stretch.earlier:
        with contextlib.suppress(RecordingError):  # it was deleted since: its frames are unknown
            file = RecordingFile(path)
            file.skip_to(END)
            file.close()
            yield file


def _batches(stretch: BatchRange, file: RecordingFile) -> Iterator[StoredBatch]:
    for batch in file.batches():
        if batch.offset >= stretch.stop:
            return
        yield batch


def _follow_earlier(stretch: BatchRange, names: TopicNames) -> None:
    """Follow what began in the same recording before a stretch."""
    whole = attrs.evolve(stretch, start=0, stop=END, notes=(), to_end=False, last=False)
    parts = [
        attrs.evolve(whole, path=path, earlier=stretch.earlier[:at])
        for at, path in enumerate(stretch.earlier)
    ]
    for part in (*parts, attrs.evolve(whole, stop=stretch.start)):
        with contextlib.suppress(RecordingError):  # whoever reads that file reports it
            for each in exchanges(part, _BEGINNINGS):
                time_ns = each.request_received_ns
                names.beginnings.follow(each.row.api_key, each.request, each.response, time_ns)
