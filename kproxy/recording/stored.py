"""The messages of verified chunks, put together to batches.

    Scan ─▶ chunk ─▶ StoredMessage, StoredMessage … ─▶ StoredBatch

In files that kproxy wrote, every batch is one chunk if it is small, else one of frames and one of
exchanges and notes; which lets a reader of exchanges pass over the frames. Other tools cut chunks
elsewhere; what belongs together still follows each other and has the same sequence.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import NamedTuple

import attrs

from kproxy.exchange import note_values, notes
from kproxy.exchange.entries import CONNECTIONS, EVENTS, Note
from kproxy.recording.batch_index import BatchFacts, is_index
from kproxy.recording.ending import ChunkInfo
from kproxy.recording.files import RecordingError, being_written
from kproxy.recording.info import Chunk
from kproxy.recording.layout import SMALL_BATCH_BYTES, Channel
from kproxy.recording.mcap import (
    CHANNEL,
    MESSAGE,
    MESSAGE_FIXED_BYTES,
    MESSAGE_HEAD,
    RECORD,
    SCHEMA,
)
from kproxy.recording.other_columns import TableColumns
from kproxy.recording.scan import Scan

_SMALL = (Channel.FRAMES, Channel.EXCHANGES)
_TABLE_CHANNELS = frozenset(_SMALL)
_TIME_NS_MAX = (1 << 63) - 1
_NOTE_CHANNELS = {Channel.CONNECTIONS: CONNECTIONS, Channel.EVENTS: EVENTS}


class StoredMessage(NamedTuple):
    """One message on one of our channels."""

    channel: Channel
    sequence: int
    log_ns: int
    data: memoryview
    columns: TableColumns | None
    """The columns of its table; None for a note."""


class MessagePlace(NamedTuple):
    """The place of a message: its chunk and its index in the chunk."""

    chunk: Chunk
    nth: int


@attrs.define(eq=False)
class StoredBatch:
    """A batch in a file."""

    number: int
    frames: MessagePlace | None = None
    exchanges: MessagePlace | None = None
    """None if the file ends before it."""
    notes: list[Note] = attrs.field(factory=list)
    facts: BatchFacts | None = None
    """What the index of its file says of it, where that is used."""

    @property
    def offset(self) -> int:
        """The offset of its first table in the file; -1 if it has none."""
        first = self.frames or self.exchanges
        return -1 if first is None else first.chunk.offset

    def takes(self, message: StoredMessage) -> bool:
        """Return whether a message that follows belongs to the batch."""
        if message.channel is Channel.FRAMES:
            return False
        if message.channel is Channel.EXCHANGES and self.exchanges is not None:
            return False
        return message.sequence == self.number or self.number < 0


@attrs.define(eq=False)
class Locations:
    """The places of the frames of a file's batches."""

    numbers: array[int] = attrs.Factory(lambda: array("q"))
    """The numbers of the batches, ascending."""
    offsets: array[int] = attrs.Factory(lambda: array("q"))
    """The offsets of their chunks in the file."""
    ends: array[int] = attrs.Factory(lambda: array("q"))
    nths: array[int] = attrs.Factory(lambda: array("i"))
    """The index of each message in its chunk."""

    def add(self, batch: StoredBatch) -> bool:
        """Add a batch; return False if it is out of order, as only other tools write it."""
        place = batch.frames
        if place is None or batch.number <= 0:
            return True
        if len(self.numbers) and self.numbers[-1] >= batch.number:
            return False
        self.numbers.append(batch.number)
        self.offsets.append(place.chunk.offset)
        self.ends.append(place.chunk.end)
        self.nths.append(place.nth)
        return True

    def batch(self, number: int) -> StoredBatch | None:
        """Return the batch of this number, without its exchanges; None if it is not known."""
        index = bisect_left(self.numbers, number)
        if index == len(self.numbers) or self.numbers[index] != number:
            return None
        chunk = Chunk(self.offsets[index], self.ends[index], 0, 0, "", 0, 0, None)
        return StoredBatch(number, MessagePlace(chunk, self.nths[index]))


class BatchScan:
    """One pass over the batches of a file; `on_chunk` gets each chunk, and its messages if it is
    read.

    With `skip_frames` the frames are passed over where that is possible. After a pass has ended at
    the end of the file, another one goes on with what has been written since.
    """

    def __init__(
        self,
        scan: Scan,
        on_chunk: Callable[[Chunk, list[StoredMessage] | None], None],
        skip_frames: bool = False,
    ) -> None:
        self._scan = scan
        self._on_chunk = on_chunk
        self._skip_frames = skip_frames
        self._open: StoredBatch | None = None
        """A batch that may have more messages to come."""

    def batches(self) -> Iterator[StoredBatch]:
        """Yield the batches.

        Raises: RecordingError.
        """
        scan = self._scan
        for chunk in scan.chunks(self._skip):
            if chunk.records is None:
                self._on_chunk(chunk, None)
                self._open = StoredBatch(-1, MessagePlace(chunk, 0))
                continue
            messages = read_messages(scan, chunk)
            self._on_chunk(chunk, messages)
            chunk = chunk.passed_over()
            # Behind a chunk that is damaged and left out, what begins a batch may be missing.
            if scan.info.native and (scan.index is not None or scan.damaged is None):
                check(scan, chunk, messages, None if self._open is None else self._open.number)
            if scan.index is not None:
                scan.index.add(_chunk_info(chunk, messages), scan.source.crc)
            yield from self._grouped(chunk, messages)
        if self._open is not None and not (scan.info.native and being_written(scan.source.file)):
            batch, self._open = self._open, None
            yield self._numbered(batch)

    def _numbered(self, batch: StoredBatch) -> StoredBatch:
        """Read the number of a batch whose frames were passed over and that has nothing else."""
        if batch.number < 0 and batch.frames is not None:
            chunk = batch.frames.chunk
            for message in read_messages(self._scan, self._scan.again(chunk)):
                batch.number = message.sequence
        return batch

    def _skip(self, size: int) -> bool:
        native = self._skip_frames and self._scan.info.native
        return native and self._open is None and size >= SMALL_BATCH_BYTES

    def _grouped(self, chunk: Chunk, messages: list[StoredMessage]) -> Iterator[StoredBatch]:
        for index, message in enumerate(messages):
            if self._open is not None and not self._open.takes(message):
                yield self._numbered(self._open)
                self._open = None
            if self._open is None:
                self._open = StoredBatch(message.sequence)
            self._open.number = message.sequence
            if message.channel is Channel.FRAMES:
                self._open.frames = MessagePlace(chunk, index)
            elif message.channel is Channel.EXCHANGES:
                self._open.exchanges = MessagePlace(chunk, index)
            else:
                self._open.notes += notes_of(self._scan, chunk, message)
        if self._open is not None and self._open.exchanges is not None and self._scan.info.native:
            yield self._open
            self._open = None


