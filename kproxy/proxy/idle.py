"""The connections on which nothing arrives for too long, and the times at which to check."""

from __future__ import annotations

from collections.abc import Iterable

import attrs

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
