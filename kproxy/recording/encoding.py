"""Entries to the chunks of a log.

::

    Frame, FrameRun, Note ─▶ Encoder ─▶ ChunkRecords: messages, and what the chunk holds in short
                               │ requests that no response has answered: listed where a file begins
                               │ pieces that had not left: a LATE piece follows when they have
                               └ the last piece of each frame that is not complete

Invariants: an entry is read once, when it is written. What is remembered is bounded by what is
pending. A chunk that cannot be written is left out: its number is then missing.
"""

from __future__ import annotations

import base64
import itertools
import json
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import attrs

from kproxy.exchange import facts, notes
from kproxy.exchange.entries import (
    CONNECTIONS,
    ERROR_NOT_LOOKED,
    FRAGMENT,
    MORE,
    NO_NODE,
    NO_RESPONSE,
    OPEN_AT_END,
    PIECE_BYTES_MAX,
    RAW_SASL,
    REWRITTEN,
    SILENCED,
    TRUNCATED,
    UNANSWERED,
    Buffer,
    ChunkTimes,
    Entry,
    ExchangeRow,
    Frame,
    FrameRun,
    Note,
    Requests,
    Side,
    Splice,
    requests_of,
)
from kproxy.exchange.follower import BROKER_SIDE, LATE
from kproxy.recording.batch_index import Seen
from kproxy.recording.layout import CHUNK_BYTES, PIECES_MAX, STORED_BYTES_MIN, Channel, note_record
from kproxy.recording.mcap import MESSAGE, RECORD
from kproxy.recording.pieces import PIECE
from kproxy.wire.protocol.codec import FETCH

_FIXED_BYTES = PIECE.size - RECORD.size
_PIECES = int(Channel.PIECES)
_PACK = PIECE.pack
_TEXT = json.JSONEncoder(separators=(",", ":")).encode
_BROKER = Side.BROKER
_AT_ONCE = 8
"""So many entries are encoded before other threads get a turn: some 0.04 ms."""
_SPLICES_MAX = 256
_PENDING_AT_ONCE = 100
"""Pending requests per note."""
Wall = Callable[[int], int]
"""Returns what is to be added to a time, so that it is that of the system's clock."""


def as_it_is(time_ns: int) -> int:
    """Add nothing to a time: it is of the system's clock."""
    return 0


@attrs.define(eq=False)
class ChunkRecords:
    """The records of one chunk."""

    sequence: int
    parts: list[Buffer] = attrs.field(factory=list)
    size: int = 0
    stored_bytes: int = 0
    """The bytes that are not worth compressing."""
    pieces: int = 0
    """The number of messages that are pieces."""
    notes: list[Note] = attrs.field(factory=list)
    times_ns: list[int] = attrs.field(factory=list)
    """The times of its messages."""
    seen: list[Seen] = attrs.field(factory=list)
    """What its pieces are of, for the index."""

    @property
    def place(self) -> int:
        """The place of its next piece."""
        return self.sequence << 32 | self.pieces << 16

    @property
    def stored(self) -> bool:
        """True if half of it is not worth compressing."""
        return self.stored_bytes * 2 >= self.size

    @property
    def full(self) -> bool:
        """True if it takes no further message; bytes of large pieces count a sixteenth: they are
        stored as they are, and fewer chunks are less work."""
        spared = self.stored_bytes - self.stored_bytes // 16
        return self.size - spared >= CHUNK_BYTES or self.pieces >= PIECES_MAX

    @property
    def messages(self) -> tuple[int, ...]:
        """The number of messages on each channel."""
        connections = sum(each.channel == CONNECTIONS for each in self.notes)
        return self.pieces, connections, len(self.notes) - connections

    def add(self, head: bytes, time_ns: int, seen: Seen) -> None:
        """Add a piece up to its bytes."""
        self.parts.append(head)
        self.size += len(head)
        self.pieces += 1
        self.times_ns.append(time_ns)
        self.seen.append(seen)

    def note(self, note: Note) -> None:
        """Add a note."""
        record = note_record(note, self.sequence)
        self.parts.append(record)
        self.size += len(record)
        self.times_ns.append(note.time_ns)
        self.notes.append(note)


