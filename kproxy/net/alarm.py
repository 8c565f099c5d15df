"""One alarm for all timed events: while nothing is due, nothing runs.

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
        """The time at which it goes off."""
        self._scope = trio.CancelScope()

    def set(self, at_ns: int) -> None:
        """Set the only time at which it goes off."""
        if at_ns != self.at_ns:
            self.at_ns = at_ns
            self._scope.deadline = self._deadline()

    async def run(self) -> None:
        """Wait, and call the function with the present time, again and again until cancelled."""
        while True:
            with trio.CancelScope(deadline=self._deadline()) as self._scope:
                await trio.sleep_forever()
            self.ring_if_due(self._clock())

    def ring_if_due(self, now: int) -> None:
        """Call the function if its time has come: who is busy need not wait for `run`."""
        if now >= self.at_ns:
            self._ring(now)

    def _deadline(self) -> float:
        """Return the alarm's time on trio's clock."""
        if self.at_ns == NEVER:
            return math.inf
        return trio.current_time() + (self.at_ns - self._clock()) / 1e9
