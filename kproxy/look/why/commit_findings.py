"""Findings about what groups commit: set back or ahead, nothing at all; lag at the end.

Each is a function of the history. Only what was fetched and committed is told, never what an app
did with it.
"""

from __future__ import annotations

from collections.abc import Iterator

from kproxy.exchange.entities import TopicPartition
from kproxy.exchange.words.wording import count
from kproxy.history.history import History
from kproxy.history.logs import CommittedOffset
from kproxy.history.reads import Reading
from kproxy.history.ref import Client
from kproxy.history.rows import Commit
from kproxy.look.why.finding import Finding, Harm, Subject
from kproxy.look.why.sentences import at, named, offsets, who

LAG = "lag at the end"
"""The kind of a finding that a report need not repeat."""
LAG_MIN = 2
"""Offsets; one may be the marker of a transaction, which nobody has fetched."""
_LATE_LAG = 1000
_UNCOMMITTED_NS = 10_000_000_000


# ── commits that are not where they were ─────────────────────────────────────────────────────


def moved_commits(history: History) -> Iterator[Finding]:
    """Yield the commits that somebody set back, or ahead past records, as admins do."""
    found: dict[tuple[str, str, bool, Client], list[tuple[TopicPartition, Commit, Commit]]] = {}
    for (group, where), committed in sorted(history.logs.committed.items()):
        for before, now in committed.moved:
            key = group, where.topic, now.offset < before.offset, now.by.client
            found.setdefault(key, []).append((where, before, now))
    for (group, topic, is_back, _), moved in found.items():
        moved.sort(key=lambda each: -abs(each[2].offset - each[1].offset))
        (_, partition), before, now = moved[0]
        others = f" and {count(len(moved) - 1, 'more time')}" if len(moved) > 1 else ""
        proof = f"{named(now.by)} of {at(now.by)} did it"
        proof += "" if now.member else ", which names no member, as tools do that reset offsets"
        after = "come again" if is_back else "are passed over, if they were not processed before"
        span = sorted((before.offset, now.offset))
        yield Finding(
            Harm.DATA,
            "commits set back" if is_back else "commits set ahead",
            f"{who(now.by)} set group {group} {'back' if is_back else 'ahead'} in"
            f" {topic}[{partition}] from {before.offset} to {now.offset}{others}.",
            (before.by.number, now.by.number),
            Subject("group", group),
            topic,
            evidence=(
                f"{proof}; {named(before.by)} of {who(before.by)} had committed {before.offset}.",
                f"Records {offsets(span[0], span[1] - 1)} {after}.",
            ),
        )


def uncommitted(history: History) -> Iterator[Finding]:
    """Yield the groups that fetch the same records again, for no commit of them is there."""
    for group, (where, reading) in without_commits(history).items():
        first, last = reading.again[0], reading.again[-1]
        proof = (
            f"{where.topic}[{where.partition}]{offsets(first.start, first.end - 1)} came with"
            f" {named(first.first)} of {who(first.first)}, and again with {named(last.second)} of"
            f" {who(last.second)}."
        )
        yield Finding(
            Harm.DATA,
            "group that commits nothing",
            f"Group {group} committed nothing, and fetched the same records again.",
            (first.first.number, last.second.number),
            Subject("group", group),
            where.topic,
            evidence=(proof, "No commit of the group is in the recording."),
            at_end=True,
        )


def without_commits(history: History) -> dict[str, tuple[TopicPartition, Reading]]:
    """Return the groups without a commit, and a partition that each fetched again and again, or
    later than clients commit by themselves."""
    committing = {group for group, _ in history.logs.committed}
    committing.update(each.name for each in history.groups if each.committing)
    found: dict[str, tuple[TopicPartition, Reading]] = {}
    for (group, where), reading in sorted(history.reads.readings.items()):
        again = () if group in committing else reading.again
        if len(again) > 1 or (
            again and again[-1].second.time_ns - again[0].first.time_ns >= _UNCOMMITTED_NS
        ):
            found.setdefault(group, (where, reading))
    return found


# ── lag ──────────────────────────────────────────────────────────────────────────────────────


def lag(history: History) -> Iterator[Finding]:
    """Yield how far the last commits of groups are behind the ends of logs."""
    behind: dict[tuple[str, str], list[tuple[int, CommittedOffset, int]]] = {}
    maybe_more: set[tuple[str, str]] = set()
    for (group, where), each in history.logs.committed.items():
        log = history.logs.logs.get(where)
        if not each.is_certain or log is None or log.ends.latest is None:
            continue
        missing = log.records_end - each.commit.offset
        if 0 < missing < LAG_MIN:
            maybe_more.add((group, where.topic))
        elif missing >= LAG_MIN:
            found = behind.setdefault((group, where.topic), [])
            found.append((missing, each, log.ends.latest.first.number))
    for (group, topic), found in sorted(behind.items(), key=lambda each: each[0]):
        found.sort(key=lambda each: (-each[0], each[1].where))
        total = sum(each[0] for each in found)
        missing, worst, number = found[0]
        partition, offset = f"{topic}[{worst.where.partition}]", worst.commit.offset
        most = "" if len(found) == 1 else f"; {partition} is {missing} of them"
        least = "at least " if len(found) > 1 and (group, topic) in maybe_more else ""
        proof = (
            f"{partition} is committed up to {offset} ({named(worst.commit.by)}), its end is"
            f" {offset + missing} (#{number})."
        )
        yield Finding(
            Harm.LATENCY if total >= _LATE_LAG else Harm.CURIOSITY,
            LAG,
            f"The last commits of group {group} are {least}{count(total, 'offset')} behind the end"
            f" of {partition if len(found) == 1 else topic}{most}.",
            (worst.commit.by.number, number),
            Subject("group", group),
            topic,
            evidence=(proof,),
            at_end=True,
        )
