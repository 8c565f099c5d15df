"""Where the pieces and notes of one file lie, chunk by chunk.

::

    chunk ─▶ StoredBatch: its notes, and where it lies ─▶ records again ─▶ Pieces

A batch is what a chunk holds; files that other MCAP tools wrote cut chunks elsewhere, and the
sequence of a message tells of which chunk it was once: then a batch may be a part of a chunk, and
several in a row of the same number are one.

Invariants: content is not trusted: what a chunk with a right checksum holds is checked.
"""

from __future__ import annotations

import itertools
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import attrs

from kproxy.exchange import note_values, notes
from kproxy.exchange.entries import CONNECTIONS, EVENTS, Note
from kproxy.recording.batch_index import ChunkFacts, is_index
from kproxy.recording.files import RecordingError
from kproxy.recording.info import Chunk
from kproxy.recording.layout import Channel
from kproxy.recording.mcap import (
    CHANNEL,
    MESSAGE,
    MESSAGE_FIXED_BYTES,
    MESSAGE_HEAD,
    RECORD,
    SCHEMA,
)
from kproxy.recording.pieces import Pieces
from kproxy.recording.scan import Scan
from kproxy.wire.protocol.wire import new_tuple

_TIME_NS_MAX = (1 << 63) - 1
_NOTE_CHANNELS: dict[int, str] = {Channel.CONNECTIONS: CONNECTIONS, Channel.EVENTS: EVENTS}


class StoredMessage(NamedTuple):
    """One message on one of our channels."""

    channel: int
    """One of `layout.Channel`."""
    sequence: int
    log_ns: int
    start: int
    """Where it begins and ends in the records of its chunk."""
    end: int


@attrs.define(eq=False)
class StoredBatch:
    """What a chunk holds."""

    number: int
    """The sequence of its messages; −1 for notes that stand in no file."""
    chunk: Chunk | None = None
    """Where it lies, without its records."""
    first: int = 0
    """The index of its first message in the chunk …"""
    last: int = 0
    """… and of the first that is not in it; 0: it goes on to the end."""
    notes: list[Note] = attrs.field(factory=list)
    facts: ChunkFacts | None = None
    """What the index of its file says of it, where that is used."""
    rest: list[StoredBatch] = attrs.field(factory=list)
    """Its other parts, in the chunks that follow, where another tool has cut it."""
    numbers: tuple[int, int] = (1 << 62, -1)
    """The least and greatest number of the first exchanges of its pieces."""

    @property
    def offset(self) -> int:
        """The offset of its chunk in the file; -1 if it has none."""
        return -1 if self.chunk is None else self.chunk.offset


@attrs.define(eq=False)
class Locations:
    """The places of a file's batches, without their notes: 32 bytes each."""

    numbers: array[int] = attrs.Factory(lambda: array("q"))
    """The sequences of the batches, ascending."""
    offsets: array[int] = attrs.Factory(lambda: array("q"))
    ends: array[int] = attrs.Factory(lambda: array("q"))
    nths: array[int] = attrs.Factory(lambda: array("i"))
    """The index of the first message of each in its chunk."""
    lasts: array[int] = attrs.Factory(lambda: array("i"))

    def add(self, batch: StoredBatch) -> bool:
        """Add a batch; return False if it is out of order, as only other tools write it."""
        if batch.chunk is None or batch.number <= 0:
            return True
        if batch.rest or (len(self.numbers) and self.numbers[-1] >= batch.number):
            return False
        self.numbers.append(batch.number)
        self.offsets.append(batch.chunk.offset)
        self.ends.append(batch.chunk.end)
        self.nths.append(batch.first)
        self.lasts.append(batch.last)
        return True

    def batch(self, number: int) -> StoredBatch | None:
        """Return the batch of this number; None if it is not known."""
        index = bisect_left(self.numbers, number)
        if index == len(self.numbers) or self.numbers[index] != number:
            return None
        chunk = Chunk(self.offsets[index], self.ends[index])
        return StoredBatch(number, chunk, self.nths[index], self.lasts[index])


