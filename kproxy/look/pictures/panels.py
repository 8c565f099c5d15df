"""The panels of pictures: offsets, lag, members, times without progress, transactions.

The offsets of a partition over time: where its log ends and begins, what groups fetched and
committed, and the last stable offset.

    20 ┤      ┌───────────── end of the log
       │   ┌──┘ I   I   I    fetched
     7 ┤┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄ committed
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise

import attrs

from kproxy.exchange.entities import TopicPartition
from kproxy.exchange.words.wording import age, count
from kproxy.history import transactions as t
from kproxy.history.ref import Client
from kproxy.history.transactions import ABORTED, COMMITTED, OPEN, UNKNOWN
from kproxy.look.pictures import drawing
from kproxy.look.pictures.bounded import MANY, NOT_KNOWN, Bar, BarRow, EndMark, Steps
from kproxy.look.pictures.drawing import (
    LEFT_WIDTH,
    RIGHT_WIDTH,
    ROW,
    WIDTH,
    Element,
    Panel,
    TimeAxis,
    bar_rows,
)
from kproxy.look.pictures.series import (
    ENDED,
    HAS,
    HAS_NOTHING,
    JOINS,
    LEFT,
    MEMBER,
    REMOVED,
    STILL,
    TOLD,
    WAITED,
    GroupRows,
    Series,
)
from kproxy.look.why.sentences import clock, named, transaction_ended

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


# ---- How far a group is behind the ends of logs, over time: a line for each partition
#
# Invariant: the lag is that of what was committed, as far as ends of logs are shown.


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


# ---- The members of a group over time: who had which partitions, and how it ended
#
#              1        2         3
# consumer-a   ▭▬orders[0]▬▬▬▬▬▬▭▬orders[0,1]▬▬▬
# consumer-b        ▭▬orders[1]▬×


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


# ---- Times in which nothing went on: clients that quotas held, brokers and kproxy that stood still
#
# app         ▭▭▭▭▭▭▭▭▭▭▭  told to wait
#              ▬▬▬▬▬▬▬▬▬▬  a request waited for that
# broker 2           ▨▨▨   stood still
#
# Invariant: what is drawn is what the history counts: the rows of clients, those that waited
# longest first, and what stood still below them.


_CLIENTS_DRAWN = 6
_WAITS = {TOLD: "told to wait (quota)", WAITED: "a request waited for that", STILL: "stood still"}


def waiting_rows(series: Series, client_id: str | None = None) -> list[BarRow]:
    """Return the rows of clients, of one name or those that waited most, and of what stood still;
    the second row of a client has no label."""
    total: dict[tuple[str, str], int] = {}
    for (client, kind), row in series.waits.items():
        if kind != STILL and client_id in (None, client[1]):
            total[client] = total.get(client, 0) + sum(_lasted(each) for each in row.bars)
    rows: list[BarRow] = []
    for client in sorted(total, key=lambda each: -total[each])[:_CLIENTS_DRAWN]:
        own = [row for kind in _WAITS if (row := series.waits.get((client, kind))) is not None]
        rows += [BarRow("" if at else row.label, row.bars) for at, row in enumerate(own)]
    for node_id, stalls in series.history.brokers.stalls().items():
        bars = [
            Bar(each.from_ns, STILL, f"{count(len(each.waiting), 'request')} waited",
                each.until_ns, text=(age(each.length_ns / 1e6),))
            for each in stalls
        ]  # fmt: skip
        rows.append(BarRow(f"broker {node_id}", bars))
    own = [row for (_, kind), row in series.waits.items() if kind == STILL]
    return [*rows, *own]


def _lasted(bar: Bar) -> int:
    return (bar.until_ns or bar.from_ns) - bar.from_ns


def waiting(rows: list[BarRow]) -> Panel:
    """Return the panel of some rows."""
    kinds = {bar.kind for row in rows for bar in row.bars}
    legend = [each for each in _WAITS.items() if each[0] in kinds]
    return Panel("throttled and stalled", legend, ROW * len(rows), partial(bar_rows, rows))


# ---- The transactions of a transactional id as bars: a row for each client, how each ended
#
# ::
#
#     tx-app    ▬▬▬ ▬▬  ▨▨▨ aborted   ▭▭▭▭▭▭▭▭▭▭▭▭ open ?


_CLIENT_ROWS = 8
_REFUSED = EndMark("refused", "refused: fenced", "m-4 -4h8v8h-8zm1 4h6")
_ENDS = {
    COMMITTED: "committed", ABORTED: "aborted", OPEN: "open", UNKNOWN: "end not recorded",
}  # fmt: skip


def transactions(found: t.TransactionalId, until_ns: int) -> Panel:
    """Return the panel of a transactional id in a recording that ends at a time."""
    bars = [(each.began, _bar(each, until_ns)) for each in kept(found)]
    if (fenced := found.fenced) is not None:
        told, at_ns = f"{named(fenced.ref)} is refused: {fenced.error}", fenced.ref.time_ns
        bars.append((fenced.ref, Bar(at_ns, "refused", told, at_ns, _REFUSED)))
    rows: dict[Client, BarRow] = {}
    for ref, bar in sorted(bars, key=lambda each: each[1].from_ns):
        rows.setdefault(ref.client, BarRow(ref.client_id or ref.client[0])).add(bar)
    kinds = {bar.kind for row in rows.values() for bar in row.bars}
    legend = [each for each in _ENDS.items() if each[0] in kinds]
    legend += [_REFUSED] if found.fenced else []
    dropped = found.committed.dropped + found.events.dropped
    heading = f"transactions; {dropped} more are not drawn" if dropped else "transactions"
    drawn = [*rows.values()][:_CLIENT_ROWS]
    return Panel(heading, legend, ROW * len(drawn), partial(bar_rows, drawn))


def kept(found: t.TransactionalId) -> list[t.Transaction]:
    """Return the transactions that the history keeps, in order of time."""
    held = [*found.committed, *found.events, *([found.open] if found.open else [])]
    own = [each for each in held if isinstance(each, t.Transaction)]
    return sorted(own, key=lambda each: each.began.time_ns)


def ended_ns(found: t.Transaction, until_ns: int) -> int:
    """Return when a transaction ended; where that is not known, up to when it was heard of: an open
    one until the recording ends."""
    if found.ended is not None:
        return found.ended.answered_ns
    if found.shown is not None:
        return found.shown[1].answered_ns
    return until_ns if found.end == OPEN else found.latest.answered_ns


def _bar(found: t.Transaction, until_ns: int) -> Bar:
    from_ns, to_ns = found.began.time_ns, ended_ns(found, until_ns)
    kind = found.shown[0] if found.shown and found.end == OPEN else found.end
    lasted = age((to_ns - from_ns) / 1e6)
    records = count(sum(each.records for each in found.written.values()), "record")
    texts = (f"{kind}, {records}, {lasted}", f"{kind}, {lasted}", kind)
    end = NOT_KNOWN if kind in (OPEN, UNKNOWN) else None
    return Bar(from_ns, kind, transaction_ended(found), to_ns, end, texts)
