"""What an event on one direction leads to: bytes that leave, in order, and what is recorded.

::

    forward(chunk, 0, 90) · replace(b"…") · forward(chunk, 120, 200) │ hold(due) · forward(…)
    └──────────────── leave at once, in one send ──────────────────┘ └─ leave when it is due ─▶

Parts of one chunk that touch are joined again, so a chunk of which nothing is wanted leaves as the
bytes object that was received. What is put behind a `hold` leaves behind it, whenever that is.
"""

from __future__ import annotations

import attrs

from kproxy.exchange.entries import VIEWED_BYTES_MIN, Buffer, ChunkTimes, Entry, Frame
from kproxy.proxy.verdicts import Ending


def part(data: bytes, start: int, stop: int) -> Buffer:
    """Return a part of a chunk: a copy if it is small, else a view."""
    if stop - start < VIEWED_BYTES_MIN or stop - start == len(data):
        return data[start:stop]
    return memoryview(data)[start:stop]


@attrs.define(eq=False)
class Departure:
    """Bytes that leave together."""

    due_ns: int = 0
    """Not before this time; 0: as soon as what is before it has left."""
    pieces: list[Buffer] = attrs.Factory(list)
    timed: list[Frame | ChunkTimes] = attrs.Factory(list)
    """What takes the time at which the last of the bytes is sent."""
    bytes_per_second: int = 0
    """No faster than this; 0: at once."""
    ending: Ending | None = None
    """How the connection ends when it has left."""
    ending_delay_ns: int = 0
    """Nothing passes from then on, and the connection ends so much later."""

    @property
    def byte_count(self) -> int:
        """The number of bytes that it still holds."""
        return sum(map(len, self.pieces))

    @property
    def silences(self) -> bool:
        """Nothing passes behind it any more, in either direction."""
        return self.ending is Ending.BLACKHOLE or bool(self.ending_delay_ns)

    @property
    def closes(self) -> Ending | None:
        """How the connection is closed, `ending_delay_ns` later; None: it stays open."""
        return None if self.ending is Ending.BLACKHOLE else self.ending

    @property
    def transfer_ns(self) -> int:
        """How long its bytes take at its rate."""
        rate = self.bytes_per_second
        return self.byte_count * 1_000_000_000 // rate if rate else 0


class Output:
    """Collects what one event leads to, in order."""

    __slots__ = (
        "_chunk",
        "_departures",
        "_start",
        "_stop",
        "entries",
        "pieces",
        "reports",
        "timed",
    )

    def __init__(self) -> None:
        self.pieces: list[Buffer] = []
        """What leaves, as far as it is not a part of a chunk that may still grow."""
        self.timed: list[Frame | ChunkTimes] = []
        """What takes the time at which the bytes are sent that are being added."""
        self.entries: list[Entry] = []
        """What the recording gets."""
        self.reports: list[str] = []
        """What the operator should know, once."""
        self._departures: list[Departure] | None = None
        self._chunk = b""
        self._start = self._stop = 0

    def forward(self, chunk: bytes, start: int, stop: int) -> None:
        """Let a part of a chunk leave as it came."""
        if chunk is self._chunk and start == self._stop:
            self._stop = stop
            return
        if self._chunk:
            self._flush()
        self._chunk, self._start, self._stop = chunk, start, stop

    def replace(self, data: Buffer) -> None:
        """Let these bytes leave in place of what came."""
        if self._chunk:
            self._flush()
        if data:
            self.pieces.append(data)

    def hold(self, due_ns: int, bytes_per_second: int = 0) -> None:
        """Let what is added from here on leave at this time."""
        departures = self._open()
        held = Departure(due_ns, bytes_per_second=bytes_per_second)
        departures.append(held)
        self.pieces, self.timed = held.pieces, held.timed

    def end(self, ending: Ending, delay_ns: int = 0) -> None:
        """Let the connection end when all that was added has left, or so much later; what is added
        behind does not leave."""
        last = self._open()[-1]
        last.ending, last.ending_delay_ns = ending, delay_ns
        self.hold(0)

    def finish(self) -> list[Departure] | None:
        """Nothing is added any more: return what leaves when; None: all `pieces`, at once."""
        if self._chunk:
            self._flush()
        return self._departures

    def _open(self) -> list[Departure]:
        if self._chunk:
            self._flush()
        if self._departures is None:
            self._departures = [Departure(0, self.pieces, self.timed)]
        return self._departures

    def _flush(self) -> None:
        chunk, start, stop = self._chunk, self._start, self._stop
        self.pieces.append(chunk if stop - start == len(chunk) else part(chunk, start, stop))
        self._chunk, self._start, self._stop = b"", 0, 0
