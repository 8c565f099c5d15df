"""Entries to the records of chunks: what recording costs per frame.

    Frame, Note … ─▶ Packed (data chunk) ─▶ Packed (header chunk)

Per frame there is one `struct` call, for its message header and its row at once, and no copy of its
bytes: parts are joined, or handed to the kernel, by the writer.
"""

from __future__ import annotations

import base64
import functools
import itertools
import json
import struct
from collections.abc import Iterator

import attrs

from kproxy.exchange.entries import CONNECTIONS as CONNECTIONS_NAME
from kproxy.exchange.entries import FRAGMENT, MORE, REWRITTEN, Frame, Note, Side, Splice
from kproxy.recording.format import (
    CHUNK_BYTES,
    CONNECTIONS,
    DELAY_US_MAX,
    EVENTS,
    FRAME_FIXED_BYTES,
    FRAME_HEAD,
    FRAMES,
    HEADERS,
    MESSAGE,
    MESSAGE_FIXED_BYTES,
    MESSAGE_HEAD,
    NOT_SENT,
    PIECE_BYTES_MAX,
    STORED_BYTES_MIN,
)

_SEQUENCE_MASK = 0xFFFFFFFF

Buffer = bytes | bytearray | memoryview


@attrs.define(eq=False)
class Packed:
    """The records of one chunk."""

    parts: list[Buffer] = attrs.field(factory=list)
    rows: list[bytes] = attrs.field(factory=list)
    """Of the frames that end in this chunk."""
    size: int = 0
    stored_bytes: int = 0
    """How many of them are in frames that are not worth compressing."""
    start_ns: int = 0
    end_ns: int = 0
    noted: tuple[int, Side] | None = None
    """Number and side of the last frame of which a note said what was sent on instead."""
    messages: tuple[int, int, int, int] = (0, 0, 0, 0)
    """How many on /kafka/frames, headers, connections, events."""

    @property
    def compressible(self) -> bool:
        """Whether more than half of it is worth compressing."""
        return self.stored_bytes * 2 < self.size


def packed_chunks(entries: Iterator[Frame | Note], sequence: int) -> Iterator[Packed]:
    """Pack entries into chunks; `sequence` is the number of entries before them in the file."""
    noted = None
    while True:
        packed = Packed(noted=noted)
        rest = _fill(packed, entries, sequence)
        noted = packed.noted
        sequence += sum(packed.messages)
        if packed.parts:
            yield packed
        if rest is None:
            return
        entries = rest


def _fill(
    packed: Packed, entries: Iterator[Frame | Note], sequence: int
) -> Iterator[Frame | Note] | None:
    """Fill a chunk; return the entries that remain, None if there are none.

    This is the hot path of recording: what stands in the loop costs per frame.
    """
    pack = FRAME_HEAD.pack
    parts, rows = packed.parts, packed.rows
    first, position, stored, frames, connections = sequence, 0, 0, 0, 0
    start_ns, end_ns = 1 << 64, 0
    rest, noted = None, packed.noted
    for entry in entries:
        if isinstance(entry, Frame):
            pieces = entry.pieces
            size = len(pieces[0]) if len(pieces) == 1 else sum(map(len, pieces))
            if size > PIECE_BYTES_MAX:
                rest = itertools.chain(_split(entry), entries)
                break
            flags = entry.flags
            if flags & REWRITTEN and entry.splices and noted != (entry.number, entry.side):
                noted = (entry.number, entry.side)
                note = _event(entry.received_ns, _rewritten(entry), sequence)
                parts.append(note)
                position += len(note)
                sequence += 1
            time_ns, sent_ns = entry.received_ns, entry.sent_ns
            asked_ns, asked_sent_ns = entry.request_received_ns, entry.request_sent_ns
            try:
                head = pack(
                    MESSAGE, size + FRAME_FIXED_BYTES, FRAMES, sequence & _SEQUENCE_MASK,
                    time_ns, time_ns, time_ns, asked_ns, entry.number,
                    (sent_ns - time_ns) // 1000 if sent_ns else NOT_SENT,
                    (asked_sent_ns - asked_ns) // 1000 if asked_sent_ns else NOT_SENT,
                    position, entry.frame_bytes, entry.request_bytes, entry.connection,
                    entry.correlation_id, entry.api_key, entry.api_version, entry.error_code,
                    entry.fault_id, flags, entry.side, 0,
                )  # fmt: skip
            except struct.error:
                head = _clamped(entry, size, sequence, position)
            parts.append(head)
            parts += pieces
            position += FRAME_HEAD.size + size
            frames += 1
            if not flags & MORE:
                rows.append(head[MESSAGE_HEAD.size :])
            if size >= STORED_BYTES_MIN:
                stored += size
        else:
            note = _note(entry, sequence)
            parts.append(note)
            position += len(note)
            time_ns = entry.time_ns
            connections += entry.channel == CONNECTIONS_NAME
            noted = rewritten_frame(entry) or noted
        sequence += 1
        if time_ns < start_ns:
            start_ns = time_ns
        if time_ns > end_ns:
            end_ns = time_ns
        if position >= CHUNK_BYTES:
            rest = entries
            break
    packed.size, packed.stored_bytes, packed.noted = position, stored, noted
    packed.start_ns, packed.end_ns = start_ns, end_ns
    packed.messages = (frames, 0, connections, sequence - first - frames - connections)
    return rest


