"""Which batches a partition has, and where they lie: columns of integers, 29 bytes per batch.

::

    bases    first offset         8 bytes   ascending
    deltas   last offset − first  4
    places   which frame          8         see `store`
    starts   where in the frame   4
    sizes    bytes, and flags     4
    newest   of every 16 batches the youngest timestamp: half a byte each; of a partition with
             timestamps that the broker set, of every batch: 8 bytes more

While a recording is read there is a timestamp for every batch, for batches come in any order then.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator

PRODUCED = 1 << 31
"""It was seen being produced."""
STAMPED = 1 << 30
"""Its bytes are those of a client: offset and leader epoch are still to be set."""
TIMED = 1 << 29
"""So is its timestamp, which is the one in the index (LogAppendTime)."""
_SIZE = TIMED - 1
_GROUP = 16

COLUMNS = {"bases": "q", "deltas": "i", "places": "q", "starts": "I", "sizes": "I", "newest": "q"}


class BatchIndex:
    """The batches of one partition in the order of their offsets; they do not overlap."""

    def __init__(self) -> None:
        self.bases = array("q")
        self.deltas = array("i")
        self.places = array("q")
        self.starts = array("I")
        self.sizes = array("I")
        self.newest = array("q")
        self._group = 1
        """How many batches have a timestamp together."""
        self._finished = False

    def __len__(self) -> int:
        return len(self.bases)

    def find(self, offset: int) -> int:
        """The batch that holds `offset`, or else the next."""
        index = bisect_right(self.bases, offset) - 1
        if index >= 0 and self.bases[index] + self.deltas[index] >= offset:
            return index
        return index + 1

    def last_offset(self, index: int) -> int:
        """The last offset of a batch."""
        return self.bases[index] + self.deltas[index]

    def size(self, index: int) -> int:
        """The bytes of a batch."""
        return self.sizes[index] & _SIZE

    def has(self, index: int, flag: int) -> bool:
        """Whether a batch has a flag."""
        return bool(self.sizes[index] & flag)

    def mark(self, index: int, flag: int) -> None:
        """Give a batch a flag."""
        self.sizes[index] |= flag

    def insert(
        self, base: int, delta: int, time: int, place: int, start: int, size: int, flags: int
    ) -> None:
        """Take a batch that overlaps none."""
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

    def remove(self, index: int) -> None:
        """Take a batch out, before `finish`."""
        for name in COLUMNS:
            del getattr(self, name)[index]

    def finish(self) -> None:
        """From now on batches only come at the end."""
        times = self.newest
        if not any(size & TIMED for size in self.sizes):
            self._group = _GROUP
            newest = (max(times[at : at + _GROUP]) for at in range(0, len(times), _GROUP))
            self.newest = array("q", newest)
        for name, code in COLUMNS.items():  # arrays that have grown have room that is not used
            setattr(self, name, array(code, getattr(self, name)))
        self._finished = True

    def groups(self) -> Iterator[tuple[int, range]]:
        """Yield the youngest timestamp of successive batches, and these."""
        size = self._group
        for number, time in enumerate(self.newest):
            yield time, range(number * size, min(len(self), (number + 1) * size))

    def timestamp(self, index: int) -> int:
        """The timestamp of a batch that is TIMED."""
        return self.newest[index // self._group]

    # ---- as it is kept in a file

    def columns(self) -> list[array]:
        """The columns, in their order, after `finish`."""
        return [getattr(self, name) for name in COLUMNS]

    @classmethod
    def of(cls, columns: list[array]) -> BatchIndex:
        """The index that has these columns."""
        found = cls()
        for name, column in zip(COLUMNS, columns, strict=True):
            setattr(found, name, column)
        found._group = 1 if len(found.newest) == len(found.bases) else _GROUP
        found._finished = True
        return found
