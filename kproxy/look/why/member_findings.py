"""Findings about members of groups: shared ids, no Fetch, left late, ended right after a commit.

Invariant: only what was fetched and committed is told, never what an app did with it.
"""

from __future__ import annotations

from collections.abc import Iterator

from kproxy.exchange.endings import ConnectionEnd
from kproxy.exchange.words.wording import age, count, listed
from kproxy.history.group import POLL_TIMEOUT, Group
from kproxy.history.history import History
from kproxy.history.members import Happening, Member
from kproxy.history.ref import Ref
from kproxy.history.standstills import Covered
from kproxy.look.why.finding import Finding, Harm, Subject, numbered
from kproxy.look.why.generations import assigned
from kproxy.look.why.sentences import client, clock, named, offsets, who

_TOLD_MAX = 3
"""Partitions that a finding names."""
_HANGS_UP_NS = 1_000_000_000
"""Who ends the connection so soon after leaving, closes."""
_LATE_MS = 3000.0
"""Clients look so seldom, and a quarter of the limit, whether the app has polled."""


def shared_instances(history: History) -> Iterator[Finding]:
    """Yield the static members whose group.instance.id another client has as well."""
    for group in history.groups:
        for instance, (holder, refused, times) in sorted(group.shared.items()):
            has = holder.joined or holder.ref
            more = f"; {count(times - 1, 'more request')} so" if times > 1 else ""
            told = (
                f"{named(refused)} of {client(refused)} was refused with {listed(refused.errors)}"
            )
            yield Finding(
                Harm.LATENCY,
                "group.instance.id of two clients",
                f"Two clients use group.instance.id {instance} of group {group.name}.",
                (has.number, refused.number),
                Subject("group", group.name),
                evidence=(
                    f"{client(has)} ({named(has)}) has it, so {told}{more}.",
                    "Each process needs a group.instance.id of its own.",
                ),
            )


def unprocessed(history: History) -> Iterator[Finding]:
    """Yield what a member committed, and ended. Where the next life ends at the offset that was
    committed, the app commits behind its work: what was committed had been processed."""
    for group in history.groups:
        for member, covered, end in group.lost.values():
            for each in covered[:_TOLD_MAX]:
                position = group.positions.get(each.where)
                stands = None if position is None else position.stands
                if stands is None or stands.offset != each.offset or len(stands.lives) < 2:
                    yield _unprocessed(group, member, each, end)


def _unprocessed(group: Group, member: Member, last: Covered, end: ConnectionEnd) -> Finding:
    (topic, partition), first = last.where, end.first
    assert first is not None
    brought, commit = last.brought.ref, last.commit
    one = last.first == last.offset - 1
    what = "this record" if one else "the last of these records"
    where = f"{topic}[{partition}]{offsets(last.first, last.offset - 1)}"
    proof = (
        f"It committed for group {group.name} with {named(commit)},"
        f" {age((commit.time_ns - brought.completed_ns) / 1e6)} after {named(brought)} brought"
        f" {what}. That was its last commit: {age((first.time_ns - commit.time_ns) / 1e6)}"
        f" later its connection {end.connection} ended, first by the client ({first.how}), and it"
        " did not leave the group."
    )
    return Finding(
        Harm.DATA,
        "committed, then ended",
        f"{who(member.ref)} committed {where}, and ended: {'it' if one else 'they'} may be"
        " unprocessed.",
        (brought.number, commit.number),
        Subject("connection", end.connection),
        topic,
        evidence=(proof,),
    )