class _Open(NamedTuple):
    """Requests that are pending, as they were written."""

    requests: Requests
    place: int
    """The place of the first of them."""
    late: bool
    """They had not left."""
    fault_ids: Sequence[int] = ()
    waits_ms: Sequence[int] = ()
    """Of Fetches: how long each may wait."""

    @property
    def end(self) -> int:
        """The number behind the last of them."""
        return self.requests.number + len(self.requests)


@attrs.frozen(eq=False)
class _Unsent:
    """A piece that had not left when it was written."""

    entry: FrameRun | Frame
    place: int
    open: _Open | None = None
    """Of responses: the requests."""


@attrs.define(eq=False)
class _EncodedConnection:
    """A connection."""

    node_id: int = NO_NODE
    answered_ns: int = 0
    """The arrival of its last response."""
    open: dict[int, _Open] = attrs.field(factory=dict)
    """Its pending requests, by the number of the first one that is not answered."""
    unfinished: dict[int, tuple[int, Frame]] = attrs.field(factory=dict)
    """The last pieces of frames that are not complete, without their bytes, and their places, by
    side."""


class Encoder:
    """Makes the chunks of one recording, over all of its files."""

    def __init__(self, sequence: int = 1) -> None:
        self._next = sequence
        self._connections: defaultdict[int, _EncodedConnection] = defaultdict(_EncodedConnection)
        self._unsent: list[_Unsent] = []
        """Pieces that had not left."""
        self._left: list[_Unsent] = []
        """Pieces that have left since: the chunks that are being written say so."""
        self._wall: Wall = as_it_is
        self._splices: dict[tuple[Splice, ...], bytes] = {}
        """What replaced addresses, as it is recorded."""

    @property
    def sequence(self) -> int:
        """The number of the next chunk."""
        return self._next

    @property
    def waits(self) -> bool:
        """True while pieces have not left."""
        return bool(self._unsent)

    def chunks(self, entries: Iterable[Entry], wall: Wall = as_it_is) -> Iterator[ChunkRecords]:
        """Yield the chunks of these entries; `wall` moves the times of frames. Chunks that are not
        written must be reported to `lose`."""
        self._wall = wall
        chunk = self._begin()
        self._left = [each for each in self._unsent if _sent_ns(each.entry)]
        if self._left:
            self._unsent = [each for each in self._unsent if not _sent_ns(each.entry)]
        for each in self._left:
            self._late(chunk, each)
        for nth, entry in enumerate(entries):
            if not nth % _AT_ONCE and threading.active_count() > 1:
                time.sleep(0)  # whoever waits for the interpreter goes first
            if type(entry) is FrameRun:
                self._run(chunk, entry)
            elif type(entry) is Frame:
                for piece in split_into_pieces(entry):
                    if chunk.full:
                        yield chunk
                        chunk = self._begin()
                    self._frame(chunk, piece, entry)
            else:
                self._note(chunk, entry)
            if chunk.full:
                yield chunk
                chunk = self._begin()
        if chunk.parts:
            yield chunk

    def lose(self, sequence: int) -> None:
        """Note that the chunks from this one on have not been written."""
        first = sequence << 32
        self._unsent = [each for each in (*self._left, *self._unsent) if each.place < first]
        for peer in self._connections.values():
            peer.open = {n: each for n, each in peer.open.items() if each.place < first}
            last = peer.unfinished
            peer.unfinished = {side: each for side, each in last.items() if each[0] < first}

    def pending(self, time_ns: int, wall: Wall = as_it_is) -> list[Note]:
        """Return the notes that list the exchanges that are not complete: at least one."""
        rows = [
            _pending_row(number, peer.node_id, each, nth, wall)
            for number, peer in self._connections.items()
            for first, each in peer.open.items()
            for nth in range(first - each.requests.number, len(each.requests))
        ]
        for each in self._unsent:
            rows += _late_rows(each, self._connections[each.entry.connection].node_id, wall)
        for peer in self._connections.values():
            for place, frame in peer.unfinished.values():
                if not frame.side:
                    rows.append(_arriving_row(frame, place, peer.node_id, wall))
        return [
            notes.pending(time_ns, rows[first : first + _PENDING_AT_ONCE])
            for first in range(0, max(1, len(rows)), _PENDING_AT_ONCE)
        ]

    def goes_on(self, before: Encoder) -> None:
        """Go on with the frames that another encoder has not completed."""
        for number, peer in before._connections.items():
            self._connections[number].unfinished = peer.unfinished

    def _begin(self) -> ChunkRecords:
        self._next += 1
        return ChunkRecords(self._next - 1)

    # ---- pieces

    def _run(self, chunk: ChunkRecords, run: FrameRun) -> None:
        times, requests, sizes, connection = run.times, run.requests, run.sizes, run.connection
        peer = self._connections[connection]
        received_ns, sent_ns, flags = times.received_ns, times.sent_ns, requests.flags
        number, count, asked_ns = requests.number + run.nth, len(sizes), requests.times.received_ns
        size = sizes[0] if count == 1 else sum(sizes)
        place, extras, before_ns, found = chunk.place, b"", 0, None
        offset_ns = self._wall(asked_ns)
        if run.side:
            flags = BROKER_SIDE
            before_ns, peer.answered_ns = peer.answered_ns, received_ns
            found = peer.open.pop(number, None)
            if found is None or count != len(found.requests.sizes):
                found = _take_requests(peer.open, number, count, found)
            if found is None and 1 < count <= PIECES_MAX:
                peer.answered_ns = before_ns
                for each in _singly(run):
                    self._run(chunk, each)
                return
            if found is None or found.late or run.splices or times.fault_ns or times.client_ended:
                flags |= REWRITTEN if run.splices else 0
                if found is not None and not (found.late or times.fault_ns or times.client_ended):
                    extras = self._spliced(run.splices)
                else:
                    about = _about(run.splices, times, not sent_ns)
                    if found is None or found.late:
                        lost: dict[str, int] = {}
                        if found is None:
                            nth, alone = run.nth, count == 1
                            lost = _lost(
                                asked_ns + offset_ns,
                                requests.sizes[nth] if alone else 0,
                                requests.correlation_ids[nth] if alone else 0,
                            )
                        asked = requests.times
                        left_ns = asked.sent_before(times.received_ns)
                        about["request"] = _asked(
                            left_ns, asked.fault_ns, asked.behind, offset_ns, lost
                        )
                    extras = _json(about)
            before_ns = before_ns and before_ns + offset_ns
        else:
            if times.fault_ns or run.splices:
                extras = _json(_about(run.splices, times, not sent_ns))
            if not flags & NO_RESPONSE:
                waits_ms = _waits_ms(run) if requests.api_key == FETCH else ()
                peer.open[number] = _Open(requests, place, not sent_ns, (), waits_ms)
        if sent_ns:
            sent_ns += offset_ns
        else:
            self._unsent.append(_Unsent(run, place, found))
        received_ns += offset_ns
        api_key, api_version = requests.api_key, requests.api_version
        head = _PACK(
            MESSAGE, _FIXED_BYTES + len(extras) + size, _PIECES, chunk.sequence, received_ns,
            sent_ns, number, before_ns, connection, peer.node_id, flags, api_key, api_version,
            len(extras),
        )  # fmt: skip
        seen = number, count, asked_ns + offset_ns, connection, api_key, api_version, flags, 0
        chunk.add(head + extras if extras else head, received_ns, seen)
        if len(run.pieces) == 1:
            chunk.parts.append(run.pieces[0])
        else:
            chunk.parts += run.pieces
        chunk.size += size
        if size >= STORED_BYTES_MIN and count == 1:
            chunk.stored_bytes += size

    def _spliced(self, splices: Sequence[Splice]) -> bytes:
        """Return the extras of responses that were rewritten; the same ones come again."""
        key = tuple(splices)
        found = self._splices.get(key)
        if found is None:
            if len(self._splices) >= _SPLICES_MAX:
                self._splices.clear()
            found = self._splices[key] = _json({"splices": _text_of(splices)})
        return found

    def _frame(self, chunk: ChunkRecords, frame: Frame, whole: Frame) -> None:
        """Add a frame by itself, or a piece of one; `whole` learns when it leaves."""
        flags, number, side = frame.flags, frame.number, frame.side
        peer, size = self._connections[frame.connection], sum(map(len, frame.pieces))
        asked_ns = frame.request_received_ns or frame.received_ns
        place, offset_ns = chunk.place, self._wall(asked_ns)
        sent_ns = whole.sent_ns  # once: it may leave meanwhile
        late = not sent_ns and not frame.withheld and not flags & (MORE | UNANSWERED)
        about = _about_frame(frame, whole, late)
        if flags & FRAGMENT and (before := peer.unfinished.pop(side, None)):
            about["at"] = before[0]
        before_ns, found = 0, None
        if flags & MORE:
            peer.unfinished[side] = place, attrs.evolve(frame, pieces=[])
        elif side is _BROKER:
            found = peer.open.pop(number, None)
            if found is None or len(found.requests.sizes) > 1:
                found = _take_requests(peer.open, number, 1, found)
            if not flags & UNANSWERED:
                before_ns, peer.answered_ns = peer.answered_ns, frame.received_ns
            if frame.request_received_ns and not _knows_all(found, frame):
                left_ns, fault_ns = frame.request_sent_ns, frame.request_fault_ns
                lost = {}
                if found is None:
                    lost = _lost(asked_ns + offset_ns, frame.request_bytes, frame.correlation_id)
                about["request"] = _asked(left_ns, fault_ns, frame.request_behind, offset_ns, lost)
            if frame.queued_ns is not None:
                before_ns = frame.request_sent_ns + frame.queued_ns
            peer.unfinished.pop(side, None)
        elif not flags & NO_RESPONSE:
            requests = requests_of(frame, _times(frame))
            fetches = frame.api_key == FETCH and not flags & FRAGMENT
            waits_ms = (facts.max_wait_ms(frame.data, 0, frame.api_version),) if fetches else ()
            peer.open[number] = _Open(requests, place, not sent_ns, frame.fault_ids, waits_ms)
        if late:
            self._unsent.append(_Unsent(whole, place, found))
        extras = _json(about)
        received_ns, flags = frame.received_ns + offset_ns, flags | (BROKER_SIDE if side else 0)
        kind = frame.api_key, frame.api_version
        head = _PACK(
            MESSAGE, _FIXED_BYTES + len(extras) + size, _PIECES, chunk.sequence, received_ns,
            sent_ns and sent_ns + offset_ns, number, before_ns and before_ns + offset_ns,
            frame.connection, peer.node_id, flags, *kind, len(extras),
        )  # fmt: skip
        seen = number, 1, asked_ns + offset_ns, frame.connection, *kind, flags, len(frame.fault_ids)
        chunk.add(head + extras if extras else head, received_ns, seen)
        chunk.parts += frame.pieces
        chunk.size += size
        chunk.stored_bytes += size if size >= STORED_BYTES_MIN else 0

    def _late(self, chunk: ChunkRecords, unsent: _Unsent) -> None:
        """Add what says when a piece left that had not when it was written."""
        entry = unsent.entry
        times = entry.times if type(entry) is FrameRun else entry
        extras_of = _held(times) | {"at": unsent.place}
        asked_ns = entry.time_ns
        if type(entry) is FrameRun:
            asked_ns = entry.requests.times.received_ns
        elif entry.side is _BROKER:
            asked_ns = entry.request_received_ns or asked_ns
        offset_ns = self._wall(asked_ns)
        if not entry.side:
            self._sent(entry)
        kind = entry.requests if type(entry) is FrameRun else entry
        flags = LATE | (BROKER_SIDE if entry.side else kind.flags & NO_RESPONSE)
        extras = _json(extras_of)
        time_ns = entry.time_ns + offset_ns
        head = _PACK(
            MESSAGE, _FIXED_BYTES + len(extras), _PIECES, chunk.sequence, time_ns,
            times.sent_ns and times.sent_ns + offset_ns, entry.number, 0, entry.connection,
            self._connections[entry.connection].node_id, flags, kind.api_key, kind.api_version,
            len(extras),
        )  # fmt: skip
        about = entry.connection, kind.api_key, kind.api_version, flags, 0
        chunk.add(head + extras, time_ns, (entry.number, 1, asked_ns + offset_ns, *about))

    def _sent(self, entry: FrameRun | Frame) -> None:
        """Note when a request by itself left, for those that list what is pending."""
        peer = self._connections.get(entry.connection)
        found = peer.open.get(entry.number) if peer is not None else None
        if found is not None and type(entry) is Frame:
            times = found.requests.times
            times.sent_ns, times.fault_ns = entry.sent_ns, entry.fault_ns
            times.behind = entry.behind

    # ---- notes

    def _note(self, chunk: ChunkRecords, note: Note) -> None:
        connection, node_id = note.body.get("connection"), note.body.get("node_id")
        if note.channel != CONNECTIONS or not isinstance(connection, int):
            chunk.note(note)
        elif note.body.get("event") == "closed":
            self._end(chunk, connection, note.time_ns)
            chunk.note(note)
            self._connections.pop(connection, None)
        else:
            chunk.note(note)
            if isinstance(node_id, int):
                self._connections[connection].node_id = node_id

    def _end(self, chunk: ChunkRecords, connection: int, time_ns: int) -> None:
        """Add what ends with a connection: what has not left will not, and what is pending, of
        which no entry says that nothing answers it, is open."""
        for each in self._unsent:
            if each.entry.connection == connection:
                self._late(chunk, each)
        self._unsent = [each for each in self._unsent if each.entry.connection != connection]
        peer = self._connections[connection]
        ends = [(first, each.requests) for first, each in peer.open.items()]
        if begun := peer.unfinished.get(Side.CLIENT):
            _, part = begun
            ends.append((part.number, requests_of(part, ChunkTimes(part.received_ns))))
        for first, requests in ends:
            times = requests.times
            offset_ns = self._wall(times.received_ns)
            for nth in range(first - requests.number, len(requests)):
                end = Frame(
                    _BROKER, connection, requests.number + nth, requests.api_key,
                    requests.api_version, requests.correlation_ids[nth], time_ns - offset_ns,
                    [], 0, UNANSWERED | OPEN_AT_END, 0, times.received_ns, times.sent_ns,
                )  # fmt: skip
                self._frame(chunk, end, end)


