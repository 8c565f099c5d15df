"""One recording file, to be read.

::

    path ─▶ RecordingFile ─▶ info · batches() ─▶ exchanges(batch) · notes · entries(batch)
                               └─▶ frame(place)

A pass over the batches yields the notes; the exchanges that end in a batch are followed when
somebody asks for them. Batches may be passed over, or asked for again, in any order: then a request
that began before is looked for where its number lies. What was read last is kept for a moment, for
frames that lie together are asked for together.
"""

from __future__ import annotations

import contextlib
import itertools
import struct
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import TypeVar

import attrs

from kproxy.exchange import notes
from kproxy.exchange.entries import (
    EVENTS,
    FRAGMENT,
    MORE,
    TRUNCATED,
    Buffer,
    ExchangeRow,
    Frame,
    Note,
    Position,
)
from kproxy.exchange.follower import LATE, Asked, Follower
from kproxy.recording.batch_index import (
    HAS_NOTES,
    HAS_SCHEMAS,
    BatchIndex,
    belongs,
    is_index,
    last_chunk,
)
from kproxy.recording.connections import ConnectionLog
from kproxy.recording.files import FormerFormatError, RecordingError, being_written, open_recording
from kproxy.recording.info import Chunk, Info
from kproxy.recording.layout import Channel
from kproxy.recording.pieces import Pieces
from kproxy.recording.scan import Scan
from kproxy.recording.source import RecordingSource
from kproxy.recording.stored import (
    Locations,
    Part,
    StoredBatch,
    StoredMessage,
    batches_of,
    check,
    counts,
    joined,
    notes_of,
    pieces_of,
    read_messages,
    read_note,
    wrong,
)
from kproxy.recording.uri import Uri, located
from kproxy.wire.payloads.schemas import NOTE as SCHEMA

_CHUNKS_KEPT = 4
_PIECES_KEPT = 4
_REQUESTS_KEPT = 8


