"""Bytes that leave later, in order: what a rule holds, and all that comes behind it.

::

    put ─▶ │ due 12:00:01 │ due at once │ due 12:00:03, 64 KiB/s │ ─▶ take(now) ─▶ what leaves now

Invariant: nothing overtakes; what is behind something held leaves when that has left.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from kproxy.proxy.output import Departure

_SLICE_NS = 10_000_000
"""What leaves at a limited rate leaves in slices this far apart, or wider."""


class Delays:
    """What waits for its time in one direction of a connection."""

    def __init__(self) -> None:
        self._waiting: deque[Departure] = deque()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    @property
    def held_bytes(self) -> int:
        """How many bytes wait."""
        return sum(departure.byte_count for departure in self._waiting)

    @property
    def next_due_ns(self) -> int | None:
        """When something leaves; None if nothing waits."""
        return self._waiting[0].due_ns if self._waiting else None

    def put(self, departures: Sequence[Departure]) -> None:
        """Take what shall leave, behind all that waits."""
        for departure in departures:
            if departure.pieces or departure.timed or departure.ending is not None:
                self._waiting.append(departure)

    def take(self, now: int) -> list[Departure]:
        """Return what leaves now, in order."""
        leaving: list[Departure] = []
        while self._waiting and self._waiting[0].due_ns <= now:
            first = self._waiting[0]
            if first.bytes_per_second and first.pieces:
                leaving.append(_slice(first, now))
                if first.pieces:
                    break
                first.bytes_per_second = 0
                continue
            leaving.append(self._waiting.popleft())
        return leaving

    def clear(self) -> None:
        """Forget all that waits."""
        self._waiting.clear()


def _slice(departure: Departure, now: int) -> Departure:
    """Cut off what leaves now at the departure's rate; the rest is due later."""
    rate = departure.bytes_per_second
    size = max(1, rate * _SLICE_NS // 1_000_000_000)
    data = b"".join(departure.pieces)
    departure.pieces = [memoryview(data)[size:]] if len(data) > size else []
    # The time that the slice takes; the last bytes, too, are over only when theirs has passed.
    departure.due_ns = max(departure.due_ns, now) + min(size, len(data)) * 1_000_000_000 // rate
    leaving = Departure(pieces=[data[:size]])
    if not departure.pieces:
        leaving.timed, departure.timed = departure.timed, []
    return leaving
