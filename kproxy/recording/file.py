"""One recording file, to be read.

::

    path ─▶ RecordingFile ─▶ info · batches() ─▶ exchanges(batch) · notes · frames(batch)
                               └─▶ frame(position)

A pass over the batches reads exchanges and notes, and seeks past the frames; these are read when
somebody asks for them. What was read last is kept for a moment, for frames that lie together are
asked for together.
"""

from __future__ import annotations

import contextlib
import itertools
import struct
import weakref
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import TypeVar

import attrs

from kproxy.exchange import notes
from kproxy.exchange.entries import FRAGMENT, MORE, TRUNCATED, Frame, Note, Position
from kproxy.recording.batch_index import BatchIndex, belongs, is_index, is_schema, last_chunk
from kproxy.recording.files import RecordingError, being_written, open_recording
from kproxy.recording.info import Chunk, Info
from kproxy.recording.layout import Channel
from kproxy.recording.other_columns import Values
from kproxy.recording.scan import Scan
from kproxy.recording.source import RecordingSource
from kproxy.recording.stored import (
    BatchScan,
    Locations,
    MessagePlace,
    StoredBatch,
    StoredMessage,
    check,
    notes_of,
    read_messages,
    read_note,
    wrong,
)
from kproxy.recording.table_messages import ExchangeTable, FrameTable
from kproxy.recording.uri import Uri, located

_CHUNKS_KEPT = 4
_TABLES_KEPT = 4

Table = TypeVar("Table", FrameTable, ExchangeTable)


