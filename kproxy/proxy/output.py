"""The output of an event on one direction: bytes that leave, in order, and entries to record.

::

    forward(chunk, 0, 90) · replace(b"…") · forward(chunk, 120, 200) │ hold(due) · forward(…)
    └──────────────── leave at once, in one send ──────────────────┘ └─ leave when it is due ─▶

Parts of one chunk that touch are joined again, so an untouched chunk leaves as the bytes object
that was received. Bytes that are added behind a `hold` never overtake it.
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
    """The earliest time; 0: as soon as the departures before it have left."""
    pieces: list[Buffer] = attrs.Factory(list)
    timed: list[Frame | ChunkTimes] = attrs.Factory(list)
    """The frames and chunks that note the time at which the last byte is sent."""
    bytes_per_second: int = 0
    """The highest rate; 0: at once."""
    number: int = 0
    """The exchange that a rule delays by this time or rate; 0: none."""
    ending: Ending | None = None
    """The way in which the connection ends behind it."""
    ending_delay_ns: int = 0
    """Let nothing pass behind it, and end the connection this much later."""

    @property
    def byte_count(self) -> int:
        """The number of bytes that it still holds."""
        return sum(map(len, self.pieces))


class Output:
    """Collects the output of one event, in order."""

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
        """The bytes that leave; the last part of a chunk is not here while it may grow."""
        self.timed: list[Frame | ChunkTimes] = []
        """The frames and chunks that note the time at which these bytes are sent."""
        self.entries: list[Entry] = []
        self.reports: list[str] = []
        """Lines to log, each once."""
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
        if stop - start == len(chunk):  # nothing can touch it any more
            self.pieces.append(chunk)
        else:
            self._chunk, self._start, self._stop = chunk, start, stop

    def replace(self, data: Buffer) -> None:
        """Let these bytes leave in place of what came."""
        if self._chunk:
            self._flush()
        if data:
            self.pieces.append(data)

    def hold(self, due_ns: int, bytes_per_second: int = 0, number: int = 0) -> None:
        """Let the bytes added from here on leave at this time, no faster than this rate: those of
        the exchange of this number."""
        departures = self._begin_departures()
        held = Departure(due_ns, bytes_per_second=bytes_per_second, number=number)
        departures.append(held)
        self.pieces, self.timed = held.pieces, held.timed

    def end(self, ending: Ending, delay_ns: int = 0) -> None:
        """End the connection when all bytes so far have left, or this much later; no bytes behind
        them leave."""
        last = self._begin_departures()[-1]
        last.ending, last.ending_delay_ns = ending, delay_ns
        self.hold(0)

    def finish(self) -> list[Departure] | None:
        """Close the output; return its departures, or None if all `pieces` leave at once."""
        if self._chunk:
            self._flush()
        return self._departures

    def _begin_departures(self) -> list[Departure]:
        if self._chunk:
            self._flush()
        if self._departures is None:
            self._departures = [Departure(0, self.pieces, self.timed)]
        return self._departures

    def _flush(self) -> None:
        chunk, start, stop = self._chunk, self._start, self._stop
        self.pieces.append(part(chunk, start, stop))
        self._chunk, self._start, self._stop = b"", 0, 0
