"""Timers: a heap of times, each with a function to call."""

from __future__ import annotations

import heapq
from collections.abc import Callable

import attrs

OnTime = Callable[[int], object]
"""Called with the current time."""


@attrs.define(eq=False)
class Timer:
    """One timer."""

    action: OnTime | None

    def cancel(self) -> None:
        """Make it do nothing."""
        self.action = None


class Timers:
    """All timers; times are integer nanoseconds."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Timer]] = []
        self._order = 0

    def at(self, when: int, action: OnTime) -> Timer:
        """Set a timer that calls `action`; timers of the same time run in the order of setting."""
        timer = Timer(action)
        self._order += 1
        heapq.heappush(self._heap, (when, self._order, timer))
        return timer

    @property
    def next(self) -> int | None:
        """Time of the first timer; None if there is none."""
        while self._heap and self._heap[0][2].action is None:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def run(self, now: int) -> None:
        """Run the timers that are due, also those set meanwhile."""
        while (when := self.next) is not None and when <= now:
            action = heapq.heappop(self._heap)[2].action
            if action is not None:
                action(now)
