"""A batch: what goes into a recording at once, as rows of integers.

A row is one `struct` call into a buffer of 64-bit integers; columns are made of it later, by
slicing. (A call of `array.append` per value costs several times as much.)
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence

import attrs

from kproxy.exchange.entries import (
    ChunkTimes,
    Frame,
    Note,
    Splice,
)
from kproxy.recording.arrow import Buffer
from kproxy.recording.layout import (
    BATCH_BYTES,
    BATCH_RUNS_MAX,
    EXCHANGE_INTEGERS,
    RUN_INTEGERS,
)

RUN_LISTS = ("sizes", "heads", "splices", "data")
"""Behind its integers, a row of a run says where its lists end in those of its batch."""
RUN = struct.Struct(f"<{len(RUN_INTEGERS) + len(RUN_LISTS)}q")
RESPONSE_HEAD = struct.Struct("<qq")
FRAME_HEAD = struct.Struct("<qqqqqq")
"""See `layout`."""
EXCHANGE = struct.Struct(f"<{len(EXCHANGE_INTEGERS) + 1}q")
"""The fields of `ExchangeRow`, and where its list of fault ids ends."""

_SPLICE = struct.Struct("<III")
_NOTE_BYTES = 512


@attrs.define(eq=False)
class Batch:
    """What goes into a recording at once, as rows of integers."""

    number: int
    """0: a batch without frames, to which no position refers."""
    runs: bytearray = attrs.field(factory=bytearray)
    run_count: int = 0
    sizes: array[int] = attrs.field(factory=lambda: array("i"))
    heads: bytearray = attrs.field(factory=bytearray)
    splices: bytearray = attrs.field(factory=bytearray)
    pieces: list[Buffer] = attrs.field(factory=list)
    data_bytes: int = 0
    """The size of `pieces`."""
    stored_bytes: int = 0
    """How many of them are in frames that are not worth compressing."""
    load_bytes: int = 0
    """What counts for how full it is: of these frames a quarter."""
    exchanges: bytearray = attrs.field(factory=bytearray)
    exchange_fault_ids: array[int] = attrs.field(factory=lambda: array("i"))
    notes: list[Note] = attrs.field(factory=list)
    frames: int = 0
    """How many frames end in it."""
    start_ns: int = 0
    """The time of its first entry, or an earlier one, and that of its last, or a later one."""
    end_ns: int = 0
    unsent: list[tuple[int, Frame | ChunkTimes, ChunkTimes | None]] = attrs.field(factory=list)
    """Runs that had not left when they were added: the row, what knows when, and who wants to."""

    def __bool__(self) -> bool:
        return bool(self.run_count or self.notes or self.exchanges)

    @property
    def full(self) -> bool:
        """Whether it takes no further entry."""
        return self.load_bytes >= BATCH_BYTES or self.run_count >= BATCH_RUNS_MAX

    @property
    def memory_bytes(self) -> int:
        """About how much memory it holds."""
        rows = len(self.runs) + len(self.heads) + len(self.exchanges)
        return self.data_bytes + rows + _NOTE_BYTES * len(self.notes)

    def exchange(self, values: Sequence[int], fault_ids: Sequence[int]) -> None:
        """Add the row of an exchange: its integers, and the fault rules that touched it."""
        self.exchange_fault_ids.extend(fault_ids)
        self.exchanges += EXCHANGE.pack(*values, len(self.exchange_fault_ids))

    def note(self, note: Note) -> None:
        """Add a note."""
        self.notes.append(note)
        self.span(note.time_ns)

    def span(self, time_ns: int) -> None:
        """Take a time into the span of the batch."""
        if not self.start_ns or time_ns < self.start_ns:
            self.start_ns = time_ns
        if time_ns > self.end_ns:
            self.end_ns = time_ns


def packed_splices(splices: Sequence[Splice]) -> bytes:
    """Splices as they stand in a recording."""
    return b"".join(
        _SPLICE.pack(offset, length, len(replacement)) + replacement
        for offset, length, replacement in splices
    )


def unpacked_splices(data: bytes) -> list[Splice]:
    """The splices that were packed.

    Raises: ValueError, when they are cut off.
    """
    splices: list[Splice] = []
    at = 0
    while at < len(data):
        start = at + _SPLICE.size
        if start > len(data):
            raise ValueError("it has a splice that is cut off")
        offset, length, size = _SPLICE.unpack_from(data, at)
        at = start + size
        if at > len(data):
            raise ValueError("it has a splice that is cut off")
        splices.append((offset, length, data[start:at]))
    return splices