class RecordingFile:
    """An open recording file; one that is still being written is read as far as it goes.

    `skip_damaged` leaves out damaged chunks and collects their errors in `damages`. One of the
    former format is converted, and so read elsewhere; without `converts`, only its head is read.

    Resource handling: holds the file open until `close`, or until nobody refers to it; after
    `close` it opens it again when needed.

    Raises: RecordingError, when the file is not a recording; its methods raise it where the file is
    damaged.
    """

    def __init__(
        self, path: Path | Uri | str, *, skip_damaged: bool = False, converts: bool = True
    ) -> None:
        self.path = located(path) if isinstance(path, str) else path
        self.damages: list[RecordingError] = []
        self._content = self.path
        """Where its content is: elsewhere if it was converted."""
        self._scan = self._begin(self.damages.append if skip_damaged else None, converts)
        self._start_ns = self._end_ns = 0
        self._batches: list[StoredBatch] = []
        self._by_number: dict[int, StoredBatch] = {}
        self.pieces_kept = _PIECES_KEPT
        """The number of batches whose pieces are kept: 256 KiB or more for each."""
        self.locations: Locations | None = None
        """The places of batches, if they are known without a pass."""
        self._kept: OrderedDict[int, tuple[Chunk, list[StoredMessage]]] = OrderedDict()
        self._pieces: OrderedDict[int, Pieces] = OrderedDict()
        self._requests: OrderedDict[int, dict[int, Asked]] = OrderedDict()
        self._index: BatchIndex | None = None
        self._skipped_to = 0
        """The batches before this offset are not known yet."""
        self._before: list[StoredBatch] = []
        """The batches before the pass, once they are."""
        self._follower = Follower(self._find_if_gaps, self._feed)
        self._sequence = 0
        """The sequence of the chunk that a pass has read last."""
        self._followed = 0
        """The number of the last batch that was followed."""
        self._gaps = False
        """True if not all batches before that were."""
        self._ended: dict[int, list[ExchangeRow]] = {}
        """The exchanges that were not complete when their connection ended, by batch."""
        self._begins_inside = False
        """True if the pass began inside, where what was pending is not known."""
        self._at_head: Follower | None = None
        """It has what was not complete when the file began."""
        self._head_end = self._scan.offset
        info = self.info
        if not info.native and not (info.start_ns and info.format_version):
            for _ in self.batches():  # where other tools dropped the metadata: what is left follows
                pass
            info.start_ns = info.start_ns or self._start_ns

    def _begin(self, damaged: Callable[[RecordingError], None] | None, converts: bool) -> Scan:
        """Open the file, and read its head; convert one of the former format before."""
        file = open_recording(self._content)
        self._closer = weakref.finalize(self, file.close)
        scan = Scan(RecordingSource(self.path, file), damaged)
        try:
            scan.read_head()
        except FormerFormatError:
            from kproxy.recording import format2

            if not converts:
                return format2.begin(RecordingSource(self.path, file))
            self.close()
            if self.converted or not isinstance(self.path, Path):
                raise
            self._content = format2.converted(self.path)
            return self._begin(damaged, converts)
        return scan

    @property
    def converted(self) -> bool:
        """True if the file has the former format, and a conversion of it is read."""
        return self._content != self.path

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
            file = open_recording(self._content)
            self._scan.source.file = file
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
        for batch in itertools.chain(self._indexed(), self._read()):
            self._batches.append(batch)
            if batch.number > 0:
                self._by_number[batch.number] = batch
            yield batch

    def _read(self) -> Iterator[StoredBatch]:
        """Yield the batches from where the pass is, reading and checking every byte."""
        batches = self._read_chunks()
        yield from batches if self.info.native else joined(batches)

    def _read_chunks(self) -> Iterator[StoredBatch]:
        scan = self._scan
        for chunk in scan.chunks():
            messages = read_messages(scan, chunk)
            if scan.info.native:
                check(scan, chunk, messages)
                if messages[0].sequence <= self._sequence:
                    raise wrong(scan, chunk, "comes again, or behind a later one")
                self._sequence = messages[0].sequence
            if scan.index is not None:
                scan.index.add(chunk, counts(messages), scan.source.crc)
            self._keep(chunk, messages)
            yield from batches_of(scan, chunk, messages)

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
        with contextlib.suppress(
            RecordingError, ValueError, KeyError, TypeError, OverflowError, struct.error
        ):
            last, data_crc = last_chunk(source) or (None, 0)
            if last is None:
                return None
            read = self._scan.again(last)
            for message in read_messages(self._scan, read):
                if message.channel != Channel.EVENTS:
                    continue
                note = read_note(self._scan, read, message)
                if is_index(note) and belongs(source, note.body, last.end, data_crc):
                    return BatchIndex.of(note.body, self._head_end, note.body["offset"])
        return None

    def _indexed(self) -> Iterator[StoredBatch]:
        """Yield the batches of the index from where the pass is."""
        if self._index is None:
            return
        for number, chunk, facts in self._index.facts(self._scan.offset):
            numbers = facts.first, facts.last
            batch = StoredBatch(number, chunk, facts=facts, numbers=numbers)
            if facts.has & HAS_NOTES:
                read, messages = self._read_again(chunk)
                for message in messages:
                    batch.notes += notes_of(self._scan, read, message)
            self._scan.skip_to(chunk.end)
            self._end_ns = max(self._end_ns, chunk.end_ns)
            yield batch

    def events(self, name: str) -> Iterator[Note]:
        """Yield the notes on an event, as "schema", from where the pass is. Where the file's index
        says which batches have notes, only these are read.

        Raises: RecordingError.
        """
        self.use_index()
        wanted = HAS_SCHEMAS if name == SCHEMA else HAS_NOTES
        for batch in self.batches():
            if batch.facts is None or batch.facts.has & wanted:
                for note in batch.notes:
                    if note.channel == EVENTS and note.body.get("event") == name:
                        yield note

    def skip_to(self, offset: int, known: Iterable[Note] = ()) -> None:
        """Begin the pass at the batch whose chunk lies at an offset, with `known` notes of what is
        pending there (`pending`). The batches before it are passed over when a frame, or without
        such notes a request, is not found; the end of the file is not checked."""
        listed = list(filter(notes.is_pending, known))
        for note in listed:
            self._follower.note(note)
        if offset > self._scan.offset:
            self._skipped_to = offset
            self._scan.skip_to(offset)
            self._gaps = self._begins_inside = not listed

    # ------------------------------------------------------------ exchanges

    def goes_on_with(self, before: RecordingFile) -> None:
        """Follow on where the file before it in its recording ended, if a pass has reached that."""
        if not (self._begins_inside or before._begins_inside):
            self._follower = before._follower
            self._follower.goes_on(self._find_if_gaps, self._feed)

    def exchanges(self, batch: StoredBatch) -> list[ExchangeRow]:
        """Return the exchanges that end in a batch."""
        if batch.chunk is None:
            return []
        pieces = self.pieces(batch)
        if batch.number > self._followed:
            self._gaps = self._gaps or self._follows_gap(batch)
            self._followed = batch.number
            rows = self._follow(batch, pieces, self._follower)
            for note in itertools.filterfalse(notes.is_pending, batch.notes):
                self._follower.note(note)
            if self._follower.rows:
                self._ended[batch.number] = self._follower.take()
        else:
            rows = self._follow(batch, pieces, Follower(self._find, self._feed))
        facts = batch.facts
        if facts is not None and not all(map(facts.holds, rows)):
            raise self.wrong(batch, "the index at the end of the file says otherwise")
        return [*rows, *self._ended.get(batch.number, ())]

    def end_before(self, later: RecordingFile) -> Iterator[ExchangeRow]:
        """Yield, after a pass, the exchanges that ended in parts that are missing between this file
        and a later one: as far as this one has them."""
        if not self._begins_inside:
            yield from self._follower.end_but(later._begun_earlier(), self.end_ns)

    def _follows_gap(self, batch: StoredBatch) -> bool:
        """Return whether batches before this one were not followed."""
        return batch.facts is not None or batch.number > self._followed + 1 > 1

    def _follow(self, batch: StoredBatch, pieces: Pieces, follower: Follower) -> list[ExchangeRow]:
        for note in filter(notes.is_pending, batch.notes):
            follower.note(note)  # it was so before the pieces
        with self._damage(batch):
            pieces.follow(follower)
        return follower.take()

    def left(self, ended_ns: int) -> Iterator[ExchangeRow]:
        """Yield the exchanges that are not complete where the file ends, after a pass."""
        if not self._begins_inside:
            yield from self._follower.left(ended_ns)
            return
        with RecordingFile(self.path) as whole:
            for batch in whole.batches():
                whole.exchanges(batch)
            yield from whole.left(ended_ns)

    def begins(self) -> bool:
        """Return whether its beginning was written, which lists what is pending."""
        return any(
            any(map(notes.is_pending, batch.notes)) or len(self.pieces(batch))
            for batch in self.batches()
        )

    def opening_notes(self, time_ns: int) -> list[Note]:
        """Pass over the file; return the notes with which the next one of its recording begins."""
        log = ConnectionLog()
        for batch in self.batches():
            log.remember(batch.notes)
            self.exchanges(batch)
        return [*log.opening_notes(time_ns), self.pending()]

    def pending(self) -> Note:
        """Return a note that lists the exchanges that are not complete where the pass is."""
        return notes.pending(self.end_ns, [*self._follower.unfinished()])

    def _find_if_gaps(self, number: int) -> Asked | None:
        return self._find(number) if self._gaps else None

    def _find(self, number: int) -> Asked | None:
        """Return a request of this file, or one that was pending when it began."""
        for batch in self._holding(number):
            found = self._requests_of(batch).get(number)
            if found is not None:
                return found
        return self._begun_earlier().asked(number)

    def _holding(self, number: int) -> Iterator[StoredBatch]:
        """Yield the batches that may hold a request, the nearest first."""
        self._read_beginning()
        for batch in itertools.chain(reversed(self._batches), reversed(self._before)):
            if batch.chunk is not None:
                least, most = self._numbers(batch)
                if least <= number <= most:
                    yield batch

    def _numbers(self, batch: StoredBatch) -> tuple[int, int]:
        if batch.numbers[1] < 0:
            with self._damage(batch):
                batch.numbers = self.pieces(batch).numbers()
        return batch.numbers

    def _requests_of(self, batch: StoredBatch) -> dict[int, Asked]:
        found = self._requests.get(batch.number)
        if found is None:
            with self._damage(batch):
                found = self._requests[batch.number] = self.pieces(batch).requests()
            if len(self._requests) > _REQUESTS_KEPT:
                self._requests.popitem(last=False)
        return found

    def _begun_earlier(self) -> Follower:
        if self._at_head is None:
            self._at_head = Follower()
            with RecordingFile(self.path) as beginning:
                for batch in beginning.batches():
                    for note in filter(notes.is_pending, batch.notes):
                        self._at_head.note(note)
                    if len(beginning.pieces(batch)):
                        break
        return self._at_head

    def _feed(self, place: int, number: int, follower: Follower) -> None:
        """Have a follower take the piece at a place, or what the file says of it at its head."""
        position = Position.of(place)
        batch = None if position is None else self._stored(position.chunk)
        if position is not None and batch is not None:
            pieces, nth = self.pieces(batch), position.piece
            with self._damage(batch):
                found = pieces[nth] if nth < len(pieces) else None
                if found is not None and found.number == number and not found.flags & LATE:
                    pieces.follow(follower, nth, nth + 1)
        elif position is not None:
            follower.adopt(self._begun_earlier(), place)

    @contextlib.contextmanager
    def _damage(self, batch: StoredBatch) -> Iterator[None]:
        try:
            yield
        except ValueError as error:
            raise self.wrong(batch, str(error)) from None

    # ------------------------------------------------------------ its end

    @property
    def torn(self) -> Note | None:
        """The note, after a pass, that says where and why a file breaks off; None if it does
        not."""
        scan = self._scan
        if scan.torn is None:
            return None
        what = self.why_torn()
        return notes.torn(self.end_ns, str(self.path), scan.offset, what, self.being_written)

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
        """The latest time of the batches that passes have reached; when it began, before."""
        return self._end_ns or self.info.start_ns

    # ------------------------------------------------------------ chunks

    def pieces(self, batch: StoredBatch) -> Pieces:
        """Return the pieces of a batch."""
        found = self._pieces.get(batch.number)
        if found is None:
            parts = list(self._parts(batch))
            found = self._pieces[batch.number] = pieces_of(batch.number, parts)
            if len(self._pieces) > self.pieces_kept:
                self._pieces.popitem(last=False)
        return found

    def _parts(self, batch: StoredBatch) -> Iterator[Part]:
        for part in (batch, *batch.rest):
            assert part.chunk is not None
            chunk, messages = self._read_again(part.chunk)
            own = messages[part.first : part.last or None]
            if own and own[0].sequence != batch.number:
                raise self.wrong(batch, "the index at the end of the file says otherwise")
            yield chunk, own

    def _read_again(self, chunk: Chunk) -> Part:
        found = self._kept.get(chunk.offset)
        if found is None:
            self.reopen()
            read = self._scan.again(chunk)
            messages = read_messages(self._scan, read)
            if self.info.native:
                check(self._scan, read, messages)  # a pass may have passed over it
            self._keep(read, messages)
            found = read, messages
        return found

    def _keep(self, chunk: Chunk, messages: list[StoredMessage]) -> None:
        self._kept[chunk.offset] = chunk, messages
        if len(self._kept) > _CHUNKS_KEPT:
            self._kept.popitem(last=False)
        self._start_ns = min(self._start_ns or chunk.start_ns, chunk.start_ns)
        self._end_ns = max(self._end_ns, chunk.end_ns)

    def entries(self, batch: StoredBatch) -> Iterator[Frame | Note]:
        """Yield the entries of a batch, in their order.

        Raises: RecordingError.
        """
        if batch.chunk is None:
            return
        pieces, nth = self.pieces(batch), 0
        for chunk, messages in self._parts(batch):
            for message in messages:
                if message.channel == Channel.PIECES:
                    with self._damage(batch):
                        frames = pieces.frames(nth)
                    yield from frames
                    nth += 1
                else:
                    yield from notes_of(self._scan, chunk, message)

    # ------------------------------------------------------------ frames

    def frame(self, position: Position, files: Sequence[RecordingFile] = ()) -> Frame | None:
        """Return the frame at a place, put together if it is in pieces; None if this file does not
        have it, or not from its beginning. Its first pieces may lie in others of the recording's
        `files`. A frame whose last pieces are missing is TRUNCATED."""
        found: list[Frame] = []
        at: Position | None = position
        while at is not None:
            frame, before = self._piece_at(at, () if at is position else files)
            if frame is None or (found and not _is_before(frame, found[-1])):
                return None
            if not found and not frame.flags & FRAGMENT:
                return frame
            found.append(frame)
            piece, at = at, Position.of(before)
            if at is not None and at >= piece:
                return None
        frame = found[0]
        data = [data for piece in reversed(found) for data in piece.pieces]
        flags = frame.flags & ~(FRAGMENT | MORE)
        if sum(map(len, data)) != frame.frame_bytes:
            if not frame.flags & (MORE | TRUNCATED) or not _begins(data, frame.frame_bytes):
                return None
            flags |= TRUNCATED
        return attrs.evolve(frame, pieces=data, flags=flags)

    def _piece_at(self, at: Position, files: Sequence[RecordingFile]) -> tuple[Frame | None, int]:
        """Return a frame, or a piece of one, and the place of the piece before it."""
        for file in (self, *reversed(files)):
            batch = file._stored(at.chunk)
            if batch is None:
                continue
            pieces = file.pieces(batch)
            if at.piece >= len(pieces):
                return None, 0
            with file._damage(batch):
                return pieces.frame(at), pieces[at.piece].more.get("at", 0)
        return None, 0

    def frame_bytes(self, place: int, files: Sequence[RecordingFile] = ()) -> bytes | None:
        """Return the bytes of the frame at the place of a `Position`; None if this file does not
        have it. It takes a tenth of the time of `frame`."""
        chunk = place >> 32
        pieces = self._pieces.get(chunk)
        if pieces is None:
            batch = self._stored(chunk) if place > 0 else None
            if batch is None:
                return None
            pieces = self.pieces(batch)
        found = pieces.frame_bytes(place)
        position = Position.of(place) if found is None else None
        if position is None:
            return found
        frame = self.frame(position, files)
        return None if frame is None else frame.data

    def forget(self) -> None:
        """Release everything that a pass has kept, except `locations`."""
        self._batches, self._by_number = [], {}
        self._kept.clear()
        self._pieces.clear()
        self._requests.clear()

    def _stored(self, number: int) -> StoredBatch | None:
        found = self._by_number.get(number)
        if found is None and self.locations is None and self._index is not None:
            self.locations = Locations()
            for each, chunk, _ in self._index.facts():
                self.locations.add(StoredBatch(each, chunk))
        if found is None and self.locations is not None:
            return self.locations.batch(number)
        if found is None and self._skipped_to:
            self._read_beginning()
            found = self._by_number.get(number)
        return found

    def _read_beginning(self) -> None:
        """Pass over the batches before the pass."""
        stop, self._skipped_to = self._skipped_to, 0
        if not stop:
            return
        before: list[StoredBatch] = []
        with RecordingFile(self.path) as beginning:
            beginning.use_index()
            for batch in beginning.batches():
                if batch.offset >= stop:
                    break
                if batch.number > 0:
                    self._by_number.setdefault(batch.number, batch)
                    before.append(batch)
        self._before = before

    def wrong(self, batch: StoredBatch, what: str) -> RecordingError:
        """Return the error for a batch that does not decode."""
        assert batch.chunk is not None
        return wrong(self._scan, batch.chunk, f"does not decode: {what}")


