"""The offsets of a partition over time: where its log ends and begins, what groups fetched and
committed, and the last stable offset.

    20 ┤      ┌───────────── end of the log
       │   ┌──┘ ╎   ╎   ╎    fetched
     7 ┤┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄ committed
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs

from kproxy.exchange.entities import TopicPartition
from kproxy.look.pictures.bounded import Point, Steps
from kproxy.look.pictures.drawing import (
    LEFT_WIDTH,
    RIGHT_WIDTH,
    WIDTH,
    Element,
    Panel,
    TimeAxis,
    element,
    text,
)
from kproxy.look.pictures.series import Series
from kproxy.look.why.sentences import clock

HEIGHT = 96
_APART = 11.0
"""The height of a line of text."""
_GROUPS_DRAWN = 3

Line = tuple[str, str, Steps]
"""A class, what it stands for, and the numbers."""


def offsets(series: Series, where: TopicPartition, groups: Sequence[str]) -> Panel:
    """Return the panel of a partition, with what some groups did."""
    written, starts = (kept.get(where, Steps()) for kept in (series.written, series.starts))
    lines: list[Line] = [("line end", "end of the log", written)]
    if len(starts.points) > 1 or starts.value:
        lines.append(("line start", "its begin", starts))
    if where in series.held:
        lines.append(("line stable", "last stable offset", _stable(series, where)))
    for at, group in enumerate(groups[:_GROUPS_DRAWN]):
        of = f" by {group}" if len(groups) > 1 else ""
        for kind, kept in (("fetched", series.fetched), ("committed", series.committed)):
            if (steps := kept.get((group, where))) is not None:
                lines.append((f"line {kind} n{at}", f"{kind}{of}", steps))
    heading = f"offsets of {where.topic}[{where.partition}]"
    return plot(heading, lines)


def _stable(series: Series, where: TopicPartition) -> Steps:
    """Return the last stable offsets: where readers stood, sessions say that nothing is new."""
    found = series.stable[where]
    stood = [each.last.answered_ns for each in series.history.standing
             if each.where == where and each.offset == found.value and each.last]  # fmt: skip
    return attrs.evolve(found, seen_ns=max([found.seen_ns, *stood]))


def plot(heading: str, lines: Sequence[Line], from_zero: bool = False) -> Panel:
    """Return a panel of lines over time, on one axis of numbers."""
    points = [each for *_, steps in lines for each in steps.points if each.value is not None]
    low = 0 if from_zero else min((each.low for each in points), default=0)
    high = max((each.high for each in points), default=1)
    high = max(high, low + 1)

    def draw(axis: TimeAxis, top: float) -> Iterator[Element]:
        def y(value: float) -> float:
            part = (value - low) / (high - low)
            return top + 4 + (HEIGHT - 8) * (1 - min(1.0, max(0.0, part)))

        for value in sorted({low, (low + high) // 2, high}):
            yield element("path", d=f"M{LEFT_WIDTH} {y(value):.1f}H{WIDTH - RIGHT_WIDTH}",
                          kind="rule")  # fmt: skip
            yield text(LEFT_WIDTH - 6.0, y(value) + 4, str(value), LEFT_WIDTH - 12, "soft right")
        taken: list[float] = []
        for kind, name, steps in lines:
            yield from _line(kind, name, steps, axis, y)
            if steps.value is not None and axis.shows(axis.from_ns, steps.seen_ns):
                at = y(steps.value) + 4
                if all(abs(at - each) >= _APART for each in taken):
                    taken.append(at)
                    x = float(WIDTH - RIGHT_WIDTH + 6)
                    yield text(x, at, str(steps.value), RIGHT_WIDTH - 6, "value")

    return Panel(heading, [line[:2] for line in lines], HEIGHT, draw)


def _line(kind: str, name: str, steps: Steps, axis: TimeAxis, y) -> Iterator[Element]:
    """Yield a line: up to when it was shown last; from there on faint, for nothing tells of it.
    What was fetched are strokes, from the first offset to the last."""
    is_fetched = "fetched" in kind
    path, before = list[str](), None
    title = element("title", _told(name, steps))
    for each in steps.points:
        if is_fetched and each.value is not None and axis.shows(each.time_ns):
            x, low, high = axis.x(each.time_ns), y(each.low), y(each.high)
            path.append(f"M{x:.1f} {max(low, high + 2):.1f}V{high:.1f}")
        elif not is_fetched:
            path += _step(before, each, axis, y)
        before = each
    if before is not None and before.value is not None and not is_fetched:
        seen_ns = min(max(steps.seen_ns, before.time_ns), axis.until_ns)
        path.append(f"H{axis.x(seen_ns):.1f}")
        rest = f"M{axis.x(seen_ns):.1f} {y(before.value):.1f}H{axis.x(axis.until_ns):.1f}"
        yield element("path", title, d=rest, kind=f"{kind} faint")
    if path:
        yield element("path", title, d="".join(path), kind=kind)


def _step(before: Point | None, now: Point, axis: TimeAxis, y) -> Iterator[str]:
    x = axis.x(now.time_ns)
    if before is not None and before.value is not None:
        yield f"H{x:.1f}"
    if now.value is None:
        return
    is_begin = before is None or before.value is None
    yield f"{f'M{x:.1f} ' if is_begin else 'V'}{y(now.value):.1f}"
    if now.low < now.high:
        yield f"V{y(now.low):.1f}V{y(now.high):.1f}V{y(now.value):.1f}"


def _told(name: str, steps: Steps) -> str:
    known = [each for each in steps.points if each.value is not None]
    if not known:
        return name
    first, last = known[0], known[-1]
    return (
        f"{name}: {first.low} at {clock(first.time_ns)}, {last.value} since {clock(last.time_ns)},"
        f" shown last at {clock(steps.seen_ns)}"
    )
