"""Entries to batches, as they arrive: what recording costs the proxy per frame.

::

    Frame, Run, Note ─▶ BatchBuilder ─▶ Batch: rows, bytes, notes ─▶ `tables` (in another thread)
                           │ what is pending on each connection
                           └─▶ a row per exchange that is complete

An exchange is complete when its response has left, when a request that has none has left, or when
its connection ends. What has not left when its entry comes is looked at again whenever a batch is
taken.

Invariants: a run is never split over batches. Positions name batches that came before, or their
own. Memory is bounded by what is pending: connections, requests, responses that wait for a client.
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import attrs

from kproxy.exchange import facts
from kproxy.exchange.entries import (
    CONNECTIONS,
    ERROR_NOT_LOOKED,
    FRAGMENT,
    MORE,
    NO_NODE,
    NO_RESPONSE,
    REWRITTEN,
    UNANSWERED,
    ChunkTimes,
    Entry,
    ExchangeRow,
    Frame,
    Note,
    PendingRequest,
    Run,
    Side,
)
from kproxy.protocol.codec import FETCH
from kproxy.recording.batch import EXCHANGE, FRAME_HEAD, RESPONSE_HEAD, RUN, Batch, packed_splices
from kproxy.recording.layout import (
    BATCH_BYTES,
    BATCH_RUNS_MAX,
    PIECE_BYTES_MAX,
    STORED_BYTES_MIN,
)

_REQUEST_SENT = ExchangeRow._fields.index("request_sent_ns")
_RESPONSE_SENT = ExchangeRow._fields.index("response_sent_ns")
_CONNECTION = ExchangeRow._fields.index("connection")
_OF_EXCHANGES = ~(FRAGMENT | MORE)
"""The flags of frames that say something of an exchange, too."""
_BYTES_MAX = 0x7FFFFFFF
"""The largest size that a row takes; that of the largest frame is 4 more."""
_PACK_RUN = RUN.pack
_PACK_HEAD = RESPONSE_HEAD.pack
_PACK_EXCHANGE = EXCHANGE.pack
_API_KEY, _FLAGS = operator.itemgetter(1), operator.itemgetter(5)
"""Of a PendingRequest."""
_NOBODY = (0, 0, None, 0, (), ())
"""What is known of a request that is not in the recording."""


@attrs.define(eq=False)
class _Connection:
    """What is pending on a connection."""

    node_id: int = NO_NODE
    answered_ns: int = 0
    """When its last response arrived."""
    pending: dict[int, tuple[Any, ...]] = attrs.field(factory=dict)
    """Requests by number: position and number of the first one of their run, max_wait_ms by number,
    flags, fault ids, and the requests of the run."""
    unfinished: dict[Side, int] = attrs.field(factory=dict)
    """Where the last piece lies of the frames that others will follow."""


class BatchBuilder:
    """Collects entries into batches. Belongs to one thread; the batches it gives may go to others.

    `number` is that of the next batch.
    """

    def __init__(self, number: int = 1) -> None:
        self._batch = Batch(number)
        self._full: list[Batch] = []
        self._connections: dict[int, _Connection] = {}
        self._late: list[tuple[Frame | ChunkTimes, int, int, list[int], Sequence[int]]] = []
        """Exchanges of which a frame has not left: the frame, which field of the row says when it
        does, the connection, the row, its fault ids."""

    def add(self, entries: Iterable[Entry]) -> None:
        """Take entries, in the order of their arrival."""
        for entry in entries:
            if type(entry) is Run:
                if entry.side:
                    self._responses(entry)
                else:
                    self._requests(entry)
            elif type(entry) is Frame:
                self._frame(entry)
            else:
                self._note(entry)
            batch = self._batch
            if batch.load_bytes >= BATCH_BYTES or batch.run_count >= BATCH_RUNS_MAX:
                self._close()

    def take(self) -> list[Batch]:
        """End the current batch; return all that were not taken yet and have something in them."""
        if self._late:
            self._look_at_late()
        if self._batch:
            self._close()
        batches, self._full = self._full, []
        return batches

    def lose(self, entries: Iterable[Entry]) -> None:
        """Take note of entries that will not be recorded: their exchanges get no row, and what
        follows a lost piece does not refer to the pieces before."""
        for entry in entries:
            if isinstance(entry, Note):
                if entry.channel == CONNECTIONS and entry.body.get("event") == "closed":
                    self._connections.pop(entry.body["connection"], None)
                continue
            connection = self._connections.get(entry.connection)
            if connection is None:
                continue
            if isinstance(entry, Frame) and entry.flags & FRAGMENT:
                connection.unfinished.pop(entry.side, None)
            if entry.side is Side.BROKER:
                for number in (
                    [r[3] for r in entry.requests] if isinstance(entry, Run) else [entry.number]
                ):
                    connection.pending.pop(number, None)

    def finish(self) -> None:
        """End all connections: what is pending will not be completed any more."""
        for number in list(self._connections):
            self._end(number, 0)
        self._look_at_late()

    def _close(self) -> None:
        batch = self._batch
        for run, timed, kept in batch.unsent:
            struct.pack_into("<q", batch.runs, run * RUN.size + 8, timed.sent_ns)
            if kept is not None:
                kept.sent_ns = timed.sent_ns
        batch.unsent = []
        self._full.append(batch)
        self._batch = Batch(batch.number + 1)

    def _connection(self, number: int) -> _Connection:
        connection = self._connections.get(number)
        if connection is None:
            connection = self._connections[number] = _Connection()
        return connection

    # ---- runs: the hot path

    def _requests(self, run: Run) -> None:
        batch, times, requests = self._batch, run.times, run.requests
        _, api_key, _, first, _, flags, _, _ = requests[0]
        count = len(requests)
        if count > 1 and _is_mixed(requests):
            for single in _singles(run):
                self._requests(single)
            return
        position = batch.number << 32 | batch.run_count << 16
        self._append(batch, run, first, flags, 0)
        connection = self._connections.get(run.connection) or self._connection(run.connection)
        if flags & NO_RESPONSE:
            about = position, first, None, flags, (), requests
            for request in requests:
                row = _pending_row(run.connection, connection.node_id, request, about)
                self._complete(times, _REQUEST_SENT, list(row[:-1]), ())
        elif count == 1:
            waits = _waits(run) if api_key == FETCH else None
            connection.pending[first] = position, first, waits, 0, (), requests
        else:
            waits = _waits(run) if FETCH in map(_API_KEY, requests) else None
            pending = position, first, waits, 0, (), requests
            connection.pending.update(dict.fromkeys(range(first, first + count), pending))

    def _responses(self, run: Run) -> None:
        batch, times, number = self._batch, run.times, run.connection
        received_ns, sent_ns = times.received_ns, times.sent_ns
        flags = REWRITTEN if run.splices else 0
        position = batch.number << 32 | batch.run_count << 16
        connection = self._connections.get(number) or self._connection(number)
        node_id, answered_ns = connection.node_id, connection.answered_ns
        pop, faults = connection.pending.pop, len(batch.exchange_fault_ids)
        heads, exchanges = batch.heads, batch.exchanges
        for request, size in zip(run.requests, run.sizes):  # noqa: B905, it costs
            correlation_id, api_key, api_version, asked, request_bytes, _, asked_times, _ = request
            asked_ns, asked_sent_ns = asked_times.received_ns, asked_times.sent_ns
            if asked_sent_ns > received_ns:  # as of ChunkTimes.sent_before
                asked_sent_ns = 0
            heads += _PACK_HEAD(asked, api_key << 16 | api_version & 0xFFFF)
            asked_at, first, waits, asked_flags, fault_ids, _ = pop(asked, _NOBODY)
            if asked_at:
                asked_at += asked - first
            queued_ns = answered_ns - asked_sent_ns if answered_ns > asked_sent_ns > 0 else 0
            wait_ms = waits.get(asked, 0) if waits else 0
            answered_ns = received_ns
            if sent_ns and not fault_ids:
                exchanges += _PACK_EXCHANGE(
                    asked, asked_ns, asked_sent_ns, received_ns, sent_ns, queued_ns, asked_at,
                    position, request_bytes, size, number, node_id, correlation_id, wait_ms,
                    api_key, api_version, asked_flags, flags, ERROR_NOT_LOOKED, faults,
                )  # fmt: skip
            else:
                values = [
                    asked, asked_ns, asked_sent_ns, received_ns, sent_ns, queued_ns, asked_at,
                    position, request_bytes, size, number, node_id, correlation_id, wait_ms,
                    api_key, api_version, asked_flags, flags, ERROR_NOT_LOOKED,
                ]  # fmt: skip
                self._complete(times, _RESPONSE_SENT, values, fault_ids)
                faults = len(batch.exchange_fault_ids)
            position += 1
        connection.answered_ns = answered_ns
        if run.splices:
            batch.splices += packed_splices(run.splices)
        self._append(batch, run, run.requests[0][3], flags, 1)

    def _append(self, batch: Batch, run: Run, number: int, flags: int, side: int) -> None:
        """Add the row and the bytes of a run."""
        times, sizes, data, start = run.times, run.sizes, run.data, run.start
        if len(sizes) == 1:
            size = sizes[0]
            batch.frames += 1
        else:
            size = sum(sizes)
            batch.sizes.extend(sizes)
            batch.frames += len(sizes)
        batch.pieces.append(data if size == len(data) else data[start : start + size])
        batch.data_bytes = data_bytes = batch.data_bytes + size
        batch.load_bytes += size
        if not times.sent_ns:
            batch.unsent.append((batch.run_count, times, None))
        batch.run_count += 1
        received_ns = times.received_ns
        if not batch.start_ns:
            batch.start_ns = received_ns
        batch.end_ns = received_ns
        batch.runs += _PACK_RUN(
            received_ns, times.sent_ns, number, run.connection, flags, len(batch.notes),
            side, len(batch.sizes), len(batch.heads) >> 3, len(batch.splices), data_bytes,
        )  # fmt: skip

    # ---- frames by themselves

    def _frame(self, frame: Frame) -> None:
        size = sum(map(len, frame.pieces))
        if size <= PIECE_BYTES_MAX:
            self._piece(frame, size)
            return
        for piece in _split(frame):
            if self._batch.full:
                self._close()
            self._piece(piece, len(piece.pieces[0]))

    def _piece(self, frame: Frame, size: int) -> None:
        """Add a frame, or a piece of one."""
        batch, flags, side = self._batch, frame.flags, frame.side
        row = batch.run_count
        batch.run_count = row + 1
        batch.span(frame.received_ns)
        connection = self._connection(frame.connection)
        position = batch.number << 32 | row << 16
        before = connection.unfinished.pop(side, 0) if flags & FRAGMENT else 0
        if flags & MORE:
            connection.unfinished[side] = position
        batch.pieces += frame.pieces
        batch.data_bytes += size
        batch.load_bytes += size
        if size >= STORED_BYTES_MIN:
            batch.stored_bytes += size
            batch.load_bytes -= size - size // 4
        batch.frames += not flags & (MORE | UNANSWERED)
        batch.splices += packed_splices(frame.splices)
        batch.heads += FRAME_HEAD.pack(
            frame.number, frame.api_key, frame.api_version, frame.correlation_id,
            frame.frame_bytes, before,
        )  # fmt: skip
        batch.runs += RUN.pack(
            frame.received_ns, frame.sent_ns, frame.number, frame.connection, flags,
            len(batch.notes), side, len(batch.sizes), len(batch.heads) >> 3, len(batch.splices),
            batch.data_bytes,
        )  # fmt: skip
        if flags & UNANSWERED:
            connection.unfinished.pop(side, None)
        if not flags & MORE:
            kept = None
            if side is Side.CLIENT:
                kept = self._request(connection, frame, position)
            else:
                self._response(connection, frame, position)
            if not frame.sent_ns:
                batch.unsent.append((row, frame, kept))

    def _request(self, connection: _Connection, frame: Frame, position: int) -> ChunkTimes | None:
        wait_ms = 0
        if frame.api_key == FETCH and frame.pieces and not frame.flags & FRAGMENT:
            wait_ms = facts.max_wait_ms(frame.pieces[0], 0, frame.api_version)
        # What waits for its response, maybe for long, does not hold the request's bytes.
        times = ChunkTimes(frame.received_ns, frame.sent_ns)
        request: PendingRequest = (
            frame.correlation_id, frame.api_key, frame.api_version, frame.number,
            frame.frame_bytes, frame.flags, times, None,
        )  # fmt: skip
        pending = (
            position, frame.number, {frame.number: wait_ms}, frame.flags & _OF_EXCHANGES,
            tuple(frame.fault_ids), (request,),
        )  # fmt: skip
        if frame.flags & NO_RESPONSE:
            row = _pending_row(frame.connection, connection.node_id, request, pending)
            self._complete(frame, _REQUEST_SENT, list(row[:-1]), frame.fault_ids)
            return None
        connection.pending[frame.number] = pending
        return times

    def _response(self, connection: _Connection, frame: Frame, position: int) -> None:
        pending = connection.pending.pop(frame.number, _NOBODY)
        request: PendingRequest = (
            frame.correlation_id, frame.api_key, frame.api_version, frame.number,
            frame.request_bytes, pending[3],
            ChunkTimes(frame.request_received_ns, frame.request_sent_ns), None,
        )  # fmt: skip
        row = _pending_row(frame.connection, connection.node_id, request, pending)
        if pending[5] and not row.request_sent_ns:  # when the response began, it was not known yet
            asked: ChunkTimes = pending[5][frame.number - pending[1]][6]
            ended = frame.flags & UNANSWERED
            sent_ns = asked.sent_ns if ended else asked.sent_before(frame.received_ns)
            row = row._replace(request_sent_ns=sent_ns)
        if frame.flags & UNANSWERED:
            row = row._replace(response_flags=UNANSWERED, response_received_ns=frame.received_ns)
            self._complete(None, 0, list(row[:-1]), pending[4])
            return
        sent_ns, answered_ns = row.request_sent_ns, connection.answered_ns
        row = row._replace(
            response_received_ns=frame.received_ns,
            response_sent_ns=frame.sent_ns,
            queued_ns=max(0, answered_ns - sent_ns) if sent_ns else 0,
            response_bytes=min(frame.frame_bytes, _BYTES_MAX),
            response_position=position,
            response_flags=frame.flags & _OF_EXCHANGES,
            error_code=frame.error_code,
        )
        connection.answered_ns = frame.received_ns
        fault_ids = tuple(dict.fromkeys((*pending[4], *frame.fault_ids)))
        self._complete(frame, _RESPONSE_SENT, list(row[:-1]), fault_ids)

    # ---- exchanges

    def _complete(
        self,
        timed: Frame | ChunkTimes | None,
        place: int,
        values: list[int],
        fault_ids: Sequence[int],
    ) -> None:
        """Give an exchange its row, or have it wait until its last frame has left."""
        if timed is not None and not timed.sent_ns:
            self._late.append((timed, place, values[_CONNECTION], values, fault_ids))
            return
        self._batch.exchange(values, fault_ids)

    def _look_at_late(self) -> None:
        late, self._late = self._late, []
        for timed, place, connection, values, fault_ids in late:
            values[place] = timed.sent_ns
            gone = connection not in self._connections
            self._complete(None if gone else timed, place, values, fault_ids)

    def _end(self, number: int, ended_ns: int) -> None:
        """A connection has ended: what is pending on it will not be answered."""
        connection = self._connections.pop(number, None)
        if connection is None:
            return
        for request_number, pending in connection.pending.items():
            request = pending[5][request_number - pending[1]]
            row = _pending_row(number, connection.node_id, request, pending)
            row = row._replace(response_flags=UNANSWERED, response_received_ns=ended_ns)
            self._complete(None, 0, list(row[:-1]), pending[4])

    def _note(self, note: Note) -> None:
        self._batch.note(note)
        if note.channel != CONNECTIONS:
            return
        number = note.body.get("connection")
        if not isinstance(number, int):
            return
        if note.body.get("event") == "closed":
            self._end(number, note.time_ns)
        else:
            node_id = note.body.get("node_id")
            if isinstance(node_id, int):
                self._connection(number).node_id = node_id


def _pending_row(
    connection: int, node_id: int, request: PendingRequest, pending: tuple[Any, ...]
) -> ExchangeRow:
    """The row of an exchange as far as the request is concerned."""
    position, first, waits, flags, _, _ = pending
    correlation_id, api_key, api_version, number, request_bytes, _, times, _ = request
    if position:
        position += number - first
    wait_ms = waits.get(number, 0) if waits else 0
    return ExchangeRow(
        number, times.received_ns, times.sent_ns, 0, 0, 0, position, 0,
        min(request_bytes, _BYTES_MAX), 0, connection, node_id, correlation_id, wait_ms, api_key,
        api_version, flags, 0, ERROR_NOT_LOOKED, (),
    )  # fmt: skip


def _waits(run: Run) -> dict[int, int]:
    """What the Fetch requests of a run say of how long they may wait, by number."""
    waits: dict[int, int] = {}
    at = run.start
    for request, size in zip(run.requests, run.sizes, strict=True):
        if request[1] == FETCH:
            waits[request[3]] = facts.max_wait_ms(run.data, at, request[2])
        at += size
    return waits


def _is_mixed(requests: Sequence[PendingRequest]) -> bool:
    """Whether requests cannot be a row: their flags differ, or their numbers do not follow."""
    if requests[-1][3] - requests[0][3] != len(requests) - 1:
        return True
    flags = requests[0][5]
    return any(map(flags.__ne__, map(_FLAGS, requests)))


def _singles(run: Run) -> Iterator[Run]:
    at = run.start
    for request, size in zip(run.requests, run.sizes, strict=True):
        yield attrs.evolve(run, start=at, requests=[request], sizes=[size])
        at += size


def _split(frame: Frame) -> Iterator[Frame]:
    """Split a frame, or a piece of one, into pieces that are not too large."""
    data = memoryview(frame.data)
    last = (len(data) - 1) // PIECE_BYTES_MAX
    for place in range(last + 1):
        start = place * PIECE_BYTES_MAX
        pieces: list[bytes | memoryview] = [data[start : start + PIECE_BYTES_MAX]]
        if place < last:
            flags = frame.flags | FRAGMENT | MORE
            yield attrs.evolve(frame, pieces=pieces, flags=flags, splices=(), fault_ids=())
        else:
            yield attrs.evolve(frame, pieces=pieces, flags=frame.flags | FRAGMENT)
