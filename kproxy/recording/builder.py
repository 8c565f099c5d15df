"""Entries to batches, as they arrive: what recording costs the proxy per frame.

::

    Frame, Run, Note ─▶ BatchBuilder ─▶ RecordingBatch ─▶ `batch_messages`, in a thread
                           │ what is pending on each connection
                           └─▶ a row per exchange that is complete

An exchange is complete when its response has left, when a request that has none has left, or when
its connection ends. What has not left when its entry comes is looked at again whenever a batch is
taken.

Invariants: frames of a run stay together. Positions name batches that came before, or their own.
Memory is bounded by what is pending: connections, requests, responses that wait for a client.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence

import attrs

from kproxy.exchange import facts
from kproxy.exchange.entries import (
    CLIENT_ENDED,
    CONNECTIONS,
    ERROR_NOT_LOOKED,
    FRAGMENT,
    MORE,
    NO_NODE,
    NO_RESPONSE,
    REWRITTEN,
    SILENCED,
    TRUNCATED,
    UNANSWERED,
    ChunkTimes,
    Entry,
    ExchangeRow,
    Frame,
    Note,
    PendingRequest,
    Requests,
    Run,
    Side,
    Splice,
    each,
    requests_of,
)
from kproxy.protocol.codec import FETCH
from kproxy.recording.batch import (
    PLACE,
    PLACES,
    RUN,
    RUN_STEP,
    RUNS_BYTES_MAX,
    SHARED,
    RecordingBatch,
    split_into_pieces,
)
from kproxy.recording.layout import BATCH_BYTES, STORED_BYTES_MIN
from kproxy.recording.requests import (
    FRAME_BYTES_MAX,
    NOT_RECORDED,
    PendingRun,
    row_of_request,
    take,
    waits_of,
)
from kproxy.recording.splices import pack_splices

_OF_EXCHANGES = ~(FRAGMENT | MORE)
"""The flags of frames that also say something about the exchange."""
_PACK_RUN = RUN.pack
_PACK_SHARED = SHARED.pack


@attrs.define(eq=False)
class _PendingConnection:
    """A connection with the requests and frames that are pending on it."""

    node_id: int = NO_NODE
    answered_ns: int = 0
    """The arrival of its last response."""
    pending: dict[int, PendingRun] = attrs.field(factory=dict)
    """Pending requests, by the number of the first one."""
    unfinished: dict[Side, PendingRun] = attrs.field(factory=dict)
    """The last pieces of frames that are not complete."""


_PendingCopy = tuple[int, int, Iterable[tuple[int, PendingRun]], PendingRun | None]
"""A copy of what is pending on a connection: its number and node_id, `pending`, and the request
that is still arriving."""


class BatchBuilder:
    """Collects entries into batches. It belongs to one thread; its batches may go to others.

    `number` is the number of the next batch.
    """

    def __init__(self, number: int = 1) -> None:
        self._batch = RecordingBatch(number)
        self._full: list[RecordingBatch] = []
        self._refused_from = 0
        """The number of the first refused batch since the last one that was written."""
        self._connections: dict[int, _PendingConnection] = {}
        self._unsent: list[tuple[Frame, ChunkTimes]] = []
        """Pending requests that had not left when their batch was closed, each by itself."""
        self._splices: tuple[Sequence[Splice], bytes] = ((), b"")
        """The splices of the last run that had some, also as they are recorded."""
        self._late: list[tuple[Frame | ChunkTimes, str, ExchangeRow]] = []
        """Exchanges with a frame that has not left: the frame, the field of the row for the time
        when it does, the row."""

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
            if batch.data_bytes >= BATCH_BYTES or len(batch.runs) >= RUNS_BYTES_MAX:
                if batch.full:
                    self._close()

    def take(self) -> list[RecordingBatch]:
        """End the current batch; return all batches with content that were not taken yet."""
        if self._late:
            self._complete_late()
        if self._batch:
            self._close()
        batches, self._full = self._full, []
        return batches

    def list_pending(self, batch: RecordingBatch) -> None:
        """Have the batch that was taken last list the exchanges that are pending behind it. The
        writer makes the rows: for thousands of them that takes longer than a client should wait."""
        late = [row for _, _, row in self._late]
        connections: list[_PendingCopy] = [
            (number, each.node_id, [*each.pending.items()], each.unfinished.get(Side.CLIENT))
            for number, each in self._connections.items()
            if each.pending or each.unfinished
        ]
        batch.pending = itertools.chain(
            late, itertools.chain.from_iterable(itertools.starmap(_rows, connections))
        )

    def lose(self, entries: Iterable[Entry]) -> None:
        """Skip entries that will not be recorded. Exchanges that they complete get their
        row, if the request is recorded; pieces that follow a lost one do not refer to those before
        it."""
        for entry in entries:
            if isinstance(entry, Note):
                if entry.channel == CONNECTIONS and entry.body.get("event") == "closed":
                    self._end(entry.body["connection"], entry.time_ns)
                continue
            connection = self._connections.get(entry.connection)
            if connection is None:
                continue
            if isinstance(entry, Frame) and entry.flags & FRAGMENT:
                connection.unfinished.pop(entry.side, None)
                if entry.flags & MORE:
                    continue
            if entry.side is Side.BROKER:
                if connection.pending:
                    for frame in each((entry,)):
                        if isinstance(frame, Frame):
                            self._response(connection, frame, 0, frame)
                connection.answered_ns = max(connection.answered_ns, entry.time_ns)

    def take_back(self, batches: Sequence[RecordingBatch]) -> None:
        """Take back batches that could not be written, once those before them were written or taken
        back. Rows with the outcome of recorded frames are kept for the next batch."""
        first = self._refused_from = self._refused_from or batches[0].number
        for batch in batches:
            for row in batch.rows_from_before(first):
                positions = row.request_position, row.response_position
                request, response = (each if each >> 32 < first else 0 for each in positions)
                row = row._replace(request_position=request, response_position=response)
                self._batch.exchange(row)

    def confirm_written(self) -> None:
        """Note that all batches that were taken and not taken back have been written."""
        self._refused_from = 0

    @property
    def late(self) -> bool:
        """True while exchanges have no row because their last frame has not left."""
        return bool(self._late)

    @property
    def begun(self) -> tuple[int, int, int]:
        """The number of the current batch, and the number of its frames and bytes."""
        batch = self._batch
        return batch.number, batch.frames, batch.data_bytes

    @property
    def frames(self) -> int:
        """The number of frames that wait to be taken."""
        return self._batch.frames + sum(batch.frames for batch in self._full)

    def give_up(self) -> tuple[list[RecordingBatch], RecordingBatch]:
        """Begin a new batch in place of one that an exception has left half made; return the
        batches that were not taken yet, and the half made one.

        Pending requests are forgotten: they may have positions in the half made batch.
        """
        spoilt = self._batch
        self._batch = RecordingBatch(spoilt.number + 1)
        self._unsent, self._late = [], []
        self._connections = {
            number: _PendingConnection(connection.node_id)
            for number, connection in self._connections.items()
        }
        return self._full, spoilt

    def finish(self) -> None:
        """End all connections: pending requests will not be completed any more."""
        for number in list(self._connections):
            self._end(number, 0)
        self._complete_late()

    def _close(self) -> None:
        batch = self._batch
        self._update_unsent()
        self._unsent += [
            (each, kept) for _, each, kept in batch.unsent if isinstance(each, Frame) and kept
        ]
        batch.unsent = []
        if self._unsent:
            self._unsent = [each for each in self._unsent if self._may_leave(each[0])]
        for row in (0, len(batch.runs) - RUN.size) if batch.runs else ():
            batch.span(*struct.unpack_from("<q", batch.runs, row))
        if not batch.end_ns:
            batch.span_exchanges()
        self._full.append(batch)
        self._batch = RecordingBatch(batch.number + 1)

    def _update_unsent(self) -> None:
        """Copy the times of frames that have left since they were added."""
        batch, unsent = self._batch, self._batch.unsent
        batch.unsent = [each for each in unsent if not each[1].sent_ns]
        for run, timed, kept in unsent:
            struct.pack_into("<q", batch.runs, run + 8, timed.sent_ns)
            if kept is not None:
                _copy_times(timed, kept)
        for frame, kept in self._unsent:
            _copy_times(frame, kept)

    def _may_leave(self, frame: Frame) -> bool:
        return not frame.sent_ns and frame.connection in self._connections

    def _connection(self, number: int) -> _PendingConnection:
        connection = self._connections.get(number)
        if connection is None:
            connection = self._connections[number] = _PendingConnection()
        return connection

    # ---- runs: the hot path

    def _requests(self, run: Run) -> None:
        requests, number, flags = run.requests, run.number, run.requests.flags
        waits = waits_of(run) if requests.api_key == FETCH else None
        position = self._batch.position
        self._run(run, number, flags)
        connection = self._connections.get(run.connection) or self._connection(run.connection)
        last = number + len(run.sizes) - 1
        known = last, position, number, waits, flags, (), requests
        if flags & NO_RESPONSE:
            for row in _rows(run.connection, connection.node_id, ((number, known),), None):
                if run.times.fault_ns:  # `_complete` adds it
                    row = row._replace(fault_ns=0, held_behind=0)
                self._complete(run.times, "request_sent_ns", row)
        else:
            connection.pending[number] = known

    def _responses(self, run: Run) -> None:
        connection = self._connections.get(run.connection) or self._connection(run.connection)
        pending, first, count = connection.pending, run.number, len(run.sizes)
        known = pending.get(first)
        if known is not None and known[0] == first + count - 1:
            del pending[first]
            self._exchanges(run, 0, first, count, connection, known)
        else:  # not all of a run, or of several: parts of them may not be recorded
            done = 0
            while done < count:
                known, together = take(pending, first + done, count - done)
                self._exchanges(run, done, first + done, together, connection, known)
                done += together
        self._run(run, first, REWRITTEN if run.splices else 0)

    def _exchanges(
        self,
        run: Run,
        nth: int,
        number: int,
        count: int,
        connection: _PendingConnection,
        known: PendingRun,
    ) -> None:
        """Complete the exchanges of one run of requests with `count` responses from the nth on,
        which has this number."""
        batch, times, requests = self._batch, run.times, run.requests
        _, request_position, first, waits, request_flags, fault_ids, _ = known
        asked = requests.times
        received_ns, sent_ns, request_sent_ns = times.received_ns, times.sent_ns, asked.sent_ns
        later_ns = queued_ns = 0
        if request_sent_ns > received_ns:  # as of ChunkTimes.sent_before
            request_sent_ns = 0
        elif request_sent_ns:
            later_ns = received_ns - request_sent_ns
            if connection.answered_ns > request_sent_ns:
                queued_ns = connection.answered_ns - request_sent_ns
        connection.answered_ns = received_ns
        numbers = range(number, number + count)
        heads = [requests.api_key << 16 | requests.api_version & 0xFFFF] * (2 * count)
        heads[::2] = numbers
        batch.heads += heads
        touched = fault_ids or asked.fault_ns or times.fault_ns or times.client_ended
        if not sent_ns or touched:
            for place in range(nth, nth + count):
                request = requests[run.nth + place]
                row = row_of_request(run.connection, connection.node_id, request, known)
                self._complete_later(run, place, row, request_sent_ns, queued_ns)
                queued_ns = later_ns
            return
        self._own(run, nth, number, count, waits, number - first if request_position else 0)
        shared = [
            asked.received_ns, request_sent_ns, received_ns, sent_ns, queued_ns, 0, 0,
            request_position, batch.position, run.connection, connection.node_id,
            requests.api_key, requests.api_version, request_flags,
            REWRITTEN if run.splices else 0, ERROR_NOT_LOOKED, len(batch.exchange_fault_ids),
        ]  # fmt: skip
        batch.shared += _PACK_SHARED(*shared)
        if count > 1:
            shared[4] = later_ns
            batch.shared += _PACK_SHARED(*shared) * (count - 1)

    def _own(
        self,
        run: Run,
        nth: int,
        number: int,
        count: int,
        waits: Mapping[int, int] | None,
        request_nth: int,
    ) -> None:
        """Add what the exchanges of a run have for themselves."""
        batch, requests, asked_nth = self._batch, run.requests, run.nth + nth
        numbers, request_bytes, response_bytes, correlation_ids, max_wait_ms = batch.own
        if count == 1:  # so it takes two thirds of the time
            numbers.append(number)
            request_bytes.append(requests.sizes[asked_nth])
            response_bytes.append(run.sizes[nth])
            correlation_ids.append(requests.correlation_ids[asked_nth])
            max_wait_ms.append(waits.get(number, 0) if waits else 0)
            batch.places += PLACE.pack(request_nth, nth)
            return
        added = range(number, number + count)
        numbers += added
        request_bytes += requests.sizes[asked_nth : asked_nth + count]
        response_bytes += run.sizes[nth : nth + count]
        correlation_ids += requests.correlation_ids[asked_nth : asked_nth + count]
        max_wait_ms += [waits.get(each, 0) for each in added] if waits else [0] * count
        if nth or request_nth:
            places = zip(
                range(request_nth, request_nth + count), range(nth, nth + count), strict=True
            )
            batch.places += b"".join(PLACE.pack(*each) for each in places)
        else:
            batch.places += PLACES[: PLACE.size * count]

    def _complete_later(
        self, run: Run, nth: int, row: ExchangeRow, sent_ns: int, queued_ns: int
    ) -> None:
        """Complete an exchange that a rule has touched, or whose response has not left."""
        row = row._replace(
            request_sent_ns=sent_ns,
            response_received_ns=run.times.received_ns,
            response_sent_ns=run.times.sent_ns,
            queued_ns=queued_ns,
            response_position=self._batch.position + nth,
            response_bytes=run.sizes[nth],
            response_flags=REWRITTEN if run.splices else 0,
        )
        self._complete(run.times, "response_sent_ns", row)

    def _run(self, run: Run, number: int, flags: int) -> None:
        """Add the row and the bytes of a run."""
        batch, times, sizes = self._batch, run.times, run.sizes
        count, size = len(sizes), sum(sizes)
        if count > 1:
            batch.sizes += sizes
        elif size >= STORED_BYTES_MIN:
            batch.spare(size)
        if run.splices:
            batch.splices += self._packed(run.splices)
        batch.frames += count
        batch.pieces += run.pieces
        batch.data_bytes = data_bytes = batch.data_bytes + size
        sent_ns = times.sent_ns
        if not sent_ns:
            batch.unsent.append((len(batch.runs), times, None))
        batch.position += RUN_STEP
        batch.runs += _PACK_RUN(
            times.received_ns, sent_ns, number, run.connection, flags, len(batch.notes), run.side,
            len(batch.sizes), len(batch.heads), len(batch.splices), data_bytes,
        )  # fmt: skip

    def _packed(self, splices: Sequence[Splice]) -> bytes:
        """Pack splices; those of a run are often those of the run before."""
        known, packed = self._splices
        if splices is not known:
            packed = pack_splices(splices)
            self._splices = splices, packed
        return packed

    # ---- frames by themselves

    def _frame(self, frame: Frame) -> None:
        for piece in split_into_pieces(frame):
            if self._batch.full:
                self._close()
            self._piece(piece, frame)

    def _piece(self, frame: Frame, timed: Frame) -> None:
        """Add a frame, or a piece of one; `timed` is the whole one, which learns when it leaves."""
        batch, flags, side = self._batch, frame.flags, frame.side
        connection = self._connection(frame.connection)
        before = connection.unfinished.pop(side, NOT_RECORDED) if flags & FRAGMENT else NOT_RECORDED
        position = batch.frame(frame, before[1])
        if flags & MORE:
            connection.unfinished[side] = _pending_run(frame, position)[1]
            return
        if flags & UNANSWERED:
            connection.unfinished.pop(side, None)
        kept = None
        if side is Side.CLIENT:
            kept = self._request(connection, frame, position, timed)
        else:
            self._response(connection, frame, position, timed)
        if not timed.sent_ns and not frame.withheld:
            batch.unsent.append((len(batch.runs) - RUN.size, timed, kept))

    def _request(
        self, connection: _PendingConnection, frame: Frame, position: int, timed: Frame
    ) -> ChunkTimes | None:
        requests, known = _pending_run(frame, position)
        if frame.flags & NO_RESPONSE:
            row = row_of_request(frame.connection, connection.node_id, requests[0], known)
            self._complete(None if frame.withheld else timed, "request_sent_ns", row)
            return None
        connection.pending[frame.number] = known
        return requests.times

    def _response(
        self, connection: _PendingConnection, frame: Frame, position: int, timed: Frame
    ) -> None:
        """Complete an exchange by its response, or by its end without one; a lost one has no
        position."""
        known, _ = take(connection.pending, frame.number, 1)
        *_, request_flags, _, requests = known
        if requests is None and not position:
            return  # neither of the two is recorded
        ended = frame.flags & UNANSWERED
        times = ChunkTimes(
            frame.request_received_ns, frame.request_sent_ns, frame.request_fault_ns,
            frame.request_behind,
        )  # fmt: skip
        if requests and not times.sent_ns:  # when the response began, it was not known yet
            self._update_unsent()
            asked = requests.times
            times.sent_ns = asked.sent_ns if ended else asked.sent_before(frame.received_ns)
        request = PendingRequest(
            frame.correlation_id, frame.api_key, frame.api_version, frame.number,
            frame.request_bytes, request_flags, times, None,
        )  # fmt: skip
        row = row_of_request(frame.connection, connection.node_id, request, known)
        if ended:
            flags = UNANSWERED | frame.flags & SILENCED
            row = row._replace(response_flags=flags, response_received_ns=frame.received_ns)
            self._complete(None, "", row)
            return
        sent_ns, answered_ns = row.request_sent_ns, connection.answered_ns
        row = row._replace(
            response_received_ns=frame.received_ns,
            response_sent_ns=frame.sent_ns,
            queued_ns=max(0, answered_ns - sent_ns) if sent_ns else 0,
            response_bytes=min(frame.frame_bytes, FRAME_BYTES_MAX),
            response_position=position,
            response_flags=frame.flags & _OF_EXCHANGES,
            error_code=frame.error_code,
            fault_ids=tuple(dict.fromkeys((*row.fault_ids, *frame.fault_ids))),
        )
        connection.answered_ns = frame.received_ns
        waits = position and not frame.withheld
        self._complete(timed if waits else None, "response_sent_ns", row)

    # ---- exchanges

    def _complete(self, timed: Frame | ChunkTimes | None, field: str, row: ExchangeRow) -> None:
        """Add the row of an exchange, or keep it until its last frame has left."""
        if timed is not None and not timed.sent_ns:
            self._late.append((timed, field, row))
            return
        if timed is not None and timed.fault_ns:
            behind = row.held_behind or timed.behind
            row = row._replace(fault_ns=row.fault_ns + timed.fault_ns, held_behind=behind)
        if timed is not None and timed.client_ended:
            row = row._replace(response_flags=row.response_flags | CLIENT_ENDED)
        self._batch.exchange(row)

    def _complete_late(self) -> None:
        late, self._late = self._late, []
        for timed, field, row in late:
            gone = not timed.sent_ns and row.connection not in self._connections
            row = row._replace(**{field: timed.sent_ns})
            self._complete(None if gone else timed, field, row)

    def _end(self, number: int, ended_ns: int) -> None:
        """End a connection: pending requests on it will not be answered."""
        connection = self._connections.pop(number, None)
        if connection is None:
            return
        self._update_unsent()
        for row in _rows(number, connection.node_id, connection.pending.items(), None):
            row = row._replace(response_flags=UNANSWERED, response_received_ns=ended_ns)
            self._complete(None, "", row)

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


def _copy_times(frame: Frame | ChunkTimes, kept: ChunkTimes) -> None:
    kept.sent_ns, kept.fault_ns, kept.behind = frame.sent_ns, frame.fault_ns, frame.behind


def _pending_run(frame: Frame, position: int) -> tuple[Requests, PendingRun]:
    """Return a request by itself, or a piece of one, also as a pending run."""
    number, waits = frame.number, None
    if frame.api_key == FETCH and frame.pieces and not frame.flags & FRAGMENT:
        data = frame.pieces[0] if len(frame.pieces) == 1 else frame.data
        waits = {number: facts.max_wait_ms(data, 0, frame.api_version)}
    # What waits for its response, maybe for long, does not hold the request's bytes.
    requests = requests_of(frame, ChunkTimes(frame.received_ns, frame.sent_ns))
    flags, fault_ids = frame.flags & _OF_EXCHANGES, tuple(frame.fault_ids)
    return requests, (number, position, number, waits, flags, fault_ids, requests)


def _rows(
    connection: int,
    node_id: int,
    pending: Iterable[tuple[int, PendingRun]],
    arriving: PendingRun | None,
) -> Iterator[ExchangeRow]:
    """Yield the rows, as far as they are known, of the exchanges that are pending on a
    connection."""
    for start, known in pending:
        last, *_, requests = known
        if requests is not None:
            for nth in range(start - requests.number, last + 1 - requests.number):
                yield row_of_request(connection, node_id, requests[nth], known)
    if arriving is not None and (requests := arriving[6]) is not None:
        row = row_of_request(connection, node_id, requests[0], arriving)
        yield row._replace(request_flags=row.request_flags | TRUNCATED)
