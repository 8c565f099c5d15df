"""Counts over time: in slots of equal width, so wide that there are not too many.

    time, key ─▶ slot ─▶ Counter of keys

Only slots with counts are kept, so the time between recordings takes no room. Slots begin at
multiples of their width since 1970, and each width is a multiple of the one before it.

Invariant: counts and width depend on what was counted, not on the order, nor on how it was divided
into parts.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import attrs

_WIDTHS_MS = (
    10, 50, 100, 500, 1000, 5000, 10_000, 30_000, 60_000, 300_000, 600_000, 1_800_000, 3_600_000,
    7_200_000, 14_400_000, 43_200_000, 86_400_000,
)  # fmt: skip

Key = tuple[Any, ...]


@attrs.define(eq=False)
class Slots:
    """Counts by slot and key."""

    slots_max: int
    width_ms: int = _WIDTHS_MS[0]
    counts: dict[int, Counter[Key]] = attrs.Factory(dict)
    """Slot → key → count. A slot is the number of widths since 1970."""

    def at(self, time_us: int) -> Counter[Key]:
        """Return the counts of the slot of a time, to add to them at once."""
        found = self.counts.get(time_us // (self.width_ms * 1000))
        if found is None:
            found = self.counts[time_us // (self.width_ms * 1000)] = Counter()
            if len(self.counts) > self.slots_max:
                self._fit()
                found = self.counts[time_us // (self.width_ms * 1000)]
        return found

    def merge(self, other: Slots) -> Slots:
        """Add the counts of others, which may become wider; return the sum."""
        while self.width_ms < other.width_ms:
            self._widen()
        while other.width_ms < self.width_ms:
            other._widen()
        for slot, counts in other.counts.items():
            self.counts.setdefault(slot, Counter()).update(counts)
        self._fit()
        return self

    def _fit(self) -> None:
        while len(self.counts) > self.slots_max:
            self._widen()

    def _widen(self) -> None:
        wider = (width for width in _WIDTHS_MS if width > self.width_ms)
        width_ms = next(wider, 2 * self.width_ms)
        factor = width_ms // self.width_ms
        counts: dict[int, Counter[Key]] = {}
        for slot, found in self.counts.items():
            counts.setdefault(slot // factor, Counter()).update(found)
        self.counts, self.width_ms = counts, width_ms
