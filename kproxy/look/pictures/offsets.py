"""The offsets of a partition over time: where its log ends and begins, what groups fetched and
committed, and the last stable offset; and how far groups are behind with what they committed.

    20 ┤      ┌───────────── end of the log
       │   ┌──┘ I   I   I    fetched
     7 ┤┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄ committed
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import attrs

from kproxy.exchange.entities import TopicPartition
from kproxy.exchange.words.wording import count
from kproxy.look.pictures import drawing
from kproxy.look.pictures.bounded import Steps
from kproxy.look.pictures.drawing import LEFT_WIDTH, RIGHT_WIDTH, WIDTH, Element, Panel, TimeAxis
from kproxy.look.pictures.series import Series
from kproxy.look.why.sentences import clock

_HEIGHT, _TEXT_HEIGHT = 96, 11
_GROUPS_DRAWN = 3
_RIGHT = WIDTH - RIGHT_WIDTH

Line = tuple[str, str, Steps]
"""A class, what it stands for, and the numbers."""


def offsets(series: Series, where: TopicPartition, groups: Sequence[str]) -> Panel:
    """Return the panel of a partition, with what some groups did."""
    lines: list[Line] = [("curve end", "end of the log", series.written.get(where, Steps()))]
    if (starts := series.starts.get(where, Steps())).value:
        lines.append(("curve start", "its begin", starts))
    if where in series.held:
        lines.append(("curve stable", "last stable offset", _stable(series, where)))
    for at, group in enumerate(groups[:_GROUPS_DRAWN]):
        of = f" by {group}" if len(groups) > 1 else ""
        for kind, kept in (("fetched", series.fetched), ("committed", series.committed)):
            if (steps := kept.get((group, where))) is not None:
                lines.append((f"curve {kind} n{at}", f"{kind}{of}", steps))
    return plot(f"offsets of {where.topic}[{where.partition}]", lines)


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
    high = max([low + 1, *(each.high for each in points)])

    def draw(axis: TimeAxis, top: float) -> Iterator[Element]:
        def y(value: int) -> float:
            return top + 4 + (_HEIGHT - 8) * (high - value) / (high - low)

        for value in sorted({low, (low + high) // 2, high}):
            path = f"M{LEFT_WIDTH} {y(value):.1f}H{_RIGHT}"
            yield drawing.element("path", d=path, kind="rule")
            x, width = LEFT_WIDTH - 6.0, LEFT_WIDTH - 12
            yield drawing.text(x, y(value) + 4, str(value), width, "soft right")
        taken: list[float] = []
        for kind, name, steps in lines:
            yield from _line(kind, name, steps, axis, y)
            at = y(steps.value or 0) + 4
            if steps.value is not None and all(abs(at - each) >= _TEXT_HEIGHT for each in taken):
                taken.append(at)
                yield drawing.text(_RIGHT + 6.0, at, str(steps.value), RIGHT_WIDTH - 6)

    return Panel(heading, [line[:2] for line in lines], _HEIGHT, draw)


def _line(
    kind: str, name: str, steps: Steps, axis: TimeAxis, y: Callable[[int], float]
) -> Iterator[Element]:
    """Yield a line: up to when it was shown last; from there on faint, for nothing tells of it.
    Each Fetch is a mark, from the first offset to the last."""
    path, value = "", None
    for each in steps.points:
        x = axis.x(each.time_ns)
        if "fetched" in kind:
            is_shown = each.value is not None and axis.shows(each.time_ns, each.time_ns)
            path += drawing.reach(x, y(each.low), y(each.high)) if is_shown else ""
            continue
        path += f"H{x:.1f}" if value is not None else ""
        if each.value is not None:
            path += f"M{x:.1f} {y(each.value):.1f}" if value is None else f"V{y(each.value):.1f}"
            if each.low < each.high:
                path += f"V{y(each.low):.1f}V{y(each.high):.1f}V{y(each.value):.1f}"
        value = each.value
    told = name
    if steps.value is not None:
        told = f"{name}: {steps.value} since {clock(steps.points[-1].time_ns)}"
    if value is not None:
        x = axis.x(steps.seen_ns)
        path += f"H{x:.1f}"
        rest = f"M{x:.1f} {y(value):.1f}H{axis.x(axis.until_ns):.1f}"
        yield drawing.element("path", d=rest, kind=f"{kind} faint")
    yield drawing.element("path", drawing.element("title", told), d=path or "M0 0", kind=kind)


_LINES_DRAWN = 4


def lag(behind: Mapping[TopicPartition, Steps], uncommitted: Sequence[TopicPartition]) -> Panel:
    """Return the panel of a group's partitions, those that were furthest behind; others have no lag
    for nothing is committed."""
    worst = sorted(behind, key=lambda where: (-most(behind[where]), where))
    lines = [
        (f"curve lag n{at}", f"{where.topic}[{where.partition}]", behind[where])
        for at, where in enumerate(worst[:_LINES_DRAWN])
    ]
    more = len(worst) - len(lines)
    heading = f"lag; {count(more, 'more partition')}, less far behind" if more > 0 else "lag"
    if uncommitted:
        topic, partition = uncommitted[0]
        others = f" and {len(uncommitted) - 1} more" if len(uncommitted) > 1 else ""
        heading += f"; of {topic}[{partition}]{others} nothing is committed"
    return plot(heading, lines, from_zero=True)


def most(steps: Steps) -> int:
    """Return the largest value."""
    return max((each.high for each in steps.points if each.value is not None), default=0)
