"""What is kept of a long sequence: the first and the last of it.

1 2 3 … 97 98 99 ─▶ first: 1 2 3, dropped: 93, last: 97 98 99
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

import attrs

T = TypeVar("T")
U = TypeVar("U")


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
