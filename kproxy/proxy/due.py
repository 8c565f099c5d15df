"""The times at which connections want to be woken; the first one is found without a full scan.

Invariants: a later time is noted only when the earlier one has come, so that a busy connection,
which puts off its end with each chunk, costs nothing; the heap is bounded by the number of
connections.
"""

from __future__ import annotations

import heapq

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
