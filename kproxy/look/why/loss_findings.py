"""Findings about records that groups never read: skipped by a reset, or deleted before.

::

    committed 10 ─── deleted ───▶ log begins at 60 ─── skipped ───▶ reset to 100

Each is a function of the history.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from kproxy.exchange.entities import TopicPartition
from kproxy.exchange.words.wording import count
from kproxy.history.history import History
from kproxy.history.kept import Extent
from kproxy.history.logs import LogState
from kproxy.history.reads import Jump
from kproxy.history.ref import Ref
from kproxy.history.rows import A_TIME, LATEST
from kproxy.look.why.finding import Finding, Harm, Subject
from kproxy.look.why.sentences import at, named, who

_TOLD_MAX = 3


class _UnreadRange(NamedTuple):
    """Offsets that a group has not read and will not read."""

    harm: Harm
    kind: str
    group: str
    where: TopicPartition
    offsets: int
    text: str
    evidence: tuple[str, ...]
    numbers: tuple[int, ...]


def never_read(history: History) -> Iterator[Finding]:
    """Yield the records that groups skipped, or that were deleted before they were read."""
    by_topic: dict[tuple[Harm, str, str, str], list[_UnreadRange]] = {}
    for each in (*_jumps(history), *_deleted(history)):
        key = each.harm, each.kind, each.group, each.where.topic
        by_topic.setdefault(key, []).append(each)
    for (harm, kind, group, topic), found in sorted(by_topic.items()):
        found.sort(key=lambda each: (-each.offsets, each.where))
        worst = found[0]
        more = found[1 : 1 + _TOLD_MAX]
        left_out = len(found) - 1 - len(more)
        others = (f"and {left_out} more like these.",) if left_out else ()
        yield Finding(
            harm,
            kind,
            worst.text,
            worst.numbers,
            Subject("group", group),
            topic,
            evidence=(*worst.evidence, *(each.text for each in more), *others),
        )


# ── skipped ──────────────────────────────────────────────────────────────────────────────────


def _jumps(history: History) -> Iterator[_UnreadRange]:
    for (group, where), reading in sorted(history.reads.readings.items()):
        log = history.logs.logs.get(where)
        if log is None:
            continue
        for jump in reading.jumps:
            if jump.refused is not None:
                yield from _reset(history, group, log, jump)
            elif jump.told is not None and jump.start is None:
                yield from _began(history, group, log, jump)
            else:
                yield from _sought(history, group, log, jump)


def _reset(history: History, group: str, log: LogState, jump: Jump) -> Iterator[_UnreadRange]:
    """Yield what a group lost by going on elsewhere, because its offset was out of range."""
    start, refused = jump.start or 0, jump.refused
    assert refused is not None
    begins = _begins(log, jump.ref)
    first = begins.value if begins is not None else 0
    if start > jump.to:  # past the end: of a log that was cut off, or is another one
        start = first
    skipped, gone = jump.to - max(start, first), min(first, jump.to) - start
    numbers = tuple(
        each.number for each in (refused, jump.listed and jump.listed.ref, jump.ref) if each
    )
    why = [
        f"{named(refused)} of {who(refused)} at {at(refused)} asked for offset {jump.start}:"
        f" OFFSET_OUT_OF_RANGE{f', {refused.fate.made}' if refused.fate.made else ''}"
        + (f"; the log begins at {first} ({named(begins.first)})." if begins else ".")
    ]
    if jump.listed is not None and jump.listed.offset == jump.to:
        asked = jump.listed.kind if jump.listed.kind == A_TIME else f"the {jump.listed.kind} offset"
        how = f", as with auto.offset.reset={jump.listed.kind}" if asked != A_TIME else ""
        why.append(
            f"{named(jump.listed.ref)} asked for {asked}{how}, and {named(jump.ref)} goes on at"
            f" {jump.to}."
        )
    else:
        why.append(f"{named(jump.ref)} goes on at {jump.to}.")
    if gone > 0 and begins is not None:
        gone_text = f"{count(gone, log.noun)} {_span(start, first)}"
        if skipped <= 0:
            yield _deletion(group, log, gone, start, first, why, numbers)
            return
        why.append(f"{gone_text} before them had been deleted.")
    if skipped > 0:
        known = "that were there" if begins is not None else "or as many of them as were there"
        text = (
            f"Group {group} skipped {count(skipped, log.noun)} of {_name(log)}"
            f" {_span(max(start, first), jump.to)} {known}: its offset was reset."
        )
        why += _no_lag(history, group, log, jump.to)
        kind = "records skipped by an offset reset"
        yield _UnreadRange(Harm.DATA, kind, group, log.where, skipped, text, tuple(why), numbers)


def _began(history: History, group: str, log: LogState, jump: Jump) -> Iterator[_UnreadRange]:
    """Yield what a group left out that had nothing committed, and begins at the end."""
    begins, listed, told = _begins(log, jump.ref), jump.listed, jump.told
    if begins is None or listed is None or told is None or listed.kind != LATEST:
        return
    skipped = jump.to - begins.value
    if skipped <= 0:
        return
    before = history.logs.committed.get((group, log.where))
    deleted_by = None if before is None else before.deleted_by
    had_before = deleted_by is not None and deleted_by.time_ns < told.time_ns
    there = f"{count(skipped, log.noun)} of {_name(log)} {_span(begins.value, jump.to)}"
    text = (
        f"Group {group} skipped {there}: what it had committed was deleted."
        if had_before
        else f"Group {group} began behind {there}: it had committed nothing there."
    )
    found = f"{named(told)} of {who(told)} at {at(told)} found no committed offset"
    given = f"{named(listed.ref)} gave the latest, {jump.to}, as with auto.offset.reset=latest"
    why = [f"{found}, {given}; the log begins at {begins.value} ({named(begins.first)})."]
    if had_before and deleted_by is not None:
        why.append(f"{named(deleted_by)} had deleted it.")
    harm = Harm.DATA if had_before else Harm.CURIOSITY
    numbers = told.number, listed.ref.number, jump.ref.number
    kind = "records skipped by an offset reset" if had_before else "began at the end"
    yield _UnreadRange(harm, kind, group, log.where, skipped, text, tuple(why), numbers)


def _sought(history: History, group: str, log: LogState, jump: Jump) -> Iterator[_UnreadRange]:
    """Yield what a client went past by itself, though the group had committed less."""
    listed, start = jump.listed, jump.start
    committed = history.logs.committed.get((group, log.where))
    if start is None and committed is not None:
        before = [
            each.offset for each in committed.progress.moments if each.time_ns < jump.ref.time_ns
        ]
        start = before[-1] if before else None
    if listed is None or start is None or start >= jump.to:
        return
    begins = _begins(log, jump.ref)
    first = max(start, begins.value if begins is not None else 0)
    if jump.to <= first:
        return
    asked = "a time" if listed.kind == A_TIME else f"the {listed.kind} offset"
    text = (
        f"Group {group} went past {count(jump.to - first, log.noun)} of {_name(log)}"
        f" {_span(first, jump.to)}: its client sought {jump.to}."
    )
    why = (
        f"It had committed {start}; {named(listed.ref)} of {who(listed.ref)} asked for {asked}, and"
        f" {named(jump.ref)} goes on there."
    )
    numbers = listed.ref.number, jump.ref.number
    kind = "went past records"
    yield _UnreadRange(
        Harm.CURIOSITY, kind, group, log.where, jump.to - first, text, (why,), numbers
    )


def _no_lag(history: History, group: str, log: LogState, since: int) -> Iterator[str]:
    committed = history.logs.committed.get((group, log.where))
    if committed is not None and committed.is_certain and committed.commit.offset >= since:
        lag = max(0, log.records_end - committed.commit.offset)
        yield f"At the end its lag there is {lag}: what was skipped does not show in it."


# ── deleted ──────────────────────────────────────────────────────────────────────────────────


def _deleted(history: History) -> Iterator[_UnreadRange]:
    """Yield what was deleted of logs in front of groups, which have not come to it yet."""
    keys = dict.fromkeys((*history.logs.committed, *history.reads.readings))
    for group, where in sorted(keys):
        committed = history.logs.committed.get((group, where))
        reading, log = history.reads.readings.get((group, where)), history.logs.logs.get(where)
        begins = log.starts.latest if log is not None else None
        if log is None or begins is None:
            continue
        why: list[str] = []
        numbers = [begins.first.number]
        at_offset = -1
        if committed is not None and committed.is_certain:
            at_offset = committed.commit.offset
            why.append(f"It has committed {at_offset} ({named(committed.commit.by)}).")
            numbers.append(committed.commit.by.number)
        if reading is not None and reading.refused is not None:
            at_offset, refused = reading.refused
            why.append(
                f"{named(refused)} of {who(refused)} at {at(refused)} asked for {at_offset}:"
                " OFFSET_OUT_OF_RANGE, and no Fetch asks for another."
            )
            numbers.append(refused.number)
        elif reading is not None and reading.position is not None:
            at_offset = max(at_offset, reading.position)
        if why and 0 <= at_offset < begins.value:
            why.insert(0, f"The log begins at {begins.value} ({named(begins.first)}).")
            gone = begins.value - at_offset
            yield _deletion(group, log, gone, at_offset, begins.value, why, tuple(numbers))


def _deletion(
    group: str,
    log: LogState,
    gone: int,
    first: int,
    end: int,
    why: list[str],
    numbers: tuple[int, ...],
) -> _UnreadRange:
    text = (
        f"{count(gone, log.noun)} of {_name(log)} {_span(first, end)} were deleted before group"
        f" {group} had read them."
    )
    kind = "deleted before they were read"
    return _UnreadRange(Harm.DATA, kind, group, log.where, gone, text, tuple(why), numbers)


def _begins(log: LogState, ref: Ref) -> Extent[int] | None:
    """Return where a log began when an exchange was complete, else where it did after it."""
    return log.starts.until(ref.completed_ns) or next(iter(log.starts), None)


def _name(log: LogState) -> str:
    return f"{log.where.topic}[{log.where.partition}]"


def _span(first: int, end: int) -> str:
    return f"({first})" if end - first == 1 else f"({first} to {end - 1})"
