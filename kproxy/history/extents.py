"""A fact over time: each value that it had, with the first and the last exchange that show it.

    see(3, #5) see(3, #9) see(4, #12) ─▶ 3 (#5 to #9, 2 times), 4 (#12)

Invariant: at most `kept_max` values are kept, the first and the latest; `dropped` counts others.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

import attrs

from kproxy.history.ref import Ref

Value = TypeVar("Value")


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
    _kept: list[Extent[Value]] = attrs.Factory(list)
    _is_closed: bool = True
    _closed_ns: int = 0

    def see(self, value: Value, ref: Ref) -> bool:
        """Take the value that an exchange shows; return whether it is another than before."""
        last = self.latest
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
        """Have the next exchange begin an extent of its own: a gap, or a moment, lies before it.
        So do all that began before this time, and the first one after them."""
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
