"""The times at which connections want to be woken; the first one is found without a full scan.

Invariants: a later time is noted only when the earlier one has come, so that a busy connection,
which puts off its end with each chunk, costs nothing; the heap is bounded by the number of
connections. `Idle` is the limit for those on which nothing arrives.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

import attrs

_STALE_MAX = 16
"""The heap is rebuilt when more entries than this, and half of all, are stale."""


@attrs.define(eq=False)
class Due:
    """A time for each connection that wants to be woken: that time, or an earlier one."""

    _heap: list[tuple[int, int]] = attrs.field(factory=list, init=False)
    """Times and connections; an entry is stale unless `_noted` has it."""
    _noted: dict[int, int] = attrs.field(factory=dict, init=False)

    def __len__(self) -> int:
        """Return the number of entries, stale ones included."""
        return len(self._heap)

    @property
    def next_ns(self) -> int | None:
        """The first time of all; None if there is none."""
        heap = self._heap
        while heap and self._noted.get(heap[0][1]) != heap[0][0]:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def note(self, number: int, due_ns: int | None) -> bool:
        """Have `take` return a connection at this time, or earlier; None asks for no time.

        Returns whether `next_ns` may have changed.
        """
        if due_ns is None or due_ns >= self._noted.get(number, due_ns + 1):
            return False
        self._noted[number] = due_ns
        heapq.heappush(self._heap, (due_ns, number))
        if len(self._heap) > 2 * len(self._noted) + _STALE_MAX:
            self._heap = [(due, each) for each, due in self._noted.items()]
            heapq.heapify(self._heap)
        return True

    def forget(self, number: int) -> None:
        """Forget a connection, which is over."""
        self._noted.pop(number, None)

    def take(self, now: int) -> int | None:
        """Take the first connection whose time has come; None if there is none. Note it anew."""
        due_ns = self.next_ns
        if due_ns is None or due_ns > now:
            return None
        _, number = heapq.heappop(self._heap)
        del self._noted[number]
        return number


_CHECKS_APART_NS = 1_000_000_000
"""The shortest time between two checks."""


@attrs.frozen
class Idle:
    """The time for which a connection may be idle."""

    seconds: float

    @property
    def ns(self) -> int:
        """The limit in nanoseconds."""
        return int(self.seconds * 1e9)

    @property
    def reason(self) -> str:
        """The reason for ending a connection that is idle for longer."""
        return f"nothing arrived for {self.seconds:g} s"

    def is_over(self, last_ns: int, now: int) -> bool:
        """Return whether a connection on which something last arrived at `last_ns` is idle."""
        return now - last_ns >= self.ns

    def next_check(self, last_ns: Iterable[int], now: int) -> int | None:
        """Return the time of the next check; `last_ns` has the last arrival of each connection."""
        oldest_ns = min(last_ns, default=None)
        if oldest_ns is None:
            return None
        return max(oldest_ns + self.ns, now + min(_CHECKS_APART_NS, self.ns))