def _waits_ms(run: FrameRun) -> list[int]:
    """Return how long the Fetches of a run may wait."""
    starts = itertools.accumulate(run.sizes[:-1], initial=0)
    return [facts.max_wait_ms(run.data, at, run.requests.api_version) for at in starts]


def _singly(run: FrameRun) -> Iterator[FrameRun]:
    """Yield the frames of a run as runs: what their requests were is told of each."""
    at = 0
    for nth, size in enumerate(run.sizes):
        piece = run.pieces[0][at : at + size]
        yield attrs.evolve(run, pieces=[piece], nth=run.nth + nth, sizes=[size])
        at += size


def _take_requests(
    pending: dict[int, _Open], number: int, count: int, found: _Open | None
) -> _Open | None:
    """Take the requests from a number on that are answered: some of a run, or several that were
    written one by one. `found` are the first of them, if they are the next of their run; return
    these, None if they were not written."""
    if found is None:
        for first, found in pending.items():
            if first <= number < found.end:
                del pending[first]  # those before are not answered any more
                break
        else:
            return None
    last, end = found, number + count
    while (behind := last.end) < end and behind in pending:
        last = pending.pop(behind)
    if end < behind:
        pending[end] = last
    return found


def split_into_pieces(frame: Frame) -> Iterator[Frame]:
    """Split a frame, or a piece of one, into pieces that are not too large."""
    if sum(map(len, frame.pieces)) <= PIECE_BYTES_MAX:
        yield frame
        return
    data = memoryview(frame.data)
    last = (len(data) - 1) // PIECE_BYTES_MAX
    for place in range(last + 1):
        start = place * PIECE_BYTES_MAX
        pieces: list[Buffer] = [data[start : start + PIECE_BYTES_MAX]]
        if place < last:
            flags = frame.flags | FRAGMENT | MORE
            yield attrs.evolve(frame, pieces=pieces, flags=flags, splices=(), fault_ids=())
        else:
            yield attrs.evolve(frame, pieces=pieces, flags=frame.flags | FRAGMENT)


