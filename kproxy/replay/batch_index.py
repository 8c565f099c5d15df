"""The batches of a partition and their places: columns of integers, 36 bytes per batch.

::

    bases    first offset         8 bytes   ascending
    deltas   last offset − first  4
    places   the frame            8         see `store`
    starts   offset in the frame  4
    sizes    bytes, and flags     4
    times    the youngest timestamp        8
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right

PRODUCED = 1 << 31
"""The recording shows how the batch was produced."""
STAMPED = 1 << 30
"""The bytes are those of a client: offset and leader epoch must be set when they are read."""
TIMED = 1 << 29
"""The timestamp must be set, too: the one in the index (LogAppendTime)."""
READ = 1 << 28
"""A consumer got the batch in the recording."""
_SIZE = READ - 1

_COLUMNS = ("bases", "deltas", "places", "starts", "sizes", "times")


class PartitionBatches:
    """The batches of one partition in the order of their offsets; they do not overlap."""

    def __init__(self) -> None:
        self.bases = array("q")
        self.deltas = array("i")
        self.places = array("q")
        self.starts = array("I")
        self.sizes = array("I")
        self.times = array("q")

    def __len__(self) -> int:
        return len(self.bases)

    def find(self, offset: int) -> int:
        """Return the index of the batch that holds `offset`, or else of the next."""
        index = bisect_right(self.bases, offset) - 1
        if index >= 0 and self.bases[index] + self.deltas[index] >= offset:
            return index
        return index + 1

    def holds(self, offset: int) -> bool:
        """Return whether a batch has this offset."""
        index = self.find(offset)
        return index < len(self.bases) and self.bases[index] <= offset

    @property
    def end(self) -> int:
        """The last offset + 1."""
        return self.last_offset(len(self) - 1) + 1 if len(self) else 0

    def last_offset(self, index: int) -> int:
        """Return the last offset of a batch."""
        return self.bases[index] + self.deltas[index]

    def size(self, index: int) -> int:
        """Return the size of a batch in bytes."""
        return self.sizes[index] & _SIZE

    def has(self, index: int, flag: int) -> bool:
        """Return whether a batch has a flag."""
        return bool(self.sizes[index] & flag)

    def run(self, index: int, stop: int, bytes_max: int) -> tuple[int, int]:
        """Return the end of the run of batches from `index` on that lie behind each other in the
        recording as they are served, and its bytes: up to `stop`, and in `bytes_max` bytes."""
        places, starts, sizes = self.places, self.starts, self.sizes
        place, first = places[index], starts[index]
        next_start = first
        while index < stop and starts[index] == next_start and places[index] == place:
            size = sizes[index]
            if size & STAMPED and next_start > first:
                break
            behind = next_start + (size & _SIZE)
            if behind - first > bytes_max:
                break
            next_start, index = behind, index + 1
            if size & STAMPED:
                break
        return index, next_start - first

    def mark(self, index: int, flag: int) -> None:
        """Give a batch a flag."""
        self.sizes[index] |= flag

    def insert(
        self, base: int, delta: int, time: int, place: int, start: int, size: int, flags: int
    ) -> None:
        """Insert a batch that overlaps no other."""
        index = bisect_left(self.bases, base)
        values = base, delta, place, start, size | flags, time
        for name, value in zip(_COLUMNS, values, strict=True):
            getattr(self, name).insert(index, value)

    def take(self, other: PartitionBatches, index: int) -> None:
        """Insert a batch of another index, with its flags."""
        base, delta, place, start, size, time = (getattr(other, name)[index] for name in _COLUMNS)
        self.insert(base, delta, time, place, start, size, 0)

    def remove(self, index: int) -> None:
        """Remove a batch."""
        for name in _COLUMNS:
            del getattr(self, name)[index]

    def split(self, index: int) -> PartitionBatches:
        """Remove the batches from `index` on, and return them."""
        rest = PartitionBatches()
        for name in _COLUMNS:
            column = getattr(self, name)
            setattr(rest, name, column[index:])
            del column[index:]
        return rest

    def finish(self) -> None:
        """Free the room that arrays have which have grown."""
        for name in _COLUMNS:
            setattr(self, name, getattr(self, name)[:])