class RecordingFile:
    """An open recording file; one that is still being written is read as far as it goes.

    With `whole`, passes read and check every byte; else frames are passed over. `skip_damaged`
    leaves out damaged chunks and collects their errors in `damages`.

    Resource handling: holds the file open until `close`, or until nobody refers to it; after
    `close` it opens it again when needed.

    Raises: RecordingError, when the file is not a recording; its methods raise it where the file is
    damaged.
    """

    def __init__(
        self, path: Path | Uri | str, *, whole: bool = False, skip_damaged: bool = False
    ) -> None:
        self.path = located(path) if isinstance(path, str) else path
        self.damages: list[RecordingError] = []
        file = open_recording(self.path)
        self._closer = weakref.finalize(self, file.close)
        self._scan = Scan(
            RecordingSource(self.path, file), self.damages.append if skip_damaged else None
        )
        self._start_ns = self._end_ns = 0
        self._pass = BatchScan(self._scan, self._keep, not whole)
        self._batches: list[StoredBatch] = []
        self._by_number: dict[int, StoredBatch] = {}
        self.tables_kept = _TABLES_KEPT
        """The number of batches whose frames are kept: 256 KiB or more for each."""
        self.locations: Locations | None = None
        """The places of frames, if they are known without a pass."""
        self._kept: OrderedDict[int, list[StoredMessage]] = OrderedDict()
        self._tables: OrderedDict[int, FrameTable] = OrderedDict()
        self._index: BatchIndex | None = None
        self._skipped_to = 0
        """The batches before this offset are not known yet."""
        self._scan.read_head()
        self._head_end = self._scan.offset
        info = self.info
        if not info.native and not (info.start_ns and info.format_version):
            for _ in self.batches():  # where other tools dropped the metadata: what is left follows
                pass
            info.start_ns = info.start_ns or self._start_ns

    def __enter__(self) -> RecordingFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file for now."""
        self._closer()

    def reopen(self) -> None:
        """Open the file again if it is closed."""
        if self._scan.source.file.closed:
            file = open_recording(self.path)
            self._scan.source.reopened(file)
            self._closer = weakref.finalize(self, file.close)

    @property
    def info(self) -> Info:
        """The information in its head."""
        return self._scan.info

    @property
    def scan(self) -> Scan:
        """The pass over the file, as far as it went."""
        return self._scan

    # ------------------------------------------------------------ batches

    def batches(self, start: int = 0) -> Iterator[StoredBatch]:
        """Yield the batches from the `start`-th on, in order, as far as the file goes now; for a
        growing file, a later call yields the new ones."""
        yield from self._batches[start:]
        self.reopen()
        for batch in itertools.chain(self._indexed(), self._pass.batches()):
            self._batches.append(batch)
            if batch.number > 0:
                self._by_number[batch.number] = batch
            yield batch

    def use_index(self) -> None:
        """Take what the batches hold from the file's index, if it has one: then a pass reads only
        the batches that have notes, and of the others what somebody asks for."""
        if self._index is None and self.info.native and self.complete:
            self._index = self._find_index()

    @property
    def indexed(self) -> bool:
        """True if `use_index` has found what the batches hold."""
        return self._index is not None

    def _find_index(self) -> BatchIndex | None:
        source = self._scan.source
        with contextlib.suppress(RecordingError, ValueError, KeyError, TypeError, struct.error):
            last, data_crc = last_chunk(source) or (None, 0)
            if last is None:
                return None
            read = self._scan.again(last)
            for message in read_messages(self._scan, read):
                if message.channel is not Channel.EVENTS:
                    continue
                note = read_note(self._scan, read, message)
                if is_index(note) and belongs(source, note.body, last.end, data_crc):
                    return BatchIndex.of(note.body, self._head_end, note.body["offset"])
        return None

    def _indexed(self) -> Iterator[StoredBatch]:
        """Yield the batches of the index from where the pass is."""
        if self._index is None:
            return
        for facts in self._index.facts(self._scan.offset):
            places = _chunk(facts.offset, facts.exchanges_offset, facts.end)
            small = facts.exchanges_offset == facts.offset
            exchanges = _chunk(facts.exchanges_offset, facts.end, facts.end)
            batch = StoredBatch(
                facts.number, MessagePlace(places, 0), MessagePlace(exchanges, int(small)),
                facts=facts,
            )  # fmt: skip
            if facts.has_notes:
                for message in self._messages(exchanges):
                    batch.notes += notes_of(self._scan, exchanges, message)
            self._scan.skip_to(facts.end)
            self._end_ns = max(self._end_ns, facts.end_ns)
            yield batch

    def schema_notes(self) -> Iterator[Note]:
        """Yield the notes on schemas from where the pass is. Where the file's index says which
        batches have some, only these are read.

        Raises: RecordingError.
        """
        self.use_index()
        index = self._index
        if index is None or index.schemas is None:
            for batch in self.batches():
                yield from filter(is_schema, batch.notes)
            return
        for facts in index.facts(self._scan.offset):
            if facts.offset in index.schemas:
                chunk = _chunk(facts.exchanges_offset, facts.end, facts.end)
                for message in self._messages(chunk):
                    yield from filter(is_schema, notes_of(self._scan, chunk, message))

    def skip_to(self, offset: int) -> None:
        """Begin the pass at the batch whose first chunk lies at an offset. The batches before it
        are passed over when a frame is not found; the end of the file is not checked."""
        if offset > self._scan.offset:
            self._skipped_to = offset
            self._scan.skip_to(offset)

    def exchanges(self, batch: StoredBatch) -> ExchangeTable | None:
        """Return the table of exchanges of a batch; None if the file ends before it."""
        table = self._table(batch.exchanges, ExchangeTable)
        if batch.facts is not None and table is not None and not batch.facts.holds(table):
            place = batch.exchanges
            raise self.wrong(place, ValueError("the index at the end of the file says otherwise"))
        return table

    def frames(self, batch: StoredBatch) -> FrameTable | None:
        """Return the table of frames of a batch; None if there is none."""
        table = self._tables.get(batch.number)
        return self._read_frames(batch) if table is None else table

    def _read_frames(self, batch: StoredBatch) -> FrameTable | None:
        place = batch.frames
        table = self._table(place, FrameTable)
        if place is not None and self.info.native and batch.number != self._message(place).sequence:
            raise wrong(self._scan, place.chunk, "has messages of several batches")
        if table is not None:
            self._tables[batch.number] = table
            if len(self._tables) > self.tables_kept:
                self._tables.popitem(last=False)
        return table

    def arrow_stream(self, table: str) -> Iterator[bytes | memoryview]:
        """Yield the parts of an Arrow stream with one of the file's tables, "exchanges" or
        "frames": `pyarrow.ipc.open_stream(b"".join(…))` reads it."""
        schemas = self._scan.head.schemas
        yield (schemas.exchanges if table == "exchanges" else schemas.frames).message
        for batch in self.batches():
            place = batch.exchanges if table == "exchanges" else batch.frames
            if place is not None:
                yield self._message(place).data

    @property
    def torn(self) -> Note | None:
        """The note, after a pass, that says where and why a file breaks off; None if it does
        not."""
        scan = self._scan
        if scan.torn is None:
            return None
        time_ns, what = self.end_ns or self.info.start_ns, self.why_torn()
        return notes.torn(time_ns, str(self.path), scan.offset, what, self.being_written)

    def why_torn(self) -> str:
        """Return where and why the file breaks off."""
        scan = self._scan
        if self.being_written:
            return f"{scan.torn}: it is still being written"
        if not self.info.native:
            return f"{scan.torn}: complete it with `mcap recover`"
        if not self.info.format_version:
            return f"{scan.torn}, before anything was recorded"
        return f"{scan.torn}: its writer was stopped; `kproxy recover` completes it"

    @property
    def complete(self) -> bool:
        """True if the file seems to have an end."""
        self.reopen()
        return self._scan.source.has_end()

    @property
    def being_written(self) -> bool:
        """True while a living process writes it."""
        self.reopen()
        return being_written(self._scan.source.file)

    @property
    def end_ns(self) -> int:
        """The latest time of the batches that passes have reached."""
        return self._end_ns

    def _table(self, place: MessagePlace | None, kind: type[Table]) -> Table | None:
        if place is None:
            return None
        message = self._message(place)
        try:
            if message.columns is None or message.channel is not kind.channel:
                raise ValueError("it is another table")
            return kind(message.data, message.columns)
        except ValueError as error:
            raise self.wrong(place, error) from None

    def _message(self, place: MessagePlace) -> StoredMessage:
        return self._messages(place.chunk)[place.nth]

    def _messages(self, chunk: Chunk) -> list[StoredMessage]:
        messages = self._kept.get(chunk.offset)
        if messages is None:
            self.reopen()
            read = self._scan.again(chunk)
            messages = read_messages(self._scan, read)
            if self.info.native and messages[:1] and messages[0].channel is FrameTable.channel:
                check(self._scan, read, messages, None)  # a pass may have passed over it
            self._keep(read, messages)
        return messages

    def _keep(self, chunk: Chunk, messages: list[StoredMessage] | None) -> None:
        if messages is not None:
            self._kept[chunk.offset] = messages
            if len(self._kept) > _CHUNKS_KEPT:
                self._kept.popitem(last=False)
        self._start_ns = min(self._start_ns or chunk.start_ns, chunk.start_ns)
        self._end_ns = max(self._end_ns, chunk.end_ns)

    # ------------------------------------------------------------ frames

    def frame(self, position: Position, files: Sequence[RecordingFile] = ()) -> Frame | None:
        """Return the frame at a position, put together if it is in pieces; None if this file does
        not have it. Its first pieces may lie in others of the recording's `files`. A frame whose
        first pieces are missing, or last ones, is TRUNCATED."""
        pieces: list[Frame] = []
        for table, at in self._pieces(position, files):
            piece = self._at(table, at)
            if not pieces and not piece.flags & FRAGMENT:
                return piece
            pieces.append(piece)
        if not pieces:
            return None
        frame = pieces[0]
        data = [data for piece in reversed(pieces) for data in piece.pieces]
        cut = frame.flags & MORE or sum(map(len, data)) != frame.frame_bytes
        flags = frame.flags & ~(FRAGMENT | MORE) | (TRUNCATED if cut else 0)
        return attrs.evolve(frame, pieces=data, flags=flags)

    def frame_bytes(self, integer: int, files: Sequence[RecordingFile] = ()) -> bytes | None:
        """Return the bytes of the frame at a position, given as an integer; None if this file does
        not have it.

        It takes a tenth of the time of `frame`.
        """
        table = self._tables.get(integer >> 32)
        if table is None:
            table = self.table_of(integer >> 32)
        if table is None:
            return None
        found = table.whole(integer >> 16 & 0xFFFF, integer & 0xFFFF)
        if found is not None:
            return found
        position = Position.of(integer)
        if position is None:
            return None
        size = table.whole_bytes(position.run)
        if size is not None:
            pieces = [table.piece(at.run) for table, at in self._pieces(position, files)]
            if sum(map(len, pieces)) == size:
                return b"".join(reversed(pieces))
        frame = self.frame(position, files)
        return None if frame is None else frame.data

    def unknown(self, integer: int) -> Values | None:
        """Return the values in columns that are not ours of the run at a position, given as an
        integer; None if this file does not have it.

        Raises: RecordingError.
        """
        table, run = self.table_of(integer >> 32), integer >> 16 & 0xFFFF
        if table is None or run >= len(table):
            return None
        return table.unknown[run] if table.unknown else {}

    def _pieces(
        self, position: Position, files: Sequence[RecordingFile]
    ) -> Iterator[tuple[FrameTable, Position]]:
        """Yield where the pieces of a frame lie, from the last one, which is here, to the first."""
        at: Position | None = position
        table = self.table_of(at.batch)
        while at is not None and table is not None:
            yield table, at
            before = table.previous_piece(at.run)
            at = before if before is not None and before < at else None
            if at is not None:
                tables = (file.table_of(at.batch) for file in (self, *reversed(files)))
                table = next((found for found in tables if found is not None), None)

    def table_of(self, number: int) -> FrameTable | None:
        """Return the table of frames of a batch, given by its number; None if this file does not
        have it."""
        table = self._tables.get(number)
        if table is None and (batch := self._stored(number)) is not None:
            table = self._read_frames(batch)
        return table

    def forget(self) -> None:
        """Release everything that a pass has kept, except `locations`."""
        self._batches, self._by_number = [], {}
        self._kept.clear()
        self._tables.clear()

    def _stored(self, number: int) -> StoredBatch | None:
        found = self._by_number.get(number)
        if found is None and self.locations is None and self._index is not None:
            self.locations = Locations()
            for facts in self._index.facts():
                frames = MessagePlace(_chunk(facts.offset, facts.exchanges_offset, facts.end), 0)
                self.locations.add(StoredBatch(facts.number, frames))
        if found is None and self.locations is not None:
            return self.locations.batch(number)
        if found is None and self._skipped_to:
            self._read_beginning()
            found = self._by_number.get(number)
        return found

    def _read_beginning(self) -> None:
        stop, self._skipped_to = self._skipped_to, 0
        with RecordingFile(self.path) as beginning:
            for batch in beginning.batches():
                if batch.offset >= stop:
                    break
                if batch.number > 0:
                    self._by_number.setdefault(batch.number, batch)

    def _at(self, table: FrameTable, position: Position) -> Frame:
        try:
            frames = table.run(position.run)
            return frames[position.nth]
        except (ValueError, IndexError) as error:
            batch = self._stored(position.batch)
            raise self.wrong(None if batch is None else batch.frames, error) from None

    def wrong(self, place: MessagePlace | None, error: Exception) -> RecordingError:
        """Return the error for a table that does not decode."""
        assert place is not None
        return wrong(self._scan, place.chunk, f"has a table that does not decode: {error}")


def _chunk(offset: int, following: int, end: int) -> Chunk:
    """Return a chunk that was not read: up to what follows it in its batch, or the batch's end."""
    return Chunk(offset, end if following == offset else following, 0, 0, "", 0, 0, None)


def frame_in(files: Sequence[RecordingFile], position: Position) -> Frame | None:
    """Return the frame at a position in the files of a recording; None if none of them has it.

    Raises: RecordingError.
    """
    found = (file.frame(position, files) for file in reversed(files))
    return next((frame for frame in found if frame is not None), None)


def frame_bytes_in(files: Sequence[RecordingFile], integer: int) -> bytes | None:
    """Return the bytes of the frame at a position, given as an integer, in the files of a
    recording; None for 0, and if none of them has it.

    Raises: RecordingError.
    """
    if integer <= 0:
        return None
    for file in reversed(files):  # a generator would cost as much as a look into the table
        found = file.frame_bytes(integer, files)
        if found is not None:
            return found
    return None