def with_row(response: Frame, row: ExchangeRow) -> Frame:
    """Return a response that says of its request what its exchange knows, and how long that had
    waited behind others, which may not be written."""
    return attrs.evolve(
        response,
        sent_ns=row.response_sent_ns,
        request_received_ns=row.request_received_ns,
        request_sent_ns=row.request_sent_ns,
        request_bytes=row.request_bytes,
        queued_ns=row.queued_ns,
        withheld=not (row.response_sent_ns or row.response_flags & OPEN_AT_END),
    )


def end_of(row: ExchangeRow) -> Frame:
    """Return the entry that ends an exchange without a response; its request may not be written."""
    return Frame(
        Side.BROKER, row.connection, row.number, row.api_key, row.api_version,
        row.correlation_id, row.response_received_ns, [], 0,
        UNANSWERED | row.response_flags & SILENCED, 0, row.request_received_ns,
        row.request_sent_ns, row.request_bytes, request_fault_ns=row.fault_ns,
        request_behind=row.held_behind,
    )  # fmt: skip


def _sent_ns(entry: FrameRun | Frame) -> int:
    return entry.times.sent_ns if type(entry) is FrameRun else entry.sent_ns


def _times(frame: Frame) -> ChunkTimes:
    return ChunkTimes(frame.received_ns, frame.sent_ns)


