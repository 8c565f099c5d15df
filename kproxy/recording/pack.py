"""Entries to the records of chunks: what recording costs per frame.

    Frame, Run, Note … ─▶ Packed (data chunk) ─▶ Packed (header chunk)

Per frame there is one `struct` call, for its message header and its row at once; its bytes go to
the writer as they are.
"""

from __future__ import annotations

import base64
import functools
import itertools
import json
from collections.abc import Iterator

import attrs

from kproxy.exchange.entries import CONNECTIONS as CONNECTIONS_NAME
from kproxy.exchange.entries import (
    ERROR_NOT_LOOKED,
    FRAGMENT,
    MORE,
    REWRITTEN,
    Entry,
    Frame,
    Note,
    Run,
    Side,
    Splice,
)
from kproxy.recording.files import Buffer
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
_ROW_START = MESSAGE_HEAD.size
_HEAD_BYTES = FRAME_HEAD.size


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


def packed_chunks(entries: Iterator[Entry], sequence: int) -> Iterator[Packed]:
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


def _fill(packed: Packed, entries: Iterator[Entry], sequence: int) -> Iterator[Entry] | None:
    """Fill a chunk; return the entries that remain, None if there are none."""
    parts = packed.parts
    first, position, frames, connections = sequence, 0, 0, 0
    start_ns, end_ns = 1 << 64, 0
    rest, noted = None, packed.noted
    for entry in entries:
        kind = type(entry)
        if kind is Run:
            count, sequence, position = _pack_run(entry, sequence, position, parts, packed.rows)
            frames += count
            if count < len(entry):
                entries = itertools.chain((_behind(entry, count),), entries)
        elif kind is Frame:
            size = sum(map(len, entry.pieces))
            if size > PIECE_BYTES_MAX:
                rest = itertools.chain(_split(entry), entries)
                break
            if entry.splices and noted != (entry.number, entry.side):
                noted = (entry.number, entry.side)
                changes = _splices_json(tuple(entry.splices))
                note = _rewritten(entry.number, entry.side, changes)
                note = _event(entry.received_ns, note, sequence)
                parts.append(note)
                position += len(note)
                sequence += 1
            head = _head(entry, size, sequence, position)
            parts.append(head)
            parts += entry.pieces
            position += FRAME_HEAD.size + size
            if not entry.flags & MORE:
                packed.rows.append(head[MESSAGE_HEAD.size :])
            if size >= STORED_BYTES_MIN:
                packed.stored_bytes += size
            frames += 1
            sequence += 1
        else:
            note = _note(entry, sequence)
            parts.append(note)
            position += len(note)
            connections += entry.channel == CONNECTIONS_NAME
            noted = rewritten_frame(entry) or noted
            sequence += 1
        time_ns = entry.time_ns
        if time_ns < start_ns:
            start_ns = time_ns
        if time_ns > end_ns:
            end_ns = time_ns
        if position >= CHUNK_BYTES:
            rest = entries
            break
    packed.size, packed.noted = position, noted
    packed.start_ns, packed.end_ns = start_ns, end_ns
    packed.messages = (frames, 0, connections, sequence - first - frames - connections)
    return rest


def _pack_run(
    run: Run, sequence: int, position: int, parts: list[Buffer], rows: list[bytes]
) -> tuple[int, int, int]:
    """Append a run's frames until the chunk is full; return how many that were, and the sequence
    and the position behind them.

    This is the hot path of recording: what stands in the loop costs per frame.
    """
    pack, data, at = FRAME_HEAD.pack, run.data, run.start
    side, connection, time_ns = run.side, run.connection, run.time_ns
    sent_us = _delay_us(time_ns, run.times.sent_ns)
    answers, changes, changed = side is Side.BROKER, b"", 0
    if run.splices:
        changes, changed = _splices_json(tuple(run.splices)), REWRITTEN
    times, asked_ns, asked_us = None, 0, NOT_SENT
    first_row = len(rows)
    for request, size in zip(run.requests, run.sizes, strict=True):
        correlation_id, api_key, api_version, number, request_bytes, flags, asked, _ = request
        if not answers:
            request_bytes = 0
        else:
            flags = changed
            if asked is not times:
                times, asked_ns = asked, asked.received_ns
                asked_us = _delay_us(asked_ns, asked.sent_before(time_ns))
            if changes:
                note = _event(time_ns, _rewritten(number, side, changes), sequence)
                parts.append(note)
                position += len(note)
                sequence += 1
        head = pack(
            MESSAGE, size + FRAME_FIXED_BYTES, FRAMES, sequence & _SEQUENCE_MASK,
            time_ns, time_ns, time_ns, asked_ns, number, sent_us, asked_us,
            position, size, request_bytes, connection,
            correlation_id, api_key, api_version, ERROR_NOT_LOOKED, 0, flags, side, 0,
        )  # fmt: skip
        stop = at + size
        parts.append(head)
        parts.append(data[at:stop])
        rows.append(head[_ROW_START:])
        at = stop
        position += _HEAD_BYTES + size
        sequence += 1
        if position >= CHUNK_BYTES:
            break
    return len(rows) - first_row, sequence, position


def _head(frame: Frame, size: int, sequence: int, position: int) -> bytes:
    """Return the head of a frame, values outside their field's range brought into it."""
    time_ns, asked_ns = frame.received_ns, frame.request_received_ns
    return FRAME_HEAD.pack(
        MESSAGE, size + FRAME_FIXED_BYTES, FRAMES, sequence & _SEQUENCE_MASK,
        time_ns, time_ns, time_ns, asked_ns, frame.number,
        _delay_us(time_ns, frame.sent_ns),
        _delay_us(asked_ns, frame.request_sent_ns),
        position, min(frame.frame_bytes, 0xFFFFFFFF), min(frame.request_bytes, 0xFFFFFFFF),
        frame.connection, frame.correlation_id, frame.api_key, frame.api_version,
        frame.error_code, frame.fault_ids[0] if frame.fault_ids else 0, frame.flags, frame.side, 0,
    )  # fmt: skip


def _delay_us(received_ns: int, sent_ns: int) -> int:
    if not sent_ns:
        return NOT_SENT
    return max(0, min((sent_ns - received_ns) // 1000, DELAY_US_MAX))


def _rewritten(number: int, side: Side, changes: bytes) -> bytes:
    """The body of the note that says what was sent on instead of a frame that follows it."""
    name = b"broker" if side else b"client"
    return b'{"event":"rewritten","number":%d,"side":"%b","splices":%b}' % (number, name, changes)


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


def _behind(run: Run, count: int) -> Run:
    """What is left of a run when so many of its frames are taken."""
    start = run.start + sum(run.sizes[:count])
    return attrs.evolve(run, start=start, requests=run.requests[count:], sizes=run.sizes[count:])


def _split(frame: Frame) -> Iterator[Frame]:
    """Split a frame, or a piece of one, into pieces that a chunk takes."""
    data = memoryview(frame.data)
    last = (len(data) - 1) // PIECE_BYTES_MAX
    for place in range(last + 1):
        start = place * PIECE_BYTES_MAX
        flags = frame.flags | FRAGMENT | (MORE if place < last else 0)
        yield attrs.evolve(frame, pieces=[data[start : start + PIECE_BYTES_MAX]], flags=flags)
