"""Bytes that leave later, in order: what a rule holds, and all that comes behind it.

::

    put ─▶ │ due 12:00:01 │ due at once │ due 12:00:03, 64 KiB/s │ ─▶ take(now) ─▶ what leaves now

Invariant: nothing overtakes; what is behind something held leaves when that has left.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from kproxy.proxy.budget import Share
from kproxy.proxy.output import Departure

_SLICE_NS = 10_000_000
"""What leaves at a limited rate leaves in slices this far apart, or wider."""


class Delays:
    """What waits for its time in one direction of a connection."""

    def __init__(self, share: Share) -> None:
        self.waiting: deque[Departure] = deque()
        """Departures in order; nobody else changes it."""
        self._share = share
        self.held_bytes = 0
        """How many bytes wait."""

    def __bool__(self) -> bool:
        return bool(self.waiting)

    @property
    def pressed(self) -> bool:
        """All connections together hold so much that each should hold less."""
        return self._share.pressed

    @property
    def next_due_ns(self) -> int | None:
        """When something leaves; None if nothing waits."""
        return self.waiting[0].due_ns if self.waiting else None

    def put(self, departures: Sequence[Departure]) -> None:
        """Take what shall leave, behind all that waits."""
        for departure in departures:
            if departure.pieces or departure.timed or departure.ending is not None:
                self._count(departure.byte_count)
                if not self.waiting or not _leave_together(self.waiting[-1], departure):
                    self.waiting.append(departure)

    def take(self, now: int) -> list[Departure]:
        """Return what leaves now, in order."""
        leaving: list[Departure] = []
        while self.waiting and self.waiting[0].due_ns <= now:
            first = self.waiting[0]
            if first.bytes_per_second and first.pieces:
                leaving.append(_slice(first, now))
                self._count(-leaving[-1].byte_count)
                if first.pieces:
                    break
                first.bytes_per_second = 0
                continue
            leaving.append(self.waiting.popleft())
            self._count(-first.byte_count)
        return leaving

    def clear(self) -> None:
        """Forget all that waits."""
        self.waiting.clear()
        self._count(-self.held_bytes)

    def _count(self, growth: int) -> None:
        """Count what waits. It is not refused: who delays too much is not read from."""
        self.held_bytes += growth
        self._share.hold(self.held_bytes)


def _leave_together(last: Departure, departure: Departure) -> bool:
    """Add a departure to the one before it if it leaves no later: both go in one send."""
    if last.ending is not None or last.bytes_per_second or departure.bytes_per_second:
        return False
    if departure.due_ns > last.due_ns:
        return False
    last.pieces += departure.pieces
    last.timed += departure.timed
    last.ending, last.ending_delay_ns = departure.ending, departure.ending_delay_ns
    return True


def _slice(departure: Departure, now: int) -> Departure:
    """Cut off what leaves now at the departure's rate; the rest is due later."""
    rate = departure.bytes_per_second
    size = max(1, rate * _SLICE_NS // 1_000_000_000)
    taken, left = [], size
    while left and departure.pieces:
        piece = memoryview(departure.pieces[0])
        taken.append(piece[:left])
        if len(piece) > left:
            departure.pieces[0] = piece[left:]
        else:
            del departure.pieces[0]
        left -= len(taken[-1])
    timed, departure.timed = ([], departure.timed) if departure.pieces else (departure.timed, [])
    # The time that the slice takes; the last bytes, too, are over only when theirs has passed.
    departure.due_ns = max(departure.due_ns, now) + (size - left) * 1_000_000_000 // rate
    return Departure(pieces=taken, timed=timed)
