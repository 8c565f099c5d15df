"""One limit on what all connections together hold in memory: unfinished and held-back frames.

::

    Budget ─┬─ Share of connection 1, requests      hold(n): it keeps n bytes now
            ├─ Share of connection 1, responses
            └─ …

Invariant: `used_bytes` is the sum of what the shares hold, and never over `bytes_max`.
"""

from __future__ import annotations

import attrs

from kproxy.units import format_bytes

_PRESSED = 0.25
"""From this part of the limit on, frames are recorded in smaller pieces."""


@attrs.define(eq=False)
class Budget:
    """The memory that all connections together may hold."""

    bytes_max: int
    used_bytes: int = attrs.field(default=0, init=False)

    def change(self, growth: int) -> bool:
        """Count growth (or shrinkage); return False, and count nothing, if it is too much."""
        if growth > 0 and self.used_bytes + growth > self.bytes_max:
            return False
        self.used_bytes += growth
        return True

    @property
    def pressed(self) -> bool:
        """True while so much is held that each connection should hold less."""
        return self.used_bytes > self.bytes_max * _PRESSED


@attrs.define(eq=False)
class Share:
    """The part of the budget that one holder uses."""

    _budget: Budget
    held_bytes: int = attrs.field(default=0, init=False)

    @property
    def pressed(self) -> bool:
        """True while all together hold so much that each should hold less."""
        return self._budget.pressed

    def hold(self, byte_count: int) -> bool:
        """Hold this many bytes from now on; return False, and change nothing, if it is too much."""
        if not self._budget.change(byte_count - self.held_bytes):
            return False
        self.held_bytes = byte_count
        return True

    def release(self) -> None:
        """Hold nothing any more."""
        self.hold(0)

    def refusal(self, byte_count: int) -> str:
        """Say why `hold` refused."""
        return (
            f"{format_bytes(byte_count)} of unfinished or held frames are over what"
            f" --held-bytes-max allows ({format_bytes(self._budget.bytes_max)} for all connections)"
        )
