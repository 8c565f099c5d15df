"""Findings about what groups read: fetched twice, too slowly, not at all.

Each is a function of the history. Only what was fetched and committed is told, never what an app
did with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from kproxy.exchange.entities import TopicPartition
from kproxy.exchange.words.wording import count, partitions
from kproxy.history.history import History
from kproxy.history.kept import LagSamples
from kproxy.history.logs import FETCHED, ClientUse, TopicState
from kproxy.history.reads import ReadAgain
from kproxy.history.ref import Client
from kproxy.look.why.commit_findings import LAG_MIN, without_commits
from kproxy.look.why.finding import Finding, Harm, Subject
from kproxy.look.why.member_findings import left_late
from kproxy.look.why.sentences import clock, offsets, who

FETCHED_TWICE = "fetched twice after a rebalance"
"""The kind of a finding that is ordinary where members gave partitions up in order."""
_TOLD_MAX = 3
"""Partitions that a finding names."""
_SLOW_NS = 8_000_000_000
_SLOW_MOMENTS_MIN = 4
_SLOW_LAG_MIN = 10
"""A reader is slow if its lag grows by this, over this time, shown by so many moments …"""
_SLOW_SHARE = 0.8
"""… and it reads less than this share of what is written."""
_UNREAD_NS = 5_000_000_000
"""Nobody reads a partition if the others were fetched this much later than it had records."""
_WHY_UNREAD = (
    "Its members do not have it, or have paused it, or fetch it on connections that are not"
    " recorded."
)


# ── fetched twice ────────────────────────────────────────────────────────────────────────────


def fetched_twice(history: History) -> Iterator[Finding]:
    """Yield what groups fetched once more after a rebalance. Consumers fetch ahead of their app:
    what one had fetched and not committed when it gave a partition up in order, it threw away."""
    by_topic: dict[tuple[str, str], list[tuple[bool, int, ReadAgain]]] = {}
    told_apart = without_commits(history)
    for (group, where), reading in sorted(history.reads.readings.items()):
        for each in () if group in told_apart else reading.again:
            in_order = _gave_up_in_order(history, group, each)
            is_behind_commit = (
                each.commit is not None
                and each.commit.member == each.member
                and each.commit.offset <= each.start
            )
            if in_order and is_behind_commit:
                continue
            if not _is_explained(history, group, where, each):
                found = by_topic.setdefault((group, where.topic), [])
                found.append((in_order, where.partition, each))
    for (group, topic), found in by_topic.items():  # the longest first
        found.sort(key=lambda each: (each[0], each[2].start - each[2].end, each[1]))
        worst_in_order, _, worst = found[0]
        told = [
            f"{topic}[{partition}]{offsets(each.start, each.end - 1)} in generation"
            f" {each.generations[0]} by {who(each.first)} (until #{each.first.number}), and"
            f" again in generation {each.generations[1]} by {who(each.second)} (from"
            f" #{each.second.number})."
            for _, partition, each in found[:_TOLD_MAX]
        ]
        if len(found) > _TOLD_MAX:
            told.append(f"{count(len(found) - _TOLD_MAX, 'more stretch')} likewise.")
        yield Finding(
            Harm.CURIOSITY if worst_in_order else Harm.LATENCY,
            FETCHED_TWICE,
            f"Group {group} fetched records of {topic} twice, before a rebalance and after it.",
            (worst.first.number, worst.second.number),
            Subject("group", group),
            topic,
            evidence=(*told, "Whether the app processed them twice is not in the recording."),
        )


def _gave_up_in_order(history: History, group: str, again: ReadAgain) -> bool:
    """Return whether the first member left, or lived on without the partition; not if it left for
    it had not polled in time."""
    found = history.groups.get(group)
    member = None if found is None else found.members.get(again.member)
    if found is None or member is None:
        return False
    if any(late.id == member.id for _, late in left_late(history, found)):
        return False
    lives_on = member.accepted is not None and member.accepted.time_ns > again.second.time_ns
    return member.left is not None or lives_on


def _is_explained(history: History, group: str, where: TopicPartition, again: ReadAgain) -> bool:
    """Return whether a group stands still among these offsets, or was set back to one of them."""
    found = history.groups.get(group)
    position = None if found is None else found.positions.get(where)
    stood = () if position is None else (*position.stood, *filter(None, (position.stands,)))
    committed = history.logs.committed.get((group, where))
    offsets = [each.offset for each in stood if each.is_found]
    offsets += [now.offset for _, now in committed.moved] if committed is not None else []
    return any(again.start <= each < again.end for each in offsets)


# ── too slow ─────────────────────────────────────────────────────────────────────────────────


class _Slow(NamedTuple):
    """A reader of a partition that does not keep up."""

    where: TopicPartition
    verb: str
    times_ns: tuple[int, int]
    numbers: tuple[int, int]
    lags: tuple[int, int]
    rates: tuple[float, float]
    """What is written, and what is read, in a second."""


def slow_readers(history: History) -> Iterator[Finding]:
    """Yield the groups that read more slowly than is written, so that their lag grows."""
    by_topic: dict[tuple[str, str], list[_Slow]] = {}
    keys = dict.fromkeys((*history.logs.committed, *history.reads.readings))
    for group, where in sorted(keys):
        slow = _slow(history, group, where)
        if slow is not None:
            by_topic.setdefault((group, where.topic), []).append(slow)
    for (group, topic), found in by_topic.items():
        known = {each.where for each in found}
        left = [where for name, where in keys if name == group and where.topic == topic]
        stuck = (_stuck(history, group, where) for where in left if where not in known)
        found += filter(None, stuck)
        found.sort(key=lambda each: each.lags[0] - each.lags[1])
        worst = found[0]
        noun = history.logs.logs[worst.where].noun
        written, read = (
            _rate(sum(rates)) for rates in zip(*(each.rates for each in found), strict=True)
        )
        of = partitions(topic, [str(n) for n in sorted(each.where.partition for each in found)])
        (first, last), (first_ns, last_ns) = worst.numbers, worst.times_ns
        grew = (
            f"From {clock(first_ns)} (#{first}) to {clock(last_ns)} (#{last}) its lag of"
            f" {topic}[{worst.where.partition}] grew from {worst.lags[0]} to {worst.lags[1]}."
        )
        rest = sum(_is_at_the_end(history, each, topic) for each in keys if each[0] == group)
        keeps = f"It keeps up with {count(rest, 'other partition')} of {topic}."
        yield Finding(
            Harm.LATENCY,
            "slow consumer",
            f"Group {group} does not keep up with {of}: {written} {noun}s/s are written, {read}"
            f" {worst.verb}.",
            worst.numbers,
            Subject("group", group),
            topic,
            evidence=(grew, *_who_has(history, group, found), *([keeps] if rest else ())),
        )


def _stuck(history: History, group: str, where: TopicPartition) -> _Slow | None:
    """Return how a log grew of which a group has committed nothing any more; None if it did not
    grow for so long."""
    committed, log = history.logs.committed.get((group, where)), history.logs.logs.get(where)
    moments = () if committed is None else committed.progress.moments
    end = None if log is None else log.ends.latest
    if committed is None or not committed.is_certain or end is None or not moments:
        return None
    first, lasted_ns = moments[-1], end.first.time_ns - moments[-1].time_ns
    lag = end.value - committed.commit.offset
    if lasted_ns < _SLOW_NS or lag - first.lag < _SLOW_LAG_MIN:
        return None
    return _Slow(
        where, "committed", (first.time_ns, end.first.time_ns), (first.number, end.first.number),
        (first.lag, lag), ((end.value - first.end) / lasted_ns * 1e9, 0.0),
    )  # fmt: skip


def _who_has(history: History, group: str, found: list[_Slow]) -> Iterator[str]:
    """Yield which members have these partitions, all the time; and how far they have fetched, where
    that is further than they commit."""
    has: dict[Client, list[_Slow]] = {}
    for each in found:
        reading = history.reads.readings.get((group, each.where))
        if reading is not None and reading.owner.since_ns <= each.times_ns[0]:
            has.setdefault(reading.owner.client, []).append(each)
    for (host, name), slow in sorted(has.items(), key=lambda each: each[1][0].where):
        topic, numbers = slow[0].where.topic, sorted(each.where.partition for each in slow)
        where = partitions(topic, [str(each) for each in numbers])
        text = f"{name or 'a client without a name'} ({host}) has {where}"
        _, ahead = max(_ahead(history, group, each.where) for each in slow)
        yield f"{text}{ahead}."


def _ahead(history: History, group: str, where: TopicPartition) -> tuple[int, str]:
    """Return by how many offsets a group has fetched more than it committed, and that in words."""
    reading = history.reads.readings.get((group, where))
    committed = history.logs.committed.get((group, where))
    position = None if reading is None else reading.position
    if position is None or committed is None:
        return 0, ""
    offset = committed.commit.offset
    if position - offset < _SLOW_LAG_MIN:
        return 0, ""
    name = f"{where.topic}[{where.partition}]"
    text = f"; it has fetched {name} up to {position}, and committed up to {offset}"
    return position - offset, text


def _is_at_the_end(history: History, key: tuple[str, TopicPartition], topic: str) -> bool:
    """Return whether a group is known to have committed all of a partition of a topic."""
    committed, log = history.logs.committed.get(key), history.logs.logs.get(key[1])
    if key[1].topic != topic or committed is None or log is None or not committed.is_certain:
        return False
    return log.records_end - committed.commit.offset < LAG_MIN


def _rate(per_s: float) -> str:
    return f"{per_s:{'.0f' if per_s >= 100 else '.3g'}}"


def _slow(history: History, group: str, where: TopicPartition) -> _Slow | None:
    """Return how slowly a group reads a partition, until its lag is the largest; None if it keeps
    up, or nothing proves it."""
    committed = history.logs.committed.get((group, where))
    reading = history.reads.readings.get((group, where))
    log = history.logs.logs.get(where)
    if log is None or (committed is not None and not committed.is_certain):
        return None
    progress, verb, offset = LagSamples(), "", 0
    if committed is not None:
        progress, verb, offset = committed.progress, "committed", committed.commit.offset
    elif reading is not None:
        progress, verb, offset = reading.progress, "fetched", reading.position or 0
    moments = progress.moments
    if len(moments) < _SLOW_MOMENTS_MIN:
        return None
    first, last = moments[0], max(moments, key=lambda each: (each.lag, each.time_ns))
    moments = [each for each in moments if each.time_ns <= last.time_ns]
    lasted_ns = last.time_ns - first.time_ns
    early = [each for each in moments if each.time_ns - first.time_ns <= lasted_ns / 3]
    late = [each for each in moments if last.time_ns - each.time_ns <= lasted_ns / 3]
    read, written = last.offset - first.offset, last.end - first.end
    grows = min(each.lag for each in late) > max(each.lag for each in early)
    grows = grows and last.lag - first.lag >= _SLOW_LAG_MIN
    still = log.records_end - offset >= last.lag / 2
    goes_on = late[0].offset < last.offset or len(late) == 1
    is_slow = (
        len(moments) >= _SLOW_MOMENTS_MIN
        and lasted_ns >= _SLOW_NS
        and 0 < read < _SLOW_SHARE * written
    )
    if not (is_slow and grows and still and goes_on):
        return None
    return _Slow(
        where, verb, (first.time_ns, last.time_ns), (first.number, last.number),
        (first.lag, last.lag), (written / lasted_ns * 1e9, read / lasted_ns * 1e9),
    )  # fmt: skip


# ── not at all ───────────────────────────────────────────────────────────────────────────────


def unread(history: History) -> Iterator[Finding]:
    """Yield the partitions that the clients of a group leave out, though they have records."""
    for topic in history.logs.topics.values():
        by_group: dict[str, list[ClientUse]] = {}
        for _, use in topic.did(FETCHED):
            for group in use.groups:
                by_group.setdefault(group, []).append(use)
        for group, uses in sorted(by_group.items()):
            yield from _unread(history, topic, group, uses)


def _unread(
    history: History, topic: TopicState, group: str, uses: list[ClientUse]
) -> Iterator[Finding]:
    asked = {partition for use in uses for partition in use.asked}
    last_ns = max(use.last.time_ns for use in uses)
    left_out: list[tuple[int, int]] = []
    for where, log in sorted(history.logs.logs.items()):
        ends = [each for each in log.ends if each.value > log.start]
        is_read = where.partition in asked or (group, where) in history.logs.committed
        if where.topic == topic.name and ends and not is_read:
            if last_ns - ends[0].first.time_ns >= _UNREAD_NS:
                left_out.append((where.partition, ends[0].first.number))
    if left_out and len(asked) > len(left_out):
        where = partitions(topic.name, [str(partition) for partition, _ in left_out])
        others = partitions(topic.name, [str(each) for each in sorted(asked)])
        it = "it has" if len(left_out) == 1 else "they have"
        yield Finding(
            Harm.LATENCY,
            "partition that nobody reads",
            f"No Fetch of {where} by group {group} is in the recording, though {it} records.",
            tuple(number for _, number in left_out),
            Subject("topic", topic.name),
            group=group,
            evidence=(
                f"Its clients fetched {others} until #{max(use.last.number for use in uses)}.",
                _WHY_UNREAD,
            ),
        )


# ── what is not followed ─────────────────────────────────────────────────────────────────────


def beyond_limits(history: History) -> Iterator[Finding]:
    """Yield that there is more than the history follows."""
    followers = history.logs, history.reads, history.groups, history.transactions
    if dropped := sum(each.dropped for each in followers):
        yield Finding(
            Harm.CURIOSITY,
            "more than is followed",
            "There are more topics, partitions, groups or transactions than kproxy follows at"
            f" once: findings leave some out ({count(dropped, 'time')}).",
            (),
            shown_by=("stats",),
        )