def _about(splices: Sequence[Splice], times: ChunkTimes | Frame, late: bool) -> dict[str, Any]:
    """Return the extras that runs and frames may have. Of what leaves `late`, a LATE piece says for
    how long rules held it: what both say is added up."""
    about: dict[str, Any] = {"splices": _text_of(splices)}
    return about if late else about | _held(times)


def _held(times: ChunkTimes | Frame) -> dict[str, Any]:
    return {
        "fault_ns": times.fault_ns,
        "held_behind": times.behind,
        "client_ended": times.client_ended,
    }


def _text_of(splices: Sequence[Splice]) -> list[list[Any]]:
    return [[at, size, base64.b64encode(new).decode()] for at, size, new in splices]


def _about_frame(frame: Frame, whole: Frame, late: bool) -> dict[str, Any]:
    if frame.flags & MORE:
        return {"correlation_id": frame.correlation_id, "frame_bytes": frame.frame_bytes}
    found = _about(frame.splices, whole, late)
    found |= {"fault_ids": list(frame.fault_ids), "withheld": frame.withheld}
    if frame.error_code != ERROR_NOT_LOOKED:
        found["error_code"] = frame.error_code
    if frame.flags & (TRUNCATED | RAW_SASL | FRAGMENT | UNANSWERED):
        found |= {"correlation_id": frame.correlation_id, "frame_bytes": frame.frame_bytes}
    return found


