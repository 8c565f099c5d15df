"""What is kept of long sequences: the first and the last values, a fact over time, samples.

::

    Kept        1 2 3 … 97 98 99 ─▶ first: 1 2 3, dropped: 93, last: 97 98 99
    Extents     see(3, #5) see(3, #9) see(4, #12) ─▶ 3 (#5 to #9, 2 times), 4 (#12)
    LagSamples  how far a reader was, and where the log ended ─▶ evenly spread moments, the latest

Invariant: memory is bounded; `dropped` counts what is not kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Generic, NamedTuple, TypeVar

import attrs

from kproxy.history.ref import Ref

T = TypeVar("T")
U = TypeVar("U")
Value = TypeVar("Value")
_SAMPLES_MAX = 16


def one_of(found: dict[T, U], key: T, most: int, make: Callable[[], U]) -> U:
    """Return what is kept of a key, added if new; of too many keys, one that is thrown away."""
    one = found.get(key)
    if one is None:
        one = make()
        if len(found) < most:
            found[key] = one
    return one


@attrs.define(eq=False)
class Kept(Generic[T]):
    """The first and the last values of many, and how many lay between."""

    each_end: int
    first: list[T] = attrs.Factory(list)
    last: list[T] = attrs.Factory(list)
    dropped: int = 0

    def add(self, value: T) -> None:
        """Take the next value."""
        if len(self.first) < self.each_end:
            self.first.append(value)
            return
        self.last.append(value)
        if len(self.last) > self.each_end:
            del self.last[0]
            self.dropped += 1

    def __iter__(self) -> Iterator[T]:
        yield from self.first
        yield from self.last

    def map(self, make: Callable[[T], U]) -> Kept[U]:
        """Return the same of what is made of each value."""
        first, last = map(make, self.first), map(make, self.last)
        return Kept(self.each_end, [*first], [*last], self.dropped)


@attrs.define(eq=False)
class Extent(Generic[Value]):
    """A value, from the first exchange that shows it until the last in a row."""

    value: Value
    first: Ref
    last: Ref
    times: int = 1


@attrs.define(eq=False)
class Extents(Generic[Value]):
    """The values of a fact, in order."""

    kept_max: int = 100
    dropped: int = 0
    _kept: list[Extent[Value]] = attrs.field(factory=list, init=False)
    _is_closed: bool = attrs.field(default=True, init=False)
    _closed_ns: int = attrs.field(default=0, init=False)

    def see(self, value: Value, ref: Ref) -> bool:
        """Take the value that an exchange shows; return whether it is another than before."""
        last = self._kept[-1] if self._kept else None
        if last is not None and not self._is_closed and last.value == value:
            last.last = ref
            last.times += 1
            return False
        self._kept.append(Extent(value, ref, ref))
        self._is_closed = ref.time_ns < self._closed_ns
        if len(self._kept) > self.kept_max:
            self._kept.pop(1)  # the first stays: it tells what was in the beginning
            self.dropped += 1
        return last is None or last.value != value

    def close(self, time_ns: int = 0) -> None:
        """The next value begins a new extent, even if it is the same. So do all that were seen
        before this time, and the first one after them."""
        self._is_closed, self._closed_ns = True, time_ns

    @property
    def latest(self) -> Extent[Value] | None:
        """The value that was seen last."""
        return self._kept[-1] if self._kept else None

    def __iter__(self) -> Iterator[Extent[Value]]:
        return iter(self._kept)

    def __len__(self) -> int:
        return len(self._kept)

    def since(self, time_ns: int) -> Extent[Value] | None:
        """Return the first extent that began at a time or later."""
        return next((each for each in self._kept if each.first.time_ns >= time_ns), None)

    def until(self, time_ns: int) -> Extent[Value] | None:
        """Return the last extent whose first exchange was complete at a time."""
        found = (each for each in reversed(self._kept) if each.first.completed_ns <= time_ns)
        return next(found, None)


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

    _kept: list[Moment] = attrs.field(factory=list, init=False)
    latest: Moment | None = attrs.field(default=None, init=False)
    _every: int = attrs.field(default=1, init=False)
    _seen: int = attrs.field(default=0, init=False)

    def see(self, ref: Ref, offset: int, end: int) -> None:
        """Take where the reader is, and the end of the log."""
        self.latest = Moment(ref.time_ns, ref.number, offset, end)
        if self._seen % self._every == 0:
            self._kept.append(self.latest)
        self._seen += 1
        if len(self._kept) > _SAMPLES_MAX:
            del self._kept[1::2]
            self._every *= 2

    def close(self) -> None:
        """Begin anew: a gap lies between, or the log is another."""
        self._kept.clear()
        self.latest, self._every, self._seen = None, 1, 0

    @property
    def moments(self) -> Sequence[Moment]:
        """The moments in order, the first and the latest among them."""
        if self.latest is None or self._kept[-1] is self.latest:
            return self._kept
        return [*self._kept, self.latest]
