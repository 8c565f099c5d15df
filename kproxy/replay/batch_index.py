"""The batches of a partition and their places: columns of integers, 29 bytes per batch.

::

    bases    first offset         8 bytes   ascending
    deltas   last offset − first  4
    places   the frame            8         see `store`
    starts   offset in the frame  4
    sizes    bytes, and flags     4
    newest   the youngest timestamp of every 16 batches: half a byte per batch; of a partition
             whose timestamps the broker set, that of every batch: 8 bytes more

While a recording is read, every batch has a timestamp, because batches come in any order then.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator

PRODUCED = 1 << 31
"""The recording shows how the batch was produced."""
STAMPED = 1 << 30
"""The bytes are those of a client: offset and leader epoch must be set when they are read."""
TIMED = 1 << 29
"""The timestamp must be set, too: the one in the index (LogAppendTime)."""
READ = 1 << 28
"""A consumer got the batch in the recording."""
_SIZE = READ - 1
_GROUP = 16

COLUMNS = {"bases": "q", "deltas": "i", "places": "q", "starts": "I", "sizes": "I", "newest": "q"}


class PartitionBatches:
    """The batches of one partition in the order of their offsets; they do not overlap."""

    def __init__(self) -> None:
        self.bases = array("q")
        self.deltas = array("i")
        self.places = array("q")
        self.starts = array("I")
        self.sizes = array("I")
        self.newest = array("q")
        self._group = 1
        """Number of batches that share a timestamp."""
        self._finished = False

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
        self.bases.insert(index, base)
        self.deltas.insert(index, delta)
        self.places.insert(index, place)
        self.starts.insert(index, start)
        self.sizes.insert(index, size | flags)
        if not self._finished:
            self.newest.insert(index, time)
        elif index % self._group == 0:
            self.newest.append(time)
        else:
            self.newest[-1] = max(self.newest[-1], time)

    def take(self, other: PartitionBatches, index: int) -> None:
        """Insert a batch of another index; allowed only before `finish`."""
        base, delta, place, start, size, time = (getattr(other, name)[index] for name in COLUMNS)
        self.insert(base, delta, time, place, start, size, 0)

    def remove(self, index: int) -> None:
        """Remove a batch; allowed only before `finish`."""
        for name in COLUMNS:
            del getattr(self, name)[index]

    def split(self, index: int, time_of: Callable[[int], int]) -> PartitionBatches:
        """Remove the batches from `index` on, after `finish`; return them, without their
        timestamps. `time_of` reads that of one that stays."""
        rest = PartitionBatches()
        for name in COLUMNS:
            if name != "newest":
                column = getattr(self, name)
                setattr(rest, name, column[index:])
                del column[index:]
        del self.newest[-(-index // self._group) :]
        first = index - index % self._group
        if first < index:
            self.newest[-1] = max(map(time_of, range(first, index)))
        return rest

    def finish(self) -> None:
        """Compact the columns: from now on batches are only appended."""
        times = self.newest
        if not any(size & TIMED for size in self.sizes):
            self._group = _GROUP
            newest = (max(times[at : at + _GROUP]) for at in range(0, len(times), _GROUP))
            self.newest = array("q", newest)
        for name, code in COLUMNS.items():  # arrays that have grown have room that is not used
            setattr(self, name, array(code, getattr(self, name)))
        self._finished = True

    def groups(self) -> Iterator[tuple[int, range]]:
        """Yield the youngest timestamp of each group of successive batches, and their indexes."""
        size = self._group
        for number, time in enumerate(self.newest):
            yield time, range(number * size, min(len(self), (number + 1) * size))

    def timestamp(self, index: int) -> int:
        """Return the timestamp of a batch that is TIMED."""
        return self.newest[index // self._group]