def _asked(
    sent_ns: int, fault_ns: int, behind: int, offset_ns: int, lost: dict[str, int]
) -> dict[str, int]:
    """Return what a response says of its requests, if these had not left when they were written, or
    were `lost`: not written at all. 0 says no more than the piece of the request, or a LATE one."""
    found = {
        "request_sent_ns": sent_ns and sent_ns + offset_ns,
        "fault_ns": fault_ns,
        "held_behind": behind,
    }
    return {name: value for name, value in (found | lost).items() if value}


def _lost(received_ns: int, size: int, correlation_id: int) -> dict[str, int]:
    """Return what a response says of its request, which was not written."""
    return {
        "request_received_ns": received_ns,
        "request_bytes": size,
        "correlation_id": correlation_id,
    }


def _knows_all(found: _Open | None, frame: Frame) -> bool:
    """Return whether the piece of a response's request says all that the response knows of it."""
    if found is None or found.late:
        return False
    return frame.request_sent_ns in (0, found.requests.times.sent_ns)


def _json(extras: dict[str, Any]) -> bytes:
    given = {name: value for name, value in extras.items() if value or name == "error_code"}
    return _TEXT(given).encode() if given else b""


def _pending_row(connection: int, node_id: int, each: _Open, nth: int, wall: Wall) -> ExchangeRow:
    """Return what is known of a request that is pending."""
    requests, place, _, fault_ids, waits_ms = each
    request = requests[nth]
    times = request.times
    offset_ns = wall(times.received_ns)
    return ExchangeRow(
        request.number,
        times.received_ns + offset_ns,
        times.sent_ns and times.sent_ns + offset_ns,
        fault_ns=times.fault_ns,
        held_behind=times.behind,
        request_position=place + nth,
        request_bytes=request.frame_bytes,
        connection=connection,
        node_id=node_id,
        correlation_id=request.correlation_id,
        max_wait_ms=waits_ms[nth] if waits_ms else 0,
        api_key=request.api_key,
        api_version=request.api_version,
        request_flags=request.flags & ~(FRAGMENT | MORE),
        fault_ids=tuple(fault_ids),
    )


