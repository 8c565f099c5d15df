"""Frames of a recording that hold record batches: where they lie, and where the batches in them."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from kproxy.exchange.entries import Side
from kproxy.exchange.exchange import Exchange

_SOUGHT_BYTES = 64

PlaceOf = Callable[[Exchange, Side], int | None]
"""Where in the recording a frame lies; None where that cannot be said."""


def nowhere(exchange: Exchange, side: Side) -> int | None:
    """Of exchanges that are in no file."""
    return None


@attrs.define(eq=False)
class PlacedFrame:
    """A frame that has batches."""

    place: int | None
    data: bytes
    _at: int = 0

    def find(self, raw: bytes) -> int:
        """Where these bytes stand, behind those that were found last; -1: they do not."""
        if self.place is None:
            return -1
        start = raw[:_SOUGHT_BYTES]  # to search for all of them would take longer than to decode
        at = self.data.find(start, self._at)
        while at >= 0 and self.data[at : at + len(raw)] != raw:
            at = self.data.find(start, at + 1)
        self._at = at + len(raw) if at >= 0 else self._at
        return at
