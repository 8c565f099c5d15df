"""Where the bytes of record batches lie: appended once, read by position, never changed.

A position counts bytes over all that was appended, so that one integer of eight bytes says where
a batch is, and batches that were appended together can be read together, as one view.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right


class Store:
    """Bytes in memory."""

    def __init__(self) -> None:
        self._segments: list[bytes] = []
        self._starts = array("q")
        self._end = 0

    def append(self, data: bytes) -> int:
        """Keep these bytes; return their position."""
        position = self._end
        self._segments.append(data)
        self._starts.append(position)
        self._end += len(data)
        return position

    def read(self, position: int, size: int) -> memoryview:
        """Return bytes that were appended together, without a copy."""
        index = bisect_right(self._starts, position) - 1
        start = position - self._starts[index]
        return memoryview(self._segments[index])[start : start + size]

    def together(self, position: int, end: int) -> bool:
        """Whether all bytes from `position` to `end` can be read as one view."""
        index = bisect_right(self._starts, position) - 1
        return end <= self._starts[index] + len(self._segments[index])
