"""Plots as SVG in HTML, without a library: lines, bars, a heat map, marks.

A plot fills the width of the page: its SVG is stretched while lines keep their width. Labels are
HTML positioned by percentages, so that letters keep their size on a telephone too. Colours are the
CSS variables of the page (`var(--c1)` …), light and dark.
"""

from __future__ import annotations

import html
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import attrs

from kproxy.exchange.words.wording import duration
from kproxy.look.report.timeline import Timeline
from kproxy.printable import printable

_WIDTH = 1000
_HEIGHT = 200
_MARK_WIDTH = 8

Points = Sequence[tuple[float, float]]


@attrs.frozen
class Axis:
    """A range of values, and its labels."""

    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]
    log: bool = False

    def at(self, value: float) -> float:
        """Return the position of a value on the axis, from 0 to 1."""
        low, high = self.low, self.high
        if self.log:
            value, low, high = (math.log(max(each, 1e-9)) for each in (value, low, high))
        return min(1.0, max(0.0, (value - low) / ((high - low) or 1)))


@attrs.frozen
class Mark:
    """An event, drawn as a vertical line at its time."""

    at: float
    text: str
    kind: str = "fault"


def linear(high: float, text: Callable[[float], str], count: int = 4, whole: bool = False) -> Axis:
    """Return an axis from 0 to at least `high`; with `whole`, its labels are whole numbers."""
    if high <= 0:
        return Axis(0, 1, ((0, text(0)),))
    step = 10 ** math.floor(math.log10(high / count))
    step = next(step * factor for factor in (1, 2, 2.5, 5, 10, 20) if step * factor * count >= high)
    step = math.ceil(step) if whole else step
    top = math.ceil(high / step)
    return Axis(0, top * step, tuple((each * step, text(each * step)) for each in range(top + 1)))


def sizes(high: float, text: Callable[[float], str]) -> Axis:
    """Return an axis of bytes from 0 to at least `high`, with round sizes as labels."""
    unit = 1024 ** max(0, math.floor(math.log(max(high, 1), 1024)))
    found = linear(high / unit, str)
    ticks = tuple((at * unit, text(at * unit)) for at, _ in found.ticks)
    return Axis(0, found.high * unit, ticks)