def _clamped(frame: Frame, size: int, sequence: int, position: int) -> bytes:
    """Return the head of a frame with values outside their field's range brought into it."""
    time_ns, asked_ns = frame.received_ns, frame.request_received_ns
    return FRAME_HEAD.pack(
        MESSAGE, size + FRAME_FIXED_BYTES, FRAMES, sequence & _SEQUENCE_MASK,
        time_ns, time_ns, time_ns, asked_ns, frame.number,
        _delay_us(time_ns, frame.sent_ns),
        _delay_us(asked_ns, frame.request_sent_ns),
        position, min(frame.frame_bytes, 0xFFFFFFFF), min(frame.request_bytes, 0xFFFFFFFF),
        frame.connection, frame.correlation_id, frame.api_key, frame.api_version,
        frame.error_code, frame.fault_id, frame.flags, frame.side, 0,
    )  # fmt: skip


def _delay_us(received_ns: int, sent_ns: int) -> int:
    if not sent_ns:
        return NOT_SENT
    return max(0, min((sent_ns - received_ns) // 1000, DELAY_US_MAX))


def _rewritten(frame: Frame) -> bytes:
    """The body of the note that says what was sent on instead of a frame that follows it."""
    side = b"broker" if frame.side else b"client"
    splices = _splices_json(tuple(frame.splices))
    return b'{"event":"rewritten","number":%d,"side":"%b","splices":%b}' % (
        frame.number,
        side,
        splices,
    )


@functools.lru_cache(maxsize=64)
def _splices_json(splices: tuple[Splice, ...]) -> bytes:
    # Remembered: a broker that repeats an answer has it rewritten in the same way.
    return json.dumps(
        [[offset, length, base64.b64encode(new).decode()] for offset, length, new in splices],
        separators=(",", ":"),
    ).encode()


def rewritten_frame(note: Note) -> tuple[int, Side] | None:
    """Return number and side of the frame that such a note is about; None for another note."""
    body = note.body
    if body.get("event") != "rewritten":
        return None
    return body.get("number", 0), Side.CLIENT if body.get("side") == "client" else Side.BROKER


def _note(note: Note, sequence: int) -> bytes:
    """Return a note's message record."""
    body = json.dumps(note.body, separators=(",", ":"), allow_nan=False).encode()
    channel = CONNECTIONS if note.channel == CONNECTIONS_NAME else EVENTS
    return _event(note.time_ns, body, sequence, channel)


def _event(time_ns: int, body: bytes, sequence: int, channel: int = EVENTS) -> bytes:
    size = MESSAGE_FIXED_BYTES + len(body)
    return (
        MESSAGE_HEAD.pack(MESSAGE, size, channel, sequence & _SEQUENCE_MASK, time_ns, time_ns)
        + body
    )


def header_chunk(packed: Packed, sequence: int) -> Packed:
    """Return the header chunk that belongs to a data chunk."""
    rows = b"".join(packed.rows)
    head = MESSAGE_HEAD.pack(
        MESSAGE,
        MESSAGE_FIXED_BYTES + len(rows),
        HEADERS,
        sequence & _SEQUENCE_MASK,
        packed.end_ns,
        packed.end_ns,
    )
    size = len(head) + len(rows)
    # stored if its data chunk is: then its rows are few, or nothing is compressed at all
    stored = 0 if packed.compressible else size
    return Packed(
        [head, rows], [], size, stored, packed.end_ns, packed.end_ns, messages=(0, 1, 0, 0)
    )


def _split(frame: Frame) -> Iterator[Frame]:
    """Split a frame, or a piece of one, into pieces that a chunk takes."""
    data = memoryview(frame.data)
    last = (len(data) - 1) // PIECE_BYTES_MAX
    for place in range(last + 1):
        start = place * PIECE_BYTES_MAX
        flags = frame.flags | FRAGMENT | (MORE if place < last else 0)
        yield attrs.evolve(frame, pieces=[data[start : start + PIECE_BYTES_MAX]], flags=flags)
