"""Connections on which nothing arrives for too long: which these are, and when to look for them."""

from __future__ import annotations

from collections.abc import Iterable

import attrs

_CHECKS_APART_NS = 1_000_000_000
"""Idle connections are looked for no more often than this."""


@attrs.frozen
class Idle:
    """How long a connection may be idle."""

    seconds: float

    @property
    def ns(self) -> int:
        """The same in nanoseconds."""
        return int(self.seconds * 1e9)

    @property
    def reason(self) -> str:
        """Why a connection is ended that is idle for longer."""
        return f"nothing arrived for {self.seconds:g} s"

    def is_over(self, last_ns: int, now: int) -> bool:
        """Whether a connection is idle for too long on which something last arrived then."""
        return now - last_ns >= self.ns

    def next_check(self, last_ns: Iterable[int], now: int) -> int | None:
        """When to look again at connections on which something last arrived then; None for none."""
        oldest_ns = min(last_ns, default=None)
        if oldest_ns is None:
            return None
        return max(oldest_ns + self.ns, now + min(_CHECKS_APART_NS, self.ns))
