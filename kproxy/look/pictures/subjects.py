"""The picture of a subject: which panels it has, and whether it says something at all.

Series, "group:billing" ─▶ members · offsets of the worst partitions · lag ─▶ Picture
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kproxy.exchange.entities import TopicPartition
from kproxy.exchange.words.wording import count
from kproxy.history.standing import STAND_MS_MIN
from kproxy.history.transactions import COMMITTED
from kproxy.look.pictures.bounded import Steps
from kproxy.look.pictures.drawing import Panel, Picture, TimeAxis, picture
from kproxy.look.pictures.members import members
from kproxy.look.pictures.offsets import lag, most, offsets
from kproxy.look.pictures.series import ENDED, REMOVED, GroupRows, Series
from kproxy.look.pictures.transactions import ended_ns, kept, transactions
from kproxy.look.pictures.waits import waiting, waiting_rows
from kproxy.look.why.client_findings import QUOTA, STALLED
from kproxy.look.why.finding import Finding, Subject

PICTURES_MAX = 8
"""Pictures of a report, for each recording."""
STANDING = "standing"
_OF_GROUP, _OF_TOPIC, _OF_ID = 2, 3, 2
"""Partitions whose offsets are drawn."""
_NOT_ORDINARY = frozenset({ENDED, REMOVED})
_ZOOM = 20
"""A transaction shorter than this part of the time is drawn alone."""


def pictured(series: Series, key: str, value: str) -> Picture | None:
    """Return the picture of a subject, as `kproxy why` names it; None if it would say nothing."""
    find = _PICTURES.get(key)
    return None if find is None else find(series, value)


def subject_of(finding: Finding) -> Subject | None:
    """Return the subject whose picture belongs to a finding; None if it has none."""
    if finding.about is not None and finding.about.kind in _PICTURES:
        return finding.about
    if finding.kind in (QUOTA, STALLED):
        return Subject(STANDING, "")
    return None if finding.group is None else Subject("group", finding.group)


def pictures(series: Series, findings: Iterable[Finding]) -> dict[Subject, Picture]:
    """Return the pictures of a recording: of its findings first, then of groups that rebalanced or
    are behind; at most `PICTURES_MAX`."""
    subjects = dict.fromkeys(map(subject_of, findings))
    subjects |= dict.fromkeys(Subject("group", name) for name in series.groups)
    found: dict[Subject, Picture] = {}
    for subject in filter(None, subjects):
        drawn = pictured(series, subject.kind, subject.name) if len(found) < PICTURES_MAX else None
        if drawn is not None:
            found[subject] = drawn
    return found


def _group(series: Series, name: str) -> Picture | None:
    rows = series.groups.get(name, GroupRows())
    lags = {where: each for (group, where), each in series.lag.items() if group == name}
    held = [key for key in series.history.reads.readings if key[1] in series.held]
    of_groups = (*series.committed, *series.fetched, *held)
    known = {where for group, where in of_groups if group == name}
    worst = _worst(series, name, known)
    bars = (bar for *_, row in rows.rows for bar in row.bars)
    changes = len(rows.generations) > 1 or any(bar.end in _NOT_ORDINARY for bar in bars)
    if not (changes or worst or any(map(most, lags.values()))):
        return None
    panels = [members(rows)] if rows.rows else []
    panels += [offsets(series, where, [name]) for where in worst[:_OF_GROUP]]
    if any(map(most, lags.values())):
        panels.append(lag(lags, [where for where in worst if where not in lags]))
    note = _not_drawn(len(known) - len(worst[:_OF_GROUP])) if worst else ""
    return _picture(series, f"group {name}", panels, note)


def _not_drawn(more: int) -> str:
    return f"The offsets of {count(more, 'other partition')} are not drawn." if more else ""


def _worst(series: Series, name: str, known: Iterable[TopicPartition]) -> list[TopicPartition]:
    """Return the partitions in which a group stands still, was set elsewhere, or is behind, in this
    order: behind with what it committed, or else with what it asks for."""
    group = series.history.groups.get(name)
    stands = {each.where for each in series.history.standing
              if any(reader.group == name for reader in each.readers.values())}  # fmt: skip
    found: dict[TopicPartition, tuple[bool, bool, int]] = {}
    for where in known:
        found_at = None if group is None else group.positions.get(where)
        stood = where in stands or (
            found_at is not None
            and bool(found_at.stood or (found_at.stands is not None and found_at.stands.is_found))
        )
        reading = series.history.reads.readings.get((name, where))
        jumps = () if reading is None else reading.jumps
        jumped = any(each.to > (each.start or 0) for each in jumps)
        behind = series.lag.get((name, where), Steps()).value or 0
        position = None if reading is None else reading.position
        log = series.history.logs.logs.get(where)
        if (name, where) not in series.committed and position is not None and log is not None:
            behind = max(0, log.records_end - position)
        if stood or jumped or behind:
            found[where] = not stood, not jumped, -behind
    return sorted(found, key=lambda where: (found[where], where))


def _topic(series: Series, name: str) -> Picture | None:
    groups = {where: dict[str, None]() for where in series.held if where.topic == name}
    for group, where in (*series.committed, *series.fetched):
        if where.topic == name:
            groups.setdefault(where, {})[group] = None

    def behind(where: TopicPartition) -> int:
        lags = (series.lag.get((group, where)) for group in groups[where])
        return max((most(each) for each in lags if each is not None), default=0)

    worst = sorted(groups, key=lambda where: (-behind(where), where))
    panels = [offsets(series, where, [*groups[where]]) for where in worst[:_OF_TOPIC]]
    note = _not_drawn(len(worst) - len(panels))
    return _picture(series, f"topic {name}", panels, note) if panels else None


def _transactional_id(series: Series, name: str) -> Picture | None:
    found, until_ns = series.history.transactions.ids.get(name), series.until_ns
    own = [] if found is None else kept(found)
    if found is None or not own:
        return None
    worst = max(own, key=lambda each: ended_ns(each, until_ns) - each.began.time_ns)
    worst_ns = ended_ns(worst, until_ns) - worst.began.time_ns
    is_long = worst_ns >= STAND_MS_MIN * 1e6
    if not (is_long or found.fenced or any(each.end != COMMITTED for each in own)):
        return None
    panels = [transactions(found, until_ns)]
    held = [where for where in worst.written if where in series.held]
    panels += [offsets(series, where, []) for where in held[:_OF_ID]]
    refused_ns = found.fenced.ref.answered_ns if found.fenced else 0
    from_ns = own[0].began.time_ns
    to_ns = max(refused_ns, *(ended_ns(each, until_ns) for each in own))
    note = ""
    if is_long and worst_ns * _ZOOM < to_ns - from_ns:
        from_ns, to_ns = worst.began.time_ns - worst_ns, worst.began.time_ns + 2 * worst_ns
        note = "The time around the longest transaction."
    return _picture(series, f"transactional id {name}", panels, note, from_ns, to_ns)


def _standing(series: Series, client_id: str | None = None) -> Picture | None:
    """Return the picture of what waited: clients of one name, or all; None if nothing did."""
    rows = waiting_rows(series, client_id)
    if not any(row.bars for row in rows):
        return None
    title = "throttled and stalled times" if client_id is None else f"client {client_id}"
    return _picture(series, title, [waiting(rows)], "")


def _picture(
    series: Series, title: str, panels: list[Panel], note: str, from_ns: int = 0, until_ns: int = 0
) -> Picture:
    """Return panels of a time, or of the whole recording."""
    from_ns, until_ns = from_ns or series.from_ns, until_ns or series.until_ns
    around_ns = max(1_000_000, (until_ns - from_ns) // 40)
    axis = TimeAxis(from_ns - around_ns, until_ns + around_ns, series.gaps)
    if series.excerpt:
        note = f"Of an excerpt ({series.excerpt}): nothing else is known. {note}"
    return picture(title, axis, panels, note)


_PICTURES: dict[str, Callable[[Series, str], Picture | None]] = {
    "group": _group,
    "topic": _topic,
    "transactional_id": _transactional_id,
    "client_id": _standing,
    STANDING: lambda series, name: _standing(series),
}