def logarithmic(low: float, high: float, text: Callable[[float], str]) -> Axis:
    """Return an axis of powers of ten around a range."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(max(high, low * 1.01)))
    ticks = tuple((10.0**each, text(10.0**each)) for each in range(first, last + 1))
    return Axis(10.0**first, 10.0**last, ticks, log=True)


def lines(
    series: Mapping[str, Points],
    x: Timeline,
    y: Axis,
    marks: Iterable[Mark] = (),
    label: str = "",
    gap: float = math.inf,
    dashed: str | None = None,
) -> str:
    """Draw one line for each series, interrupted where points are further apart than `gap`. The
    series named `dashed` has a dashed line."""
    body: list[str] = []
    for number, (name, points) in enumerate(series.items(), 1):
        kind = "line dashed" if name == dashed else "line"
        body.append(f'<g class="{kind}" style="stroke:var(--c{number})">')
        body.append(f"<title>{escape(name)}</title>")
        for segment in _segments(points, gap, x):
            places = " ".join(f"{_x(x, at):.1f},{_y(y, value):.1f}" for at, value in segment)
            body.append(f'<polyline points="{places}"/>')
            if len(segment) == 1:  # a line of one point is invisible
                at, value = segment[0]
                body.append(
                    f'<rect x="{_x(x, at) - 1.5:.1f}" y="{_y(y, value) - 1.5:.1f}" width="3"'
                    f' height="3" style="fill:var(--c{number})"/>'
                )
        body.append("</g>")
    return _plot("".join(body), x, y, marks, label) + legend(list(series))


def _segments(points: Points, gap: float, x: Timeline) -> list[list[tuple[float, float]]]:
    found: list[list[tuple[float, float]]] = []
    for point in points:
        before = found[-1][-1][0] if found else point[0]
        if not found or point[0] - before > gap or x.apart(before, point[0]):
            found.append([])
        found[-1].append(point)
    return found


def bars(
    series: Mapping[str, Mapping[float, float]],
    width: float,
    x: Timeline,
    y: Axis,
    marks: Iterable[Mark] = (),
    label: str = "",
) -> str:
    """Draw stacked bars, each `width` wide on the axis of time."""
    tops: dict[float, float] = {}
    body: list[str] = []
    for number, (name, values) in enumerate(series.items(), 1):
        for at, value in sorted(values.items()):
            base = tops.get(at, 0.0)
            tops[at] = base + value
            left, right = (_WIDTH * each for each in x.within(at, at + width))
            top, bottom = _y(y, base + value), _y(y, base)
            body.append(
                f'<rect x="{left:.1f}" y="{top:.1f}" width="{max(right - left - 0.8, 1.2):.1f}"'
                f' height="{bottom - top:.1f}" style="fill:var(--c{number})">'
                f"<title>{escape(name)}: {value:.0f}</title></rect>"
            )
    return _plot("".join(body), x, y, marks, label) + legend(list(series))


def heat(
    cells: Mapping[tuple[float, float], int],
    width: float,
    factor: float,
    x: Timeline,
    y: Axis,
    marks: Iterable[Mark] = (),
    label: str = "",
) -> str:
    """Draw cells `(time, lower value) → count`. A cell is `width` wide and ends at `factor` times
    its lower value; its colour is stronger with a larger count, on a logarithmic scale."""
    most = math.log1p(max(cells.values(), default=1))
    body: list[str] = []
    for (at, low), count in sorted(cells.items()):
        left, right = (_WIDTH * each for each in x.within(at, at + width))
        top, bottom = _y(y, low * factor), _y(y, low)
        strength = 0.25 + 0.75 * math.log1p(count) / most
        body.append(
            f'<rect x="{left:.1f}" y="{top:.1f}" width="{max(right - left, 1.5):.1f}"'
            f' height="{max(bottom - top, 1):.1f}" fill-opacity="{strength:.2f}" class="cell">'
            f"<title>{count} between {duration(low)} and {duration(low * factor)}</title></rect>"
        )
    return _plot("".join(body), x, y, marks, label)


def legend(names: Sequence[str]) -> str:
    """Return the legend of the colours; "" for a single series."""
    if len(names) < 2:
        return ""
    items = "".join(
        f'<span><i style="background:var(--c{number})"></i>{escape(name)}</span>'
        for number, name in enumerate(names, 1)
    )
    return f'<p class="legend">{items}</p>'


def _plot(body: str, x: Timeline, y: Axis, marks: Iterable[Mark], label: str) -> str:
    grid = "".join(
        f'<line x1="0" x2="{_WIDTH}" y1="{_y(y, at):.1f}" y2="{_y(y, at):.1f}" class="grid"/>'
        for at, _ in y.ticks
    )
    marked = "".join(
        f'<line x1="{at}" x2="{at}" y1="0" y2="{_HEIGHT}" class="mark {kind}">'
        f"<title>{escape(text)}</title></line>"
        for at, kind, text in _thinned(marks, x)
    )
    paused = "".join(
        f'<line x1="{_WIDTH * at:.1f}" x2="{_WIDTH * at:.1f}" y1="0" y2="{_HEIGHT}"'
        f' class="break"><title>{escape(text)}</title></line>'
        for at, text in x.breaks
    )
    labels = [("y", "bottom", y.at(at), text) for at, text in y.ticks]
    labels += [("x", "left", x.at(at), text) for at, text in x.ticks]
    labels += [("pause", "left", at, text) for at, text in x.breaks]
    written = "".join(
        f'<span class="{kind}" style="{side}:{100 * at:.1f}%">{escape(text)}</span>'
        for kind, side, at, text in labels
    )
    return (
        f'<div class="plot"><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none"'
        f' role="img" aria-label="{escape(label)}">{grid}{paused}{marked}{body}</svg>'
        f"{written}</div>"
    )


def _thinned(marks: Iterable[Mark], x: Timeline) -> list[tuple[int, str, str]]:
    """Return positions, kinds and texts of marks; marks that are close together become one."""
    texts: dict[tuple[int, str], Counter[str]] = {}
    for mark in marks:
        place = round(_x(x, mark.at) / _MARK_WIDTH) * _MARK_WIDTH
        texts.setdefault((place, mark.kind), Counter())[mark.text] += 1
    return [
        (at, kind, ", ".join(text if n == 1 else f"{text} × {n}" for text, n in counted.items()))
        for (at, kind), counted in texts.items()
    ]


def _x(axis: Timeline, value: float) -> float:
    return _WIDTH * axis.at(value)


def _y(axis: Axis, value: float) -> float:
    return _HEIGHT * (1 - axis.at(value))


def escape(text: str) -> str:
    """Return a text escaped for HTML, with control characters and those that change the direction
    of writing made visible, as everywhere else."""
    return html.escape(printable(text), quote=True)
