"""The members of a group over time: who had which partitions in which generation, and how it ended.

             1        2         3
consumer-a   ▭▬orders[0]▬▬▬▬▬▬▭▬orders[0,1]▬▬▬
consumer-b        ▭▬orders[1]▬×
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import attrs

from kproxy.exchange.words.wording import count
from kproxy.look.pictures import drawing
from kproxy.look.pictures.bounded import MANY, NOT_KNOWN, BarRow
from kproxy.look.pictures.drawing import ROW, Element, Panel, TimeAxis
from kproxy.look.pictures.series import (
    ENDED,
    HAS,
    HAS_NOTHING,
    JOINS,
    LEFT,
    MEMBER,
    REMOVED,
    GroupRows,
)
from kproxy.look.why.sentences import clock

_ROWS_DRAWN, _TOP = 14, 12
_MEANING = {
    HAS: "has partitions", HAS_NOTHING: "has none", JOINS: "joins", MEMBER: "a member",
    MANY: "several, merged",
}  # fmt: skip


def members(group: GroupRows) -> Panel:
    """Return the panel of a group."""
    rows = [_known(group, row) for _, _, row in group.rows[:_ROWS_DRAWN]]
    more = len(group.rows) - len(rows) + len(group.left_out)
    kinds = {bar.kind for row in rows for bar in row.bars}
    ends = {bar.end for row in rows for bar in row.bars}
    legend = [each for each in _MEANING.items() if each[0] in kinds]
    legend += [each for each in (ENDED, LEFT, REMOVED) if each in ends]

    def draw(axis: TimeAxis, top: float) -> Iterator[Element]:
        yield from _generations(group, axis, top, ROW * len(rows))
        yield from drawing.bar_rows(rows, axis, top + _TOP)
        if more:
            told = f"and {count(more, 'more member')}"
            yield drawing.text(0.0, top + _TOP + ROW * len(rows) + 12, told, 300, "soft")

    return Panel("members", legend, _TOP + ROW * (len(rows) + bool(more)), draw)


def _known(group: GroupRows, row: BarRow) -> BarRow:
    """Return a row up to when its member, if it lives, was heard of last: more is not known."""
    accepted = next((member.accepted for own, member in group.open.values() if own is row), None)
    if (last := row.open) is None or accepted is None:
        return row
    heard_ns = max(last.from_ns, accepted.answered_ns)
    return BarRow(row.label, [*row.bars[:-1], attrs.evolve(last, until_ns=heard_ns, end=NOT_KNOWN)])


def _generations(group: GroupRows, axis: TimeAxis, top: float, height: int) -> Iterator[Element]:
    """Yield a line where each generation begins, and above it its number: where there is no room
    for all, of those that lasted longest."""
    begun = [time_ns for time_ns, _ in group.generations]
    lasted = [after - time_ns for time_ns, after in pairwise([*begun, axis.until_ns])]
    taken: list[tuple[float, float]] = []
    for at in sorted(range(len(begun)), key=lambda at: (-lasted[at], at)):
        time_ns, number = group.generations[at]
        x, half = axis.x(time_ns), len(str(number)) * 3.4 + 4
        title = drawing.element("title", f"{clock(time_ns)} generation {number} begins")
        path = f"M{x:.1f} {top + 11:.1f}v{height}"
        yield drawing.element("path", title, d=path, kind="generation")
        if all(abs(x - other) >= half + other_half for other, other_half in taken):
            taken.append((x, half))
            yield drawing.element("text", str(number), x=x, y=top + 9, kind="soft middle")
