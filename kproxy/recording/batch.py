"""A batch: what goes into a recording at once, as integers.

What an exchange has for itself stands in lists, one for each column, which a run extends at once.
What it shares with the others of its run is a row in a buffer of 64-bit integers, packed once for
all; columns are made of rows later, by slicing. (A call of `array.append` per value costs several
times as much as either.)

Invariants: what a list of a run holds stands in the batch's list up to the end that the row says;
a frame that is larger than a piece may be is there in pieces that name each the one before.
"""

from __future__ import annotations

import operator
import struct
from array import array
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import attrs

from kproxy.exchange.entries import (
    FRAGMENT,
    MORE,
    PIECE_BYTES_MAX,
    UNANSWERED,
    ChunkTimes,
    ExchangeRow,
    Frame,
    Note,
    Position,
)
from kproxy.recording.arrow import Buffer
from kproxy.recording.layout import (
    BATCH_BYTES,
    BATCH_RUNS_MAX,
    RUN_INTEGERS,
    RUN_LISTS,
    STORED_BYTES_MIN,
)
from kproxy.recording.splices import pack_splices

RUN = struct.Struct(f"<{len(RUN_INTEGERS) + len(RUN_LISTS)}q")
"""The row of a run: its integers, and behind them the ends of its lists in those of the batch."""
RUN_STEP = Position(0, 1, 0).integer
"""The distance from one run to the next."""
RUNS_BYTES_MAX = RUN.size * BATCH_RUNS_MAX
OWN_FIELDS = ("number", "request_bytes", "response_bytes", "correlation_id", "max_wait_ms")
"""The fields of an `ExchangeRow` that are an exchange's own …"""
SHARED_FIELDS = tuple(
    name for name in ExchangeRow._fields if name not in (*OWN_FIELDS, "fault_ids")
)
"""… and those that it may share; of positions, that of the run. Behind them a row says where its
list of fault ids ends."""
SHARED = struct.Struct(f"<{len(SHARED_FIELDS) + 1}q")
PLACES = array("I", range(0, 1 << 32, 0x1_0001)).tobytes()
"""The places of a request and a response that both are the nth of their runs: the same 16 bits
twice."""
PLACE = struct.Struct("<HH")
_TIMES = SHARED_FIELDS.index("queued_ns")
_POSITIONS = slice(SHARED_FIELDS.index("request_position"), SHARED_FIELDS.index("connection"))

_shared = operator.attrgetter(*SHARED_FIELDS)


def _first_position(batch: RecordingBatch) -> int:
    return Position(batch.number, 0, 0).integer


