"""Values over time in bounded memory: what comes close together becomes one when there is too much.

::

    Steps    ─┐__┌──  at most POINTS_MAX points; merged ones have the range of their values
    BarRow   ▬▬▬×  ▬▬▬  at most BARS_MAX bars; merged ones have their number

Invariant: the latest point, and the latest bar, are as they were given.
"""

from __future__ import annotations

from typing import NamedTuple

import attrs

from kproxy.exchange.entities import TopicPartition

POINTS_MAX = 120
BARS_MAX = 60
MANY = "many"
"""The kind of bars of several kinds that were merged."""


class Point(NamedTuple):
    """A value that stays until the next point."""

    time_ns: int
    value: int | None
    """None: from here on it is not known."""
    low: int
    high: int
    """What the value was between, around this time."""


@attrs.define(eq=False)
class Steps:
    """A number over time."""

    points: list[Point] = attrs.Factory(list)
    seen_ns: int = 0
    """When it was shown last, in nanoseconds since 1970."""
    apart_ns: int = 0
    """Points that are fewer nanoseconds apart than this are one."""

    @property
    def value(self) -> int | None:
        """The latest value; None if that is not known."""
        return self.points[-1].value if self.points else None

    def see(self, time_ns: int, value: int, low: int | None = None) -> None:
        """Take the value of a time; with `low`, a range up to the value."""
        self.seen_ns = time_ns = self._behind(time_ns)
        if low is not None or value != self.value:
            self._add(Point(time_ns, value, value if low is None else low, value))

    def forget(self, time_ns: int) -> None:
        """Take that the value is not known from a time on."""
        if self.value is not None:
            self._add(Point(self._behind(time_ns), None, 0, 0))

    def _behind(self, time_ns: int) -> int:
        """Return a time, or that of what was seen before it if that is later."""
        return max(time_ns, self.seen_ns, self.points[-1].time_ns if self.points else 0)

    def _add(self, point: Point) -> None:
        self.points.append(point)
        while len(self.points) > POINTS_MAX:
            span_ns = point.time_ns - self.points[0].time_ns
            self.apart_ns = max(2 * self.apart_ns, span_ns // (POINTS_MAX // 2), 1)
            kept: list[Point] = []
            for each in self.points[:-1]:
                near = kept and each.time_ns // self.apart_ns == kept[-1].time_ns // self.apart_ns
                kept[-1 if near else len(kept) :] = [_merged(kept[-1], each) if near else each]
            self.points = [*kept, point]


def _merged(one: Point, other: Point) -> Point:
    known = [each for each in (one, other) if each.value is not None]
    low = min((each.low for each in known), default=0)
    high = max((each.high for each in known), default=0)
    return Point(one.time_ns, None if len(known) < 2 else other.value, low, high)


@attrs.frozen
class EndMark:
    """How a bar ended."""

    kind: str
    """The class of its drawing in the picture."""
    legend: str
    """What it says, in words."""
    path: str
    """Its drawing around a place, as SVG writes it; "" for a question mark."""


NOT_KNOWN = EndMark("unknown", "not recorded", "")


@attrs.define(eq=False)
class Bar:
    """Something that lasted."""

    from_ns: int
    kind: str
    """Its class in the picture, and in the legend."""
    title: str
    """What it is, in words."""
    until_ns: int | None = None
    """None while it lasts."""
    end: EndMark | None = None
    """How it ended; None while it lasts, or where that says nothing."""
    text: tuple[str, ...] = ()
    """Texts for it, the longest first: the first that fits is written."""
    partitions: tuple[TopicPartition, ...] = ()
    times: int = 1
    """How many were merged in it."""


@attrs.define(eq=False)
class BarRow:
    """Bars one after the other, in one row."""

    label: str
    bars: list[Bar] = attrs.Factory(list)

    @property
    def open(self) -> Bar | None:
        """The bar that lasts."""
        last = self.bars[-1] if self.bars else None
        return last if last is not None and last.until_ns is None else None

    def add(self, bar: Bar) -> None:
        """Begin a bar; one that lasts ends there."""
        self.close(bar.from_ns)
        self.bars.append(bar)
        if len(self.bars) > BARS_MAX:
            spans = [(self.bars[at + 1].until_ns or 0) - self.bars[at].from_ns
                     for at in range(BARS_MAX - 1)]  # fmt: skip
            at = spans.index(min(spans))  # what is shortest together
            self.bars[at : at + 2] = [_joined(*self.bars[at : at + 2])]

    def close(self, time_ns: int, end: EndMark | None = None) -> None:
        """End the bar that lasts."""
        if (last := self.open) is not None:
            last.until_ns, last.end = max(time_ns, last.from_ns), end


def _joined(one: Bar, other: Bar) -> Bar:
    times = one.times + other.times
    title = f"{times} times, too many to be drawn apart"
    kind = one.kind if one.kind == other.kind else MANY
    return Bar(one.from_ns, kind, title, other.until_ns, other.end or one.end, times=times)
