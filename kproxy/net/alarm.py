"""One alarm for everything that happens at a time: while nothing is due, nothing runs.

Setting it costs a comparison where the time stays the same, so it can be set after every event.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import trio

NEVER = 1 << 63
"""Later than any time of the clock."""


class Alarm:
    """Calls a function at a time of a clock, to the millisecond."""

    def __init__(self, clock: Callable[[], int], ring: Callable[[int], None]) -> None:
        self._clock = clock
        self._ring = ring
        self.at_ns = NEVER
        """When it goes off; whoever is awake then may see to it first, and set it anew."""
        self._scope = trio.CancelScope()

    def set(self, at_ns: int) -> None:
        """Have it go off at this time, and no other."""
        if at_ns != self.at_ns:
            self.at_ns = at_ns
            self._scope.deadline = self._deadline()

    async def run(self) -> None:
        """Wait, and call the function with the time that it is then, until cancelled."""
        while True:
            with trio.CancelScope(deadline=self._deadline()) as self._scope:
                await trio.sleep_forever()
            now = self._clock()
            if now >= self.at_ns:
                self._ring(now)

    def _deadline(self) -> float:
        """The same time on trio's clock."""
        if self.at_ns == NEVER:
            return math.inf
        return trio.current_time() + (self.at_ns - self._clock()) / 1e9