def read_messages(scan: Scan, chunk: Chunk) -> list[StoredMessage]:
    """Return the messages of a chunk that are on our channels.

    Raises: RecordingError.
    """
    return list(_messages(scan, chunk))


def _messages(scan: Scan, chunk: Chunk) -> Iterator[StoredMessage]:
    data = memoryview(chunk.records or b"")
    at, end = 0, len(data)
    while at < end:
        if end - at < RECORD.size:
            raise wrong(scan, chunk, "ends in the middle of a record")
        opcode, length = RECORD.unpack_from(data, at)
        after = at + RECORD.size + length
        if after > end:
            raise wrong(scan, chunk, "has a record that runs past its end")
        if opcode == MESSAGE:
            if length < MESSAGE_FIXED_BYTES:
                raise wrong(scan, chunk, "has a message that is too short")
            _, _, number, sequence, log_ns, _ = MESSAGE_HEAD.unpack_from(data, at)
            channel = scan.head.channels.get(number)
            if channel is not None:
                content = data[at + MESSAGE_HEAD.size : after]
                columns = scan.head.tables.get(number)
                yield StoredMessage(channel, sequence, log_ns, content, columns)
            elif scan.info.native:
                raise wrong(scan, chunk, "has a message on an unknown channel")
        elif scan.info.native:
            raise wrong(scan, chunk, f"has a record of kind {opcode}")
        elif opcode in (SCHEMA, CHANNEL):
            take = scan.head.schema if opcode == SCHEMA else scan.head.channel
            try:
                take(bytes(data[at + RECORD.size : after]))
            except ValueError as error:
                what = f"has a channel that does not decode: {error}"
                raise wrong(scan, chunk, what) from None
        at = after


def check(scan: Scan, chunk: Chunk, messages: list[StoredMessage], begun: int | None) -> None:
    """Check a chunk of a file that kproxy wrote against the layout; `begun` is the number of the
    batch whose frames are in the chunk before it, -1 if it is not known yet.

    Raises: RecordingError.
    """
    if not messages:
        raise wrong(scan, chunk, "is empty")
    channels, sequences, times, *_ = zip(*messages, strict=True)
    tables = [channel for channel in channels if channel in _TABLE_CHANNELS]
    if begun is not None:
        right = tables == [Channel.EXCHANGES] == [channels[0]]
    elif chunk.uncompressed_bytes < SMALL_BATCH_BYTES and channels[:2] == _SMALL:
        right = len(tables) == 2
    else:
        right = channels == (Channel.FRAMES,)
    if not right:
        raise wrong(scan, chunk, "has other tables than belong there")
    numbers = set(sequences)
    if len(numbers) != 1 or (begun is not None and begun >= 0 and numbers != {begun}):
        raise wrong(scan, chunk, "has messages of several batches")
    if (min(times), max(times)) != (chunk.start_ns, chunk.end_ns):
        raise wrong(scan, chunk, "has other times than its messages")


def _chunk_info(chunk: Chunk, messages: list[StoredMessage]) -> ChunkInfo:
    """Return a chunk as the index of a file lists it."""
    counts = [0] * len(Channel)
    for message in messages:
        counts[message.channel - 1] += 1
    return ChunkInfo(
        chunk.start_ns,
        chunk.end_ns,
        chunk.offset,
        chunk.end - chunk.offset,
        chunk.compression,
        chunk.compressed_bytes,
        chunk.uncompressed_bytes,
        tuple(counts),
    )


def notes_of(scan: Scan, chunk: Chunk, message: StoredMessage) -> Iterator[Note]:
    """Yield the note of a message, if it is one for readers.

    Raises: RecordingError.
    """
    if message.channel in _NOTE_CHANNELS:
        note = read_note(scan, chunk, message)
        if not is_index(note) and note.body.get("event") not in notes.OF_READERS:
            yield note


def read_note(scan: Scan, chunk: Chunk, message: StoredMessage) -> Note:
    """Return the note of a message.

    Raises: RecordingError.
    """
    try:
        body = note_values.body_of(bytes(message.data))
    except ValueError as error:
        raise wrong(scan, chunk, f"has a note that is not a JSON object: {error}") from None
    return Note(_NOTE_CHANNELS[message.channel], min(message.log_ns, _TIME_NS_MAX), body)


def wrong(scan: Scan, chunk: Chunk, what: str) -> RecordingError:
    """Return the error for a chunk with a right checksum and wrong content."""
    return scan.source.damage(chunk.offset, f"a chunk {what}")