def batches_of(scan: Scan, chunk: Chunk, messages: list[StoredMessage]) -> Iterator[StoredBatch]:
    """Yield what a chunk holds: one batch, if kproxy wrote it.

    Raises: RecordingError.
    """
    found: StoredBatch | None = None
    for at, message in enumerate(messages):
        if found is None or message.sequence != found.number:
            if found is not None:
                yield found
            found = StoredBatch(message.sequence, chunk.passed_over(), at, at)
        found.last = at + 1
        if message.channel != Channel.PIECES:
            found.notes += notes_of(scan, chunk, message)
    if found is not None:
        yield found


def joined(batches: Iterator[StoredBatch]) -> Iterator[StoredBatch]:
    """Yield batches; those in a row that are parts of one, as one."""
    found: StoredBatch | None = None
    for batch in batches:
        if found is not None and batch.number == found.number:
            found.rest.append(batch)
            found.notes += batch.notes
            continue
        if found is not None:
            yield found
        found = batch
    if found is not None:
        yield found


Part = tuple[Chunk, list[StoredMessage]]
"""A chunk, and the messages in it that are of a batch."""


def pieces_of(number: int, parts: list[Part]) -> Pieces:
    """Return the pieces of a batch."""
    records = [memoryview(chunk.records or b"") for chunk, _ in parts]
    starts = itertools.accumulate(map(len, records[:-1]), initial=0)
    of_pieces = int(Channel.PIECES)
    ends = [
        (start + begin, start + end)
        for start, (_, messages) in zip(starts, parts, strict=True)
        for channel, _, _, begin, end in messages
        if channel == of_pieces
    ]
    return Pieces(number, records[0] if len(records) == 1 else memoryview(b"".join(records)), ends)


def read_messages(scan: Scan, chunk: Chunk) -> list[StoredMessage]:
    """Return the messages of a chunk that are on our channels.

    Raises: RecordingError.
    """
    return list(_messages(scan, chunk))


def _messages(scan: Scan, chunk: Chunk) -> Iterator[StoredMessage]:
    data = memoryview(chunk.records or b"")
    at, end, channels, unpack = 0, len(data), scan.head.channels, RECORD.unpack_from
    while at < end:
        if end - at < RECORD.size:
            raise wrong(scan, chunk, "ends in the middle of a record")
        opcode, length = unpack(data, at)
        after = at + RECORD.size + length
        if after > end:
            raise wrong(scan, chunk, "has a record that runs past its end")
        if opcode == MESSAGE:
            if length < MESSAGE_FIXED_BYTES:
                raise wrong(scan, chunk, "has a message that is too short")
            _, _, number, sequence, log_ns, publish_ns = MESSAGE_HEAD.unpack_from(data, at)
            if log_ns > _TIME_NS_MAX or publish_ns > _TIME_NS_MAX:
                raise wrong(scan, chunk, "has a message at a time that is none")
            channel = channels.get(number)
            if channel is not None:
                yield new_tuple(StoredMessage, (channel, sequence, log_ns, at, after))
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


def check(scan: Scan, chunk: Chunk, messages: list[StoredMessage]) -> None:
    """Check a chunk of a file that kproxy wrote against the layout.

    Raises: RecordingError.
    """
    if not messages:
        raise wrong(scan, chunk, "is empty")
    times = [each.log_ns for each in messages]
    if len({each.sequence for each in messages}) != 1:
        raise wrong(scan, chunk, "has messages of several chunks")
    if (min(times), max(times)) != (chunk.start_ns, chunk.end_ns):
        raise wrong(scan, chunk, "has other times than its messages")


def counts(messages: Iterable[StoredMessage]) -> list[int]:
    """Return the number of messages on each channel."""
    channels = [message.channel for message in messages]
    return [channels.count(channel) for channel in Channel]


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
    records = chunk.records or b""
    try:
        body = note_values.body_of(bytes(records[message.start + MESSAGE_HEAD.size : message.end]))
    except ValueError as error:
        raise wrong(scan, chunk, f"has a note that is not a JSON object: {error}") from None
    return Note(_NOTE_CHANNELS[message.channel], min(message.log_ns, _TIME_NS_MAX), body)


def wrong(scan: Scan, chunk: Chunk, what: str) -> RecordingError:
    """Return the error for a chunk with a right checksum and wrong content."""
    return scan.source.damage(chunk.offset, f"a chunk {what}")
