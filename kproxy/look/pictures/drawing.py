"""What panels are made of: elements of SVG as values, an axis of time, bars, marks, lines.

::

    Panel(heading, legend, height, draw) … ─▶ picture ─▶ Picture ─┬─ svg ──▶ text of an element
                                                                  └─ plain ▶ lists for JSON
    ┌ heading   ── legend ┄┄ legend ┐
    │ labels │ plot            │ ends│  All letters have one width, so that texts are placed where
    └ 12:00:01      12:00:02 ───────┘  they fit.

Invariants: a text is a child of an element, and is escaped in one place; nothing lies outside of
the view box. What differs in colour differs in form, too: dashes, stripes, marks.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import resources
from typing import Any

import attrs

from kproxy.exchange.words.terminal_width import columns, cut, cut_middle
from kproxy.exchange.words.wording import age
from kproxy.look.pictures.bounded import Bar, BarRow, EndMark
from kproxy.look.why.sentences import clock
from kproxy.printable import printable
from kproxy.units import moment

WIDTH, LEFT_WIDTH, RIGHT_WIDTH = 720, 128, 62
_PLOT = WIDTH - LEFT_WIDTH - RIGHT_WIDTH
_LETTER = 6.7
"""The width of a letter of 11 pixels."""
_LINE, ROW = 16, 20
_MARK_APART = 9.0
_ROUND_MS = (
    *((10.0**power, (1, 2, 5)) for power in range(-2, 4)),
    (60_000.0, (0.25, 0.5, 1, 2, 5, 10, 15, 30)),
    (3_600_000.0, (1, 2, 3, 6, 12, 24, 48, 168)),
)
"""Units of time in milliseconds, and the multiples of each that are round times."""

Element = tuple[str, dict[str, Any], list[Any]]
"""A tag, attributes, and children: elements, or one text."""


def element(tag: str, *children: Element | str, **attributes: Any) -> Element:
    """Return an element; `_` in names of attributes stands for `-`, `kind` is its class."""
    shown: dict[str, str] = {}
    for name, value in attributes.items():
        written = f"{value:.1f}" if isinstance(value, float) else printable(str(value))
        shown["class" if name == "kind" else name.replace("_", "-")] = written
    return tag, shown, [printable(each) if isinstance(each, str) else each for each in children]


def svg(drawn: Element | str) -> str:
    """Return an element as text."""
    if isinstance(drawn, str):
        return html.escape(drawn)
    tag, attributes, children = drawn
    given = "".join(f' {name}="{html.escape(value)}"' for name, value in attributes.items())
    return f"<{tag}{given}>{''.join(map(svg, children))}</{tag}>"


@attrs.frozen
class Picture:
    """A picture of one subject."""

    title: str
    drawn: Element
    note: str = ""

    def plain(self) -> dict[str, Any]:
        """Return it as JSON takes it."""
        return {"note": printable(self.note), "drawn": self.drawn}


@attrs.frozen
class TimeAxis:
    """The times that a picture shows."""

    from_ns: int
    until_ns: int
    gaps: Sequence[tuple[int, int]] = ()

    def x(self, time_ns: int) -> float:
        """Return where a time is; one outside is at the border."""
        part = (time_ns - self.from_ns) / ((self.until_ns - self.from_ns) or 1)
        return LEFT_WIDTH + _PLOT * min(1.0, max(0.0, part))

    def shows(self, from_ns: int, until_ns: int) -> bool:
        """Return whether some of a span is shown."""
        return until_ns >= self.from_ns and from_ns <= self.until_ns


@attrs.frozen
class Panel:
    """A part of a picture."""

    heading: str
    legend: Sequence[tuple[str, str] | EndMark]
    """The class of a sample, and what it stands for."""
    height: int
    draw: Callable[[TimeAxis, float], Iterable[Element]]
    """Draws it on an axis, from a height on."""


def picture(title: str, axis: TimeAxis, panels: Sequence[Panel], note: str = "") -> Picture:
    """Return the panels, one below the other."""
    top, drawn = 2.0, [element("title", title)]
    for panel in panels:
        top = _legend(panel, top, drawn)
        drawn += _gaps(axis, top, panel.height)
        drawn += panel.draw(axis, top)
        top += panel.height + 8
    drawn += _ticks(axis, top)
    size = f"0 0 {WIDTH} {round(top) + _LINE + 4}"
    return Picture(title, element("svg", *drawn, kind="picture", viewBox=size, role="img"), note)


def style() -> str:
    """Return the style of pictures, light and dark."""
    return (resources.files("kproxy.look.pictures") / "picture.css").read_text("utf-8")


def text(x: float, y: float, written: str, width: float, kind: str = "") -> Element:
    """Return a text that is cut to a width; its title is the whole."""
    shown = cut_middle(printable(written), max(1, int(width / _LETTER)))
    titled = [element("title", written)] if shown != printable(written) else []
    return element("text", *titled, shown, x=x, y=y, kind=kind)


def _legend(panel: Panel, top: float, drawn: list[Element]) -> float:
    """Draw the heading, and behind it samples with what they stand for; return where they end."""
    heading = cut(printable(panel.heading), 60)
    x, top = (columns(heading) + 2) * _LETTER, top + _LINE
    drawn.append(element("text", heading, x=0, y=top - 5, kind="heading"))
    for each in panel.legend:
        shown = cut(printable(each.legend if isinstance(each, EndMark) else each[1]), 40)
        width = 24 + (columns(shown) + 2) * _LETTER
        if x + width > WIDTH:
            x, top = 0.0, top + _LINE
        drawn.append(_sample(each, x, top - 9))
        drawn.append(element("text", shown, x=x + 24, y=top - 5, kind="soft"))
        x += width
    return top


def _sample(of: tuple[str, str] | EndMark, x: float, y: float) -> Element:
    """Return what stands in a legend for a mark, a line or a bar."""
    if isinstance(of, EndMark):
        return _mark(of, x + 14, y)
    kind = of[0]
    if "fetched" in kind:
        marks = reach(x + 5, y + 4, y - 4) + reach(x + 14, y + 2, y - 4)
        return element("path", d=marks, kind=kind)
    if kind.startswith("curve"):
        return element("path", d=f"M{x:.1f} {y:.1f}h20", kind=kind)
    return element("rect", x=x + 2, y=y - 5, width=18, height=10, kind=f"bar {kind}")


def reach(x: float, low: float, high: float) -> str:
    """Return the path of a mark of what happened at one time, from a height to another: an I."""
    return f"M{x - 2.5:.1f} {max(low, high + 2):.1f}h5m-2.5 0V{high:.1f}m-2.5 0h5"


def _gaps(axis: TimeAxis, top: float, height: int) -> Iterator[Element]:
    for from_ns, until_ns in axis.gaps:
        if axis.shows(from_ns, until_ns):
            right = max(axis.x(until_ns), LEFT_WIDTH + 3.0)
            left, middle = min(axis.x(from_ns), right - 3), top + height / 2
            since = f"from {clock(from_ns)} " if from_ns else ""
            told = f"{since}until {clock(until_ns)} a part of the recording is not there"
            path = f"M{left:.1f} {middle:.1f}H{right:.1f}"
            yield element("path", element("title", told), d=path, kind="gap", stroke_width=height)


def round_step(span_ms: float, count: int) -> float:
    """Return a round duration that fits into a span so many times or fewer."""
    span_ms = span_ms or 1.0
    steps = (unit * factor for unit, factors in _ROUND_MS for factor in factors)
    return next((each for each in steps if each * count >= span_ms), span_ms)


def _ticks(axis: TimeAxis, top: float) -> Iterator[Element]:
    """Yield the axis of time: clock times, UTC."""
    step_ns = max(1, int(round_step((axis.until_ns - axis.from_ns) / 1e6, 6) * 1e6))
    right = LEFT_WIDTH + _PLOT
    yield element("path", d=f"M{LEFT_WIDTH} {top:.1f}H{right}", kind="rule")
    yield element("text", "UTC", x=0, y=top + 13, kind="soft")
    free = 0.0
    at_ns = -(-axis.from_ns // step_ns) * step_ns
    day = moment(axis.from_ns).date()
    while at_ns <= axis.until_ns:
        time = moment(at_ns)
        told = f"{time:%H:%M:%S}" if step_ns >= 10**9 else clock(at_ns)
        told = told if time.date() == day else f"{time:%d %b %H:%M}"
        half, x = len(told) * _LETTER / 2, axis.x(at_ns)
        if free <= x - half and x + half <= WIDTH:
            yield element("path", d=f"M{x:.1f} {top:.1f}v4", kind="rule")
            yield element("text", told, x=x, y=top + 15, kind="soft middle")
            free = x + half + _LETTER
        at_ns += step_ns


# ---- bars


def bar_rows(rows: Sequence[BarRow], axis: TimeAxis, top: float) -> Iterator[Element]:
    """Yield rows of bars, with their labels and their ends."""
    for row in rows:
        yield text(0.0, top + ROW / 2 + 4, row.label, LEFT_WIDTH - 6)
        marked = 0.0
        for bar in row.bars:
            until_ns = axis.until_ns if bar.until_ns is None else bar.until_ns
            if axis.shows(bar.from_ns, until_ns):
                x = axis.x(until_ns)
                behind = WIDTH - x - _MARK_APART if bar is row.bars[-1] else 0.0
                yield from _bar(bar, until_ns, axis, top, behind)
                if bar.end and x >= marked + _MARK_APART:
                    marked = x
                    title = f"{clock(until_ns)} {bar.end.legend}"
                    yield _mark(bar.end, x, top + ROW / 2, element("title", title))
        top += ROW


def _bar(bar: Bar, until_ns: int, axis: TimeAxis, top: float, behind: float) -> Iterator[Element]:
    """Yield a bar, with its text in it, or in the room behind it."""
    left = axis.x(bar.from_ns)
    width = max(axis.x(until_ns) - left, 1.5)
    lasted = age((until_ns - bar.from_ns) / 1e6)
    title = f"{clock(bar.from_ns)} to {clock(until_ns)} ({lasted}): {bar.title}"
    place = {"x": left, "y": top + 3, "width": width, "height": ROW - 6}
    yield element("rect", element("title", title), **place, kind=f"bar {bar.kind}")
    for room, x in ((width, left + 3), (behind, left + width + _MARK_APART)):
        for written in bar.text:
            if (columns(printable(written)) + 0.5) * _LETTER <= room:
                yield element("text", written, x=x, y=top + ROW / 2 + 4, kind="inside")
                return


def _mark(mark: EndMark, x: float, y: float, *title: Element) -> Element:
    if not mark.path:
        return element("text", "?", x=x + 2, y=y + 4, kind=mark.kind)
    return element("path", *title, d=f"M{x:.1f} {y:.1f}{mark.path}", kind=f"ending {mark.kind}")