def _is_before(piece: Frame, other: Frame) -> bool:
    """Return whether a piece is of the same frame as another one, and not its last: tools that
    leave out messages move places."""
    same = (piece.side, piece.connection, piece.number) == (
        other.side, other.connection, other.number,
    )  # fmt: skip
    return same and bool(piece.flags & MORE)


def _begins(data: Sequence[Buffer], frame_bytes: int) -> bool:
    """Return whether bytes are the first ones of a frame of this size."""
    return int.from_bytes(b"".join(data)[:4], "big", signed=True) + 4 == frame_bytes


def frame_in(files: Sequence[RecordingFile], position: Position) -> Frame | None:
    """Return the frame at a place in the files of a recording; None if none of them has it, as one
    that was removed.

    Raises: RecordingError.
    """
    return _look_in(files, RecordingFile.frame, position)


def frame_bytes_in(files: Sequence[RecordingFile], place: int) -> bytes | None:
    """Return the bytes of the frame at the place of a `Position` in the files of a recording; None
    for 0, and if none of them has it, as one that was removed.

    Raises: RecordingError.
    """
    if place <= 0:
        return None
    pieces = files[-1]._pieces.get(place >> 32) if files else None  # as most: not to be looked for
    found = None if pieces is None else pieces.frame_bytes(place)
    return _look_in(files, RecordingFile.frame_bytes, place) if found is None else found


_Place = TypeVar("_Place")
_Found = TypeVar("_Found")


def _look_in(
    files: Sequence[RecordingFile],
    look: Callable[[RecordingFile, _Place, Sequence[RecordingFile]], _Found | None],
    place: _Place,
) -> _Found | None:
    for file in reversed(files):  # a generator would cost as much as a look into the pieces
        try:
            found = look(file, place, files)
        except RecordingError:
            if file.path.exists():
                raise
            continue
        if found is not None:
            return found
    return None
