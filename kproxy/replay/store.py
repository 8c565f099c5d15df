"""The bytes of record batches: in memory, or in the frames of a recording.

::

    place ≥ 0   a frame of the recording, read on demand           ─┐
    place < 0   bytes made while loading, or produced by clients   ─┴─▶ frame(place)

The frames that were read last are kept, up to a limit, so memory does not grow with the size of the
recording.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from kproxy.replay.batch_reader import BatchReader

KEPT_BYTES_MAX = 64 << 20
"""Limit of the frames that are kept; a small recording is in memory as a whole."""
_OVERHEAD_BYTES = 256
"""Memory of a kept frame in addition to its bytes."""


def _unreadable(place: int) -> bytes:
    raise ValueError(f"no recording has a frame at {place}")


class Store:
    """Immutable bytes by their place."""

    def __init__(self, kept_bytes_max: int = KEPT_BYTES_MAX) -> None:
        self.read_frame: Callable[[int], bytes] = _unreadable
        """Reads a frame of the recording."""
        self.reader = BatchReader()
        """Reads the records of batches."""
        self._kept_bytes_max = kept_bytes_max
        self._made: list[bytes] = []
        self._kept: OrderedDict[int, bytes] = OrderedDict()
        self._kept_bytes = 0

    def append(self, data: bytes) -> int:
        """Add bytes that are kept for good; return their place."""
        self._made.append(data)
        return -len(self._made)

    def offer(self, place: int, frame: bytes) -> None:
        """Keep a frame of the recording that has just been read, if there is room."""
        if place not in self._kept and self._kept_bytes + len(frame) < self._kept_bytes_max:
            self._keep(place, frame)

    def frame(self, place: int) -> bytes:
        """Return the bytes at a place."""
        if place < 0:
            return self._made[-place - 1]
        found = self._kept.get(place)
        if found is not None:
            self._kept.move_to_end(place)
            return found
        found = self.read_frame(place)
        self._keep(place, found)
        while self._kept_bytes > self._kept_bytes_max and len(self._kept) > 1:
            _, oldest = self._kept.popitem(last=False)
            self._kept_bytes -= len(oldest) + _OVERHEAD_BYTES
        return found

    def __getstate__(self) -> list[bytes]:
        return self._made

    def __setstate__(self, made: list[bytes]) -> None:
        self.__init__()
        self._made = made

    def _keep(self, place: int, frame: bytes) -> None:
        self._kept[place] = frame
        self._kept_bytes += len(frame) + _OVERHEAD_BYTES