def quiet_members(history: History) -> Iterator[Finding]:
    """Yield the members that sent heartbeats and no Fetch for too long."""
    for group in history.groups:
        for member in group.members.values():
            quiet = member.quiet
            if quiet is None:
                continue
            given = quiet.given
            proof = (
                f"It has {assigned(given.partitions)} ({named(given.ref)}), and sent heartbeats but"
                f" no Fetch from {clock(quiet.from_ns)} until {clock(quiet.until_ns)}, for longer"
                f" than its rebalance timeout ({age(member.rebalance_ms)}, the"
                " max.poll.interval.ms of most clients)."
            )
            yield Finding(
                Harm.LATENCY,
                "member that does not fetch",
                f"{who(member.ref)} of group {group.name} fetched nothing for"
                f" {age((quiet.until_ns - quiet.from_ns) / 1e6)}.",
                (given.ref.number,),
                Subject("group", group.name),
                given.partitions[0].topic,
                evidence=(proof, _WHY_QUIET),
            )


_WHY_QUIET = (
    "It did not poll, or its partitions are paused, or it fetches on connections that are not"
    " recorded."
)


def late_members(history: History) -> Iterator[Finding]:
    """Yield the members that left because they had not polled in time: they say so, or they left as
    clients do then, that long after their last records or commit, and did not hang up."""
    for group in history.groups:
        found: dict[str, list[tuple[Happening, Member]]] = {}
        for each, member in left_late(history, group):
            found.setdefault(who(member.ref), []).append((each, member))
        for name, left in found.items():
            yield _late(group, name, left)


def left_late(history: History, group: Group) -> Iterator[tuple[Happening, Member]]:
    """Yield who left a group because it had not polled in time."""
    for each in group.happenings:
        member = each.member
        if each.kind in ("left", "leaves") and member is not None:
            if POLL_TIMEOUT in member.reason or _leaves_late(history, each.ref, member):
                yield each, member


def _latest(member: Member) -> Ref | None:
    """Return what shows last that the app of a member went on."""
    refs = (member.given.ref if member.given else None, member.brought, member.commit)
    return max(filter(None, refs), key=lambda each: each.completed_ns, default=None)


def _leaves_late(history: History, left: Ref, member: Member) -> bool:
    latest, connection = _latest(member), history.connections.get(left.connection)
    end = None if connection is None else connection.end
    hangs_up = end is not None and (end.first or end).time_ns - left.time_ns <= _HANGS_UP_NS
    if latest is None or member.brought is None or hangs_up or member.rebalance_ms <= 0:
        return False
    idle_ms = (left.time_ns - latest.time_ns) / 1e6
    return 0 <= idle_ms - member.rebalance_ms <= _LATE_MS + member.rebalance_ms / 4


def _late(group: Group, name: str, left: list[tuple[Happening, Member]]) -> Finding:
    (first, member), limit = left[0], f"max.poll.interval.ms ({age(left[0][1].rebalance_ms)})"
    ref, latest = first.ref, _latest(member)
    says = f", and says why: “{member.reason}”" if POLL_TIMEOUT in member.reason else ""
    text = f"{name} left group {group.name} as clients do that do not poll within {limit}."
    if says:
        text = f"{name} did not poll within {limit}, and left group {group.name}."
    evidence = [f"It left with {named(ref)} ({clock(ref.time_ns)}){says or '.'}"]
    if latest is not None and not says:
        idle = age((ref.time_ns - latest.time_ns) / 1e6)
        last = f"{idle} after {named(latest)}, and its connection stayed"
        evidence = [f"It left with {named(ref)} ({clock(ref.time_ns)}), {last}."]
    if first.again is not None:
        evidence.append(f"{named(first.again)} of {clock(first.again.time_ns)} joins again.")
    numbers = tuple(each.ref.number for each, _ in left)
    if len(left) > 1:
        evidence.append(f"So it left {len(left)} times: {numbered(numbers)}.")
    topics = () if member.given is None else member.given.partitions
    return Finding(
        Harm.DATA, "member that does not poll", text, numbers, Subject("group", group.name),
        topics[0].topic if topics else None,
        evidence=(*evidence, _POLL_SOONER),
    )  # fmt: skip


_POLL_SOONER = (
    "What helps: less work between two polls (max.poll.records), or a larger max.poll.interval.ms."
)