def _arriving_row(frame: Frame, place: int, node_id: int, wall: Wall) -> ExchangeRow:
    """Return what is known of a request of which only pieces have come."""
    whole = attrs.evolve(frame, flags=frame.flags & ~(FRAGMENT | MORE) | TRUNCATED)
    requests = requests_of(whole, _times(frame))
    return _pending_row(frame.connection, node_id, _Open(requests, place, True), 0, wall)


def _late_rows(unsent: _Unsent, node_id: int, wall: Wall) -> Iterator[ExchangeRow]:
    """Yield the exchanges whose last frame has not left: a response, or a request that has none."""
    entry, asked = unsent.entry, unsent.open
    kind = entry.requests if type(entry) is FrameRun else entry
    if entry.side is not _BROKER and kind.flags & NO_RESPONSE:
        one_way = entry.requests if type(entry) is FrameRun else requests_of(entry, _times(entry))
        fault_ids = () if type(entry) is FrameRun else entry.fault_ids
        whole = _Open(one_way, unsent.place, True, fault_ids)
        for nth in range(len(one_way)):
            yield _pending_row(entry.connection, node_id, whole, nth, wall)
    if entry.side is not _BROKER or asked is None:
        return
    sizes = entry.sizes if type(entry) is FrameRun else [entry.frame_bytes]
    first = entry.number - asked.requests.number
    for nth, size in enumerate(sizes):
        row = _pending_row(entry.connection, node_id, asked, first + nth, wall)
        flags = entry.flags if type(entry) is Frame else REWRITTEN if entry.splices else 0
        yield row._replace(
            response_received_ns=entry.time_ns + wall(asked.requests.times.received_ns),
            response_bytes=size,
            response_flags=flags,
            response_position=unsent.place + nth,
            error_code=getattr(entry, "error_code", ERROR_NOT_LOOKED),
        )
