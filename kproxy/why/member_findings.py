"""Findings about members of groups: shared ids, no Fetch, left late, ended right after a commit.

Invariant: only what was fetched and committed is told, never what an app did with it.
"""

from __future__ import annotations

from collections.abc import Iterator

from kproxy.exchange.endings import ConnectionEnd
from kproxy.exchange.words.wording import age, count, listed
from kproxy.history.group import POLL_TIMEOUT, Group
from kproxy.history.history import History
from kproxy.history.members import Member
from kproxy.history.standstills import Covered
from kproxy.why.finding import Finding, Harm
from kproxy.why.generations import assigned
from kproxy.why.sentences import client, clock, named, offsets, who

_TOLD_MAX = 3
"""Partitions that a finding names."""


def shared_instances(history: History) -> Iterator[Finding]:
    """Yield the static members whose group.instance.id another client has as well."""
    for group in history.groups:
        for instance, (holder, refused, times) in sorted(group.shared.items()):
            has = holder.joined or holder.ref
            more = f"; {count(times - 1, 'more request')} so" if times > 1 else ""
            yield Finding(
                Harm.LATENCY,
                "group.instance.id of two clients",
                f"Two clients use group.instance.id {instance} of group {group.name}: {client(has)}"
                f" ({named(has)}) has it, so {named(refused)} of {client(refused)} was refused with"
                f" {listed(refused.errors)}{more}. Each process needs a group.instance.id of its"
                " own.",
                (has.number, refused.number),
                ("why", f"group:{group.name}"),
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
    return Finding(
        Harm.DATA,
        "committed, then ended",
        f"{who(member.ref)} of group {group.name} committed"
        f" {topic}[{partition}]{offsets(last.first, last.offset - 1)} (#{commit.number})"
        f" {age((commit.time_ns - brought.completed_ns) / 1e6)} after {named(brought)} brought"
        f" {what}. That was its last commit: {age((first.time_ns - commit.time_ns) / 1e6)} later"
        f" its connection {end.connection} ended, first by the client ({first.how}), and it did not"
        f" leave the group. {'It' if one else 'They'} may be unprocessed.",
        (brought.number, commit.number),
        ("why", f"connection:{end.connection}"),
        topic,
    )


def quiet_members(history: History) -> Iterator[Finding]:
    """Yield the members that sent heartbeats and no Fetch for too long."""
    for group in history.groups:
        for member in group.members.values():
            quiet = member.quiet
            if quiet is None:
                continue
            given = quiet.given
            yield Finding(
                Harm.LATENCY,
                "member that does not fetch",
                f"{who(member.ref)} has {assigned(given.partitions)} in group {group.name}"
                f" ({named(given.ref)}), and sent heartbeats but no Fetch from"
                f" {clock(quiet.from_ns)} until {clock(quiet.until_ns)}, for longer than its"
                f" rebalance timeout ({age(member.rebalance_ms)}, the max.poll.interval.ms of most"
                " clients): it did not poll, or its partitions are paused, or it fetches on"
                " connections that are not recorded.",
                (given.ref.number,),
                ("why", f"group:{group.name}"),
                given.partitions[0].topic,
            )


def late_members(history: History) -> Iterator[Finding]:
    """Yield the members that left because they had not polled in time, as they say."""
    for group in history.groups:
        for each in group.happenings:
            member, left = each.member, each.ref
            if each.kind != "left" or member is None or POLL_TIMEOUT not in member.reason:
                continue
            topics = () if member.given is None else member.given.partitions
            yield Finding(
                Harm.LATENCY,
                "member that does not poll",
                f"{who(member.ref)} left group {group.name} ({named(left)}), and says why:"
                f" “{member.reason}” Its rebalance timeout is {age(member.rebalance_ms)}.",
                (left.number,),
                ("why", f"group:{group.name}"),
                topics[0].topic if topics else None,
            )
