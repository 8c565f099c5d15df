"""Lag: how far a reader was over time, beside the end of the log, by some moments of many.

Invariant: at most `_KEPT_MAX` moments are kept, evenly spread over all, and the latest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import attrs

from kproxy.history.ref import Ref

_KEPT_MAX = 16


class Moment(NamedTuple):
    """How far a reader was at a time."""

    time_ns: int
    number: int
    """The exchange that shows it."""
    offset: int
    end: int
    """Where the log ended, as far as it was known then."""

    @property
    def lag(self) -> int:
        """How far the reader was behind."""
        return max(0, self.end - self.offset)


@attrs.define(eq=False)
class LagSamples:
    """The moments of one reader of a log."""

    _kept: list[Moment] = attrs.Factory(list)
    _latest: Moment | None = None
    _every: int = 1
    _seen: int = 0

    def see(self, ref: Ref, offset: int, end: int) -> None:
        """Take where the reader is, and the end of the log."""
        self._latest = Moment(ref.time_ns, ref.number, offset, end)
        if self._seen % self._every == 0:
            self._kept.append(self._latest)
        self._seen += 1
        if len(self._kept) > _KEPT_MAX:
            del self._kept[1::2]
            self._every *= 2

    def close(self) -> None:
        """Begin anew: a gap lies between, or the log is another."""
        self._kept.clear()
        self._latest, self._every, self._seen = None, 1, 0

    @property
    def moments(self) -> Sequence[Moment]:
        """The moments in order, the first and the latest among them."""
        if self._latest is None or self._kept[-1] is self._latest:
            return self._kept
        return [*self._kept, self._latest]
