"""Frames of a recording that hold record batches: their places, and those of their batches."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from kproxy.exchange.entries import Side
from kproxy.exchange.exchange import Exchange

_SOUGHT_BYTES = 64

PlaceOf = Callable[[Exchange, Side], int | None]
"""Return the place of a frame in the recording; None if it is unknown."""


def nowhere(exchange: Exchange, side: Side) -> int | None:
    """Return None: for exchanges that are in no file."""
    return None


@attrs.define(eq=False)
class PlacedFrame:
    """A frame with record batches, and its place in the recording."""

    place: int | None
    data: bytes
    _at: int = attrs.field(default=0, init=False)

    def find(self, raw: bytes) -> int:
        """Return the offset of these bytes in the frame, after those found last; -1 if absent."""
        if self.place is None:
            return -1
        start = raw[:_SOUGHT_BYTES]  # searching for all of them would take longer than decoding
        at = self.data.find(start, self._at)
        while at >= 0 and self.data[at : at + len(raw)] != raw:
            at = self.data.find(start, at + 1)
        self._at = at + len(raw) if at >= 0 else self._at
        return at
