"""Things that are due later: a heap of times, each with what to do then."""

from __future__ import annotations

import heapq
from collections.abc import Callable

import attrs

Action = Callable[[int], object]
"""Called with the time that it is."""


@attrs.define(eq=False)
class Timer:
    """One of them; `cancel` makes it do nothing."""

    action: Action | None

    def cancel(self) -> None:
        """Let it pass."""
        self.action = None


class Timers:
    """What is due, and when; times are integer nanoseconds."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Timer]] = []
        self._order = 0

    def at(self, when: int, action: Action) -> Timer:
        """Have `action` called at a time; of two at the same time the earlier set comes first."""
        timer = Timer(action)
        self._order += 1
        heapq.heappush(self._heap, (when, self._order, timer))
        return timer

    @property
    def next(self) -> int | None:
        """When the first is due."""
        while self._heap and self._heap[0][2].action is None:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def run(self, now: int) -> None:
        """Do what is due by now, also what that makes due."""
        while (when := self.next) is not None and when <= now:
            action = heapq.heappop(self._heap)[2].action
            if action is not None:
                action(now)