@attrs.define(eq=False)
class RecordingBatch:
    """The content of one write to a recording, as rows of integers."""

    number: int
    """0 for a batch without frames, to which no position refers."""
    runs: bytearray = attrs.field(factory=bytearray)
    sizes: list[int] = attrs.field(factory=list[int])
    """The sizes of the frames of runs."""
    heads: list[int] = attrs.field(factory=list[int])
    splices: bytearray = attrs.field(factory=bytearray)
    pieces: list[Buffer] = attrs.field(factory=list)
    data_bytes: int = 0
    """The size of `pieces`."""
    stored_bytes: int = 0
    """The bytes of `pieces` in frames that are not worth compressing."""
    spared_bytes: int = 0
    """The bytes of these frames that do not count towards a full batch: nearly all."""
    own: tuple[list[int], ...] = attrs.field(factory=lambda: tuple([] for _ in OWN_FIELDS))
    """The columns of `OWN_FIELDS`."""
    shared: bytearray = attrs.field(factory=bytearray)
    """The rows of exchanges, with the values that a run shares."""
    places: bytearray = attrs.field(factory=bytearray)
    """The places of each exchange's request and response in their runs."""
    exchange_fault_ids: array[int] = attrs.field(factory=lambda: array("i"))
    notes: list[Note] = attrs.field(factory=list)
    unknown_of_runs: dict[int, Mapping[str, Any]] = attrs.field(factory=dict)
    """Values of runs, and of exchanges, in columns that another version of kproxy has, by row."""
    unknown_of_exchanges: dict[int, Mapping[str, Any]] = attrs.field(factory=dict)
    pending: Iterator[ExchangeRow] | None = None
    """The exchanges without a row at its end, if its file is to list them."""
    frames: int = 0
    """The number of frames that end in it."""
    start_ns: int = 0
    """A time not after its first entry, and one not before its last."""
    end_ns: int = 0
    position: int = attrs.field(default=attrs.Factory(_first_position, takes_self=True))
    """The position of its next run or frame."""
    unsent: list[tuple[int, Frame | ChunkTimes, ChunkTimes | None]] = attrs.field(factory=list)
    """Runs that had not left when they were added: the start of their row, the object that learns
    the time, and the request that needs it."""

    def __bool__(self) -> bool:
        return bool(self.runs or self.notes or self.shared)

    @property
    def run_count(self) -> int:
        """The number of runs, including frames by themselves."""
        return len(self.runs) // RUN.size

    @property
    def full(self) -> bool:
        """True if it takes no further entry."""
        return (
            self.data_bytes - self.spared_bytes >= BATCH_BYTES or len(self.runs) >= RUNS_BYTES_MAX
        )

    @property
    def exchange_count(self) -> int:
        """The number of exchanges that have a row in it."""
        return len(self.shared) // SHARED.size

    def frame(self, frame: Frame, before: int) -> int:
        """Add a frame by itself, or a piece of one; return its position. `before` is the position
        of the piece before it."""
        flags, position, size = frame.flags, self.position, sum(map(len, frame.pieces))
        self.span(frame.received_ns)
        self.pieces += frame.pieces
        self.data_bytes += size
        if size >= STORED_BYTES_MIN:
            self.spare(size)
        self.frames += not flags & (MORE | UNANSWERED)
        self.splices += pack_splices(frame.splices)
        self.heads += (
            frame.number, frame.api_key, frame.api_version, frame.correlation_id,
            frame.frame_bytes, before,
        )  # fmt: skip
        self.runs += RUN.pack(
            frame.received_ns, frame.sent_ns, frame.number, frame.connection, flags,
            len(self.notes), frame.side, len(self.sizes), len(self.heads),
            len(self.splices), self.data_bytes,
        )  # fmt: skip
        self.position = position + RUN_STEP
        return position

    def spare(self, size: int) -> None:
        """Count the bytes of a frame that is not worth compressing."""
        self.stored_bytes += size
        self.spared_bytes += size - size // 16

    def exchange(self, exchange: ExchangeRow) -> None:
        """Add the row of an exchange."""
        self.exchange_fault_ids.extend(exchange.fault_ids)
        numbers, request_bytes, response_bytes, correlation_ids, max_wait_ms = self.own
        numbers.append(exchange.number)
        request_bytes.append(exchange.request_bytes)
        response_bytes.append(exchange.response_bytes)
        correlation_ids.append(exchange.correlation_id)
        max_wait_ms.append(exchange.max_wait_ms)
        self.shared += SHARED.pack(*_shared(exchange), len(self.exchange_fault_ids))
        positions = exchange.request_position, exchange.response_position
        self.places += PLACE.pack(*(position & 0xFFFF for position in positions))

    def rows_from_before(self, number: int) -> Iterator[ExchangeRow]:
        """Yield the rows of exchanges with a frame in a batch before this number."""
        first = number << 32
        start = 0
        for own, shared, places in zip(
            zip(*self.own, strict=True),
            SHARED.iter_unpack(self.shared),
            PLACE.iter_unpack(self.places),
            strict=True,
        ):
            end, (request, response) = shared[-1], shared[_POSITIONS]
            if 0 < request < first or 0 < response < first:
                values = dict(zip((*OWN_FIELDS, *SHARED_FIELDS), (*own, *shared), strict=False))
                values["request_position"] = request & ~0xFFFF | places[0]
                values["response_position"] = response & ~0xFFFF | places[1]
                yield ExchangeRow(**values, fault_ids=self.exchange_fault_ids[start:end])
            start = end

    def moved(
        self, offset_ns: Callable[[int], int], note: Callable[[Note], Note],
        row: Callable[[ExchangeRow], ExchangeRow],
    ) -> RecordingBatch:  # fmt: skip
        """Return it with other times: those of a run later by its offset, those of an exchange by
        that of its request; `note` and `row` do that with one of those."""
        runs, shared = bytearray(self.runs), bytearray(self.shared)
        notes = [note(each) for each in self.notes]
        pending = None if self.pending is None else map(row, self.pending)
        moved = attrs.evolve(
            self, runs=runs, shared=shared, notes=notes, pending=pending, start_ns=0, end_ns=0
        )
        for rows, struct_, count in ((runs, RUN, 2), (shared, SHARED, _TIMES)):
            values = memoryview(rows).cast("q")
            for start in range(0, len(values), struct_.size // 8):
                times = values[start : start + count]
                later_ns = offset_ns(times[0] or times[count // 2])
                for place, time_ns in enumerate(times):
                    if time_ns:
                        times[place] = time_ns + later_ns
                if rows is runs and times[0]:
                    moved.span(times[0])
        for each in notes:
            moved.span(each.time_ns)
        if not moved.end_ns:
            moved.span_exchanges()
        return moved

    def note(self, note: Note) -> None:
        """Add a note."""
        self.notes.append(note)
        self.span(note.time_ns)

    def span_exchanges(self) -> None:
        """Extend the span of the batch to the times of its exchanges."""
        for shared in SHARED.iter_unpack(self.shared):
            self.span(max(shared[:_TIMES]))

    def span(self, time_ns: int) -> None:
        """Extend the span of the batch to a time."""
        if not self.start_ns or time_ns < self.start_ns:
            self.start_ns = time_ns
        if time_ns > self.end_ns:
            self.end_ns = time_ns


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
