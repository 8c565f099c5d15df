"""The members of a group over time: who had which partitions in which generation, and how it ended.

             1        2         3
consumer-a   ▭▬orders[0]▬▬▬▬▬▬▭▬orders[0,1]▬▬▬
consumer-b        ▭▬orders[1]▬×
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import attrs

from kproxy.exchange.words.wording import count
from kproxy.history.standstills import ENDED, LEFT, REMOVED
from kproxy.look.pictures.bounded import MANY, NOT_KNOWN, BarRow
from kproxy.look.pictures.drawing import (
    LEFT_WIDTH,
    ROW,
    Element,
    Panel,
    TimeAxis,
    bar_row,
    element,
    text,
)
from kproxy.look.pictures.series import HAS, HAS_NOTHING, JOINS, MEMBER, GroupRows
from kproxy.look.why.sentences import clock

_ROWS_DRAWN = 14
_NUMBER_APART = 8.0
_MEANING = {
    HAS: "has partitions", HAS_NOTHING: "has none", JOINS: "joins", MEMBER: "a member",
    MANY: "several, merged", ENDED: "ended without leaving", LEFT: "left",
    REMOVED: "removed",
}  # fmt: skip


def members(group: GroupRows) -> Panel:
    """Return the panel of a group."""
    rows = [(row, _heard(group, row)) for _, _, row in group.rows[:_ROWS_DRAWN]]
    more = len(group.rows) - len(rows) + len(group.left_out)
    found = {each for row, _ in rows for bar in row.bars for each in (bar.kind, bar.end)}
    legend = [each for each in _MEANING.items() if each[0] in found]

    def draw(axis: TimeAxis, top: float) -> Iterator[Element]:
        yield from _generations(group.generations, axis, top, ROW * len(rows))
        for at, (row, heard_ns) in enumerate(rows):
            yield from bar_row(_until(row, heard_ns), axis, top + 12 + ROW * at, row.label)
        if more:
            told = f"and {count(more, 'more member')}"
            yield text(0.0, top + 12 + ROW * len(rows) + 12, told, LEFT_WIDTH * 2, "soft")

    return Panel("members", legend, 12 + ROW * (len(rows) + bool(more)), draw)


def _heard(group: GroupRows, row: BarRow) -> int | None:
    """Return when the member of a row that lives was heard of last."""
    found = (member.accepted for own, member in group.open.values() if own is row)
    accepted = next(found, None)
    return None if accepted is None else accepted.answered_ns


def _until(row: BarRow, heard_ns: int | None) -> BarRow:
    """Return a row whose last bar ends where its member was heard of last: more is not known."""
    if (last := row.open) is None or heard_ns is None:
        return row
    shown = attrs.evolve(last, until_ns=max(last.from_ns, heard_ns), end=NOT_KNOWN)
    return BarRow(row.label, [*row.bars[:-1], shown])


def _generations(
    born: Iterable[tuple[int, int]], axis: TimeAxis, top: float, height: int
) -> Iterator[Element]:
    """Yield a line where each generation begins, and above it its number, where there is room."""
    free = 0.0
    for time_ns, number in born:
        if not axis.shows(time_ns):
            continue
        x, half = axis.x(time_ns), len(str(number)) * 3.4
        title = element("title", f"{clock(time_ns)} generation {number} begins")
        yield element("path", title, d=f"M{x:.1f} {top + 11:.1f}v{height}", kind="generation")
        if x - half >= free:
            yield element("text", str(number), x=x, y=top + 9, kind="soft middle")
            free = x + half + _NUMBER_APART
