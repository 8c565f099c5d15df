"""Findings about members of groups: those that do not fetch, and those that committed early.

::

    JoinGroup, SyncGroup, ConsumerGroupHeartbeat ─▶ GroupMember: what it has been assigned
    Fetch ─▶ Reached: how far a group has fetched a partition, and in which generation
    OffsetCommit ─▶ LastCommit: what it newly covers ◀─ Fetch that was answered: the member lives
                        └◀─ ConnectionEnd ─▶ the end of a member

A Fetch names no group. It is that of a group if its client, by host and client id, is in one group
only, and the group has assigned the partition. Where that is not certain nothing is found.

Invariants: memory is bounded by members and by partitions of groups. Only what was fetched and
committed is told, never what an app did with it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import attrs

from kproxy.exchange.deletions import covers, deletions
from kproxy.exchange.endings import ConnectionEnd
from kproxy.exchange.entities import TopicPartition
from kproxy.exchange.exchange import Exchange
from kproxy.exchange.words.wording import age, listed, partitions
from kproxy.history.items import Gap, Item
from kproxy.protocol.record_batch import read_heads
from kproxy.why.committed import (
    Assignment,
    Client,
    Commit,
    Commits,
    assignment,
    client_of,
)
from kproxy.why.finding import Finding, Harm
from kproxy.why.sentences import clock, named, offsets, who

ENDED_MS = 10_000
"""A connection that ended within this time after a commit ended soon after it."""
_FETCHES_KEPT = 8
_MEMBERS_MAX = 10_000
_EARLY_MAX = 100
_TOLD_MAX = 3
"""Partitions that a finding names."""


@attrs.frozen
class Quiet:
    """A time in which a member sent heartbeats and no Fetch."""

    from_ns: int
    until_ns: int
    assigned: frozenset[TopicPartition]
    assigned_by: str
    assigned_number: int


@attrs.define(eq=False)
class GroupMember:
    """A member of a group."""

    group: str
    id: str
    client: Client
    name: str
    """Client id and host."""
    poll_ms: int = 0
    """Its rebalance timeout: most consumers send their max.poll.interval.ms."""
    is_static: bool = False
    assigned: frozenset[TopicPartition] = frozenset()
    assigned_by: str = ""
    assigned_number: int = 0
    assigned_ns: int = 0
    generation: int = 0
    quiet_from_ns: int = 0
    """When it was assigned what it has, or its client fetched last."""
    alive_ns: int = 0
    """Its latest heartbeat that was accepted."""
    fetches_on: int | None = None
    """The connection on which its client waits for the response to a Fetch that a rule keeps."""
    quiet: Quiet | None = None
    """The first time without a Fetch that is longer than `poll_ms`."""


@attrs.frozen
class Fetched:
    """Offsets that one Fetch brought of a partition."""

    first: int
    end: int
    """One past the last; `first` if there were only markers of transactions."""
    asked: int
    """The offset that it asked for."""
    past: int
    """One past its last batch, markers included: what consumers ask for next."""
    completed_ns: int
    by: str
    number: int
    who: str


@attrs.define(eq=False)
class Reached:
    """How far a group has fetched a partition in one generation."""

    generation: int
    first: int
    end: int
    past: int
    """As of `Fetched`: whoever asks for more than that, seeks."""
    latest: Fetched


@attrs.frozen
class LastCommit:
    """The latest commit of a member, which newly covers records."""

    member: GroupMember
    commit: Commit
    first: int
    """The first offset that the group had not committed before."""
    fetched: Fetched
    """What brought the last of the records."""
    connection: int


@attrs.define(eq=False)
class MemberFindings:
    """Finds members that do not fetch, or committed what they may not have processed."""

    _commits: Commits = attrs.field(factory=Commits, init=False)
    _members: dict[tuple[str, str], GroupMember] = attrs.field(
        factory=dict[tuple[str, str], GroupMember], init=False
    )
    _by_client: dict[Client, list[GroupMember]] = attrs.field(
        factory=dict[Client, list[GroupMember]], init=False
    )
    _owner: dict[tuple[str, TopicPartition], GroupMember] = attrs.field(
        factory=dict[tuple[str, TopicPartition], GroupMember], init=False
    )
    _positions: dict[int, dict[TopicPartition, int]] = attrs.field(
        factory=dict[int, dict[TopicPartition, int]], init=False
    )
    """Connection → partition → the offset that its Fetch requests named last: those of a session
    name what changed only."""
    _reached: dict[tuple[str, TopicPartition], Reached] = attrs.field(
        factory=dict[tuple[str, TopicPartition], Reached], init=False
    )
    _recent: dict[tuple[Client, TopicPartition], deque[Fetched]] = attrs.field(
        factory=dict[tuple[Client, TopicPartition], deque[Fetched]], init=False
    )
    _last: dict[tuple[str, str], list[LastCommit]] = attrs.field(
        factory=dict[tuple[str, str], list[LastCommit]], init=False
    )
    """Group and member → what its latest OffsetCommit newly covers, by partition; nothing if a
    Fetch that its client sent afterwards was answered."""
    _lost: dict[tuple[str, str], list[tuple[LastCommit, ConnectionEnd]]] = attrs.field(
        factory=dict[tuple[str, str], list[tuple[LastCommit, ConnectionEnd]]], init=False
    )
    """Group and member → such commits before its end."""
    _before_gap: list[Finding] = attrs.field(factory=list[Finding], init=False)
    _left: list[Finding] = attrs.field(factory=list[Finding], init=False)
    _latest: dict[tuple[str, TopicPartition], Commit] = attrs.field(
        factory=dict[tuple[str, TopicPartition], Commit], init=False
    )

    def add(self, item: Item) -> None:
        """Take the next item."""
        if isinstance(item, Gap):
            self._leave_all()
            return
        if isinstance(item, ConnectionEnd):
            self._end(item)
            return
        for gone in deletions(item):
            for group, where in [each for each in self._latest if covers(gone, each[0], *each[1])]:
                del self._latest[group, where]
            if gone[0] is None and gone[1] is not None:
                self._forget(gone[1])
        if item.api == "OffsetCommit":
            self._commit_again(item)
        for each in self._commits.add(item):
            self._committed(each, item)
        match item.api:
            case "JoinGroup" | "SyncGroup" | "Heartbeat" | "ConsumerGroupHeartbeat":
                self._member(item)
            case "LeaveGroup":
                self._leave(item)
            case "Fetch":
                self._fetch(item)
            case _:
                pass

    def found(self) -> list[Finding]:
        """Return the findings."""
        return [*self._before_gap, *self._unprocessed(), *self._silent(), *self._left]

    def _leave_all(self) -> None:
        """Take a gap: keep what is found, and forget what is open."""
        found = [*self._unprocessed(), *self._silent()]
        self._before_gap += found[: max(0, _EARLY_MAX - len(self._before_gap))]
        self._commits = Commits()
        for table in (
            self._members, self._by_client, self._owner, self._positions, self._reached,
            self._recent, self._last, self._lost, self._latest,
        ):  # fmt: skip
            table.clear()

    def _forget(self, topic: str) -> None:
        tables: list[dict[Any, Any]] = [self._reached, self._recent]
        for table in tables:
            for key in [each for each in table if each[1].topic == topic]:
                del table[key]
        for by_partition in self._positions.values():
            for where in [each for each in by_partition if each.topic == topic]:
                del by_partition[where]

    # ---- members

    def _member(self, exchange: Exchange) -> None:
        request, response = exchange.request, exchange.response
        if request is None or response is None or response.error_code:
            return
        member_id = getattr(response, "member_id", "") or request.member_id
        key = request.group_id, member_id
        if key not in self._members and len(self._members) >= _MEMBERS_MAX:
            return
        if key not in self._members:
            client = client_of(exchange)
            self._members[key] = GroupMember(*key, client, who(exchange))
            self._by_client.setdefault(client, []).append(self._members[key])
        member = self._members[key]
        member.is_static = member.is_static or bool(getattr(request, "group_instance_id", None))
        member.poll_ms = max(member.poll_ms, getattr(request, "rebalance_timeout_ms", 0))
        self._lost.pop(key, None)  # it lives
        if getattr(request, "member_epoch", 0) < 0:
            self._gone(member)
            return
        given = assignment(exchange)
        if given is not None:
            self._assign(member, given, exchange)
        self._alive(member, exchange)

    def _assign(self, member: GroupMember, given: Assignment, exchange: Exchange) -> None:
        if (given.partitions, given.generation) != (member.assigned, member.generation):
            member.assigned, member.generation = given.partitions, given.generation
            member.assigned_by, member.assigned_number = named(exchange), exchange.number
            member.assigned_ns = member.quiet_from_ns = exchange.completed_ns
        for where in given.partitions:
            self._owner[member.group, where] = member

    def _alive(self, member: GroupMember, exchange: Exchange) -> None:
        if not member.assigned or not member.poll_ms:
            return
        member.alive_ns = exchange.time_ns
        if member.fetches_on is not None:
            member.quiet_from_ns = exchange.time_ns
        if member.alive_ns - member.quiet_from_ns > member.poll_ms * 1_000_000:
            if member.quiet is None or member.quiet.from_ns == member.quiet_from_ns:
                member.quiet = Quiet(
                    member.quiet_from_ns, member.alive_ns, member.assigned, member.assigned_by,
                    member.assigned_number,
                )  # fmt: skip

    def _leave(self, exchange: Exchange) -> None:
        request, response = exchange.request, exchange.response
        if request is None or response is None or exchange.errors:
            return
        for each in getattr(request, "members", None) or [request]:
            member = self._members.get((request.group_id, each.member_id))
            if member is None:
                continue
            reason = getattr(each, "reason", None) or ""
            if "poll timeout" in reason and len(self._left) < _EARLY_MAX:
                self._left.append(_polled_too_late(member, exchange, reason))
            self._gone(member)

    def _gone(self, member: GroupMember) -> None:
        """Take the end of a member that says so itself."""
        member.assigned = frozenset()
        self._lost.pop((member.group, member.id), None)
        self._last.pop((member.group, member.id), None)

    # ---- what is fetched

    def _fetch(self, exchange: Exchange) -> None:
        request = exchange.request
        if request is None:
            return
        for member in self._by_client.get(client_of(exchange), ()):
            if member.quiet is not None and exchange.time_ns <= member.quiet.until_ns:
                member.quiet = None
            member.quiet_from_ns = max(member.quiet_from_ns, exchange.completed_ns)
            member.fetches_on = exchange.connection if exchange.undelivered else None
            last = self._last.get((member.group, member.id))
            if last and exchange.response is not None and exchange.time_ns > last[0].commit.time_ns:
                del self._last[member.group, member.id]  # it goes on after the commit
        positions = self._positions.setdefault(exchange.connection, {})
        for topic in request.topics:
            name = topic.topic or exchange.topic_names.text(topic.topic_id)
            for each in topic.partitions:
                where = TopicPartition(name, each.partition)
                positions[where] = each.fetch_offset
        if exchange.may_be_lost or exchange.response_told is not None:
            return  # the client got something else
        for each in exchange.facts.records:
            fetched = self._fetched(exchange, each.where, each.data)
            if fetched is not None:
                self._progress(exchange, each.where, fetched)

    def _fetched(self, exchange: Exchange, where: TopicPartition, data: bytes) -> Fetched | None:
        found = read_heads(data)
        heads = [each for each in found if not each.control]
        position = self._positions.get(exchange.connection, {}).get(where)
        if not found or position is None or found[-1].last_offset < position:
            return None
        first = end = position
        if heads and heads[-1].last_offset >= position:
            first, end = max(position, heads[0].offset), heads[-1].last_offset + 1
        by = exchange.completed_ns, named(exchange), exchange.number, who(exchange)
        return Fetched(first, end, position, found[-1].last_offset + 1, *by)

    def _progress(self, exchange: Exchange, where: TopicPartition, fetched: Fetched) -> None:
        group = self._commits.group(exchange, where)
        owner = None if group is None else self._owner.get((group, where))
        if group is None or owner is None or owner.client != client_of(exchange):
            return
        if exchange.time_ns < owner.assigned_ns:
            return  # it was sent for an earlier assignment
        key = group, where
        reached = self._reached.get(key)
        if fetched.first == fetched.end:  # only markers: it will go on behind them
            if reached is not None and reached.generation == owner.generation:
                reached.past = fetched.past
            return
        recent = self._recent.setdefault((owner.client, where), deque(maxlen=_FETCHES_KEPT))
        recent.append(fetched)
        if reached is None or reached.generation != owner.generation:
            span = fetched.first, fetched.end, fetched.past
            self._reached[key] = Reached(owner.generation, *span, fetched)
        elif fetched.asked > reached.past:  # it seeks
            reached.first, reached.end = fetched.first, fetched.end
            reached.past, reached.latest = fetched.past, fetched
        else:
            reached.first = min(reached.first, fetched.first)
            reached.end, reached.latest = max(reached.end, fetched.end), fetched
            reached.past = max(reached.past, fetched.past)

    # ---- what is committed

    def _commit_again(self, exchange: Exchange) -> None:
        """Take an OffsetCommit, before its offsets: its member lives."""
        request = exchange.request
        key = ("", "") if request is None else (request.group_id, request.member_id)
        self._last.pop(key, None)
        self._lost.pop(key, None)

    def _committed(self, commit: Commit, exchange: Exchange) -> None:
        if not commit.certain:
            self._latest.pop((commit.group, commit.where), None)  # how far it is, is not known
            return
        before = self._latest.get((commit.group, commit.where))
        self._latest[commit.group, commit.where] = commit
        key = commit.group, getattr(exchange.request, "member_id", "")
        member = self._members.get(key)
        reached = self._reached.get((commit.group, commit.where))
        if exchange.api != "OffsetCommit" or member is None or member.is_static or reached is None:
            return
        first = reached.first if before is None else max(reached.first, before.offset)
        for each in self._recent.get((member.client, commit.where), ()):
            is_before = each.completed_ns <= commit.time_ns
            if is_before and first < commit.offset and each.first < commit.offset <= each.end:
                last = LastCommit(member, commit, first, each, exchange.connection)
                self._last.setdefault(key, []).append(last)
                return

    def _end(self, end: ConnectionEnd) -> None:
        self._positions.pop(end.connection, None)
        for member in self._members.values():
            if member.fetches_on == end.connection:
                member.fetches_on = None
        first = end.first
        for key in [k for k, last in self._last.items() if last[0].connection == end.connection]:
            last = self._last.pop(key)
            if first is None or first.side != "client" or len(self._lost) >= _EARLY_MAX:
                continue
            if 0 <= first.time_ns - last[0].commit.time_ns <= ENDED_MS * 1_000_000:
                self._lost[key] = [(each, end) for each in last]

    # ---- findings

    def _unprocessed(self) -> Iterator[Finding]:
        for (group, _), lost in sorted(self._lost.items()):
            for last, end in lost[:_TOLD_MAX]:
                commit, fetched = last.commit, last.fetched
                (topic, partition), first = commit.where, end.first
                assert first is not None
                text = offsets(last.first, commit.offset - 1)
                one = last.first == commit.offset - 1
                brought = "this record" if one else "the last of these records"
                after_ms = (commit.time_ns - fetched.completed_ns) / 1e6
                ended_ms = (first.time_ns - commit.time_ns) / 1e6
                yield Finding(
                    Harm.DATA,
                    "committed, then ended",
                    f"{last.member.name} of group {group} committed {topic}[{partition}]{text}"
                    f" (#{commit.number}) {age(after_ms)} after {fetched.by} brought {brought}."
                    f" That was its last commit: {age(ended_ms)} later its connection"
                    f" {end.connection} ended, first by the client ({first.how}), and it did not"
                    f" leave the group. {'It' if one else 'They'} may be unprocessed.",
                    (fetched.number, commit.number),
                    ("why", f"connection:{end.connection}"),
                    topic,
                )

    def _silent(self) -> Iterator[Finding]:
        for member in self._members.values():
            quiet = member.quiet
            if quiet is None:
                continue
            by_topic: dict[str, list[str]] = {}
            for topic, partition in sorted(quiet.assigned):
                by_topic.setdefault(topic, []).append(str(partition))
            has = listed(partitions(*each) for each in by_topic.items())
            yield Finding(
                Harm.LATENCY,
                "member that does not fetch",
                f"{member.name} has {has} in group {member.group} ({quiet.assigned_by}), and sent"
                f" heartbeats but no Fetch from {clock(quiet.from_ns)} until"
                f" {clock(quiet.until_ns)}, for longer than its rebalance timeout"
                f" ({age(member.poll_ms)}, the max.poll.interval.ms of most clients): it did not"
                " poll, or its partitions are paused, or it fetches on connections that are not"
                " recorded.",
                (quiet.assigned_number,),
                ("why", f"group:{member.group}"),
                next(iter(by_topic), None),
            )


def _polled_too_late(member: GroupMember, exchange: Exchange, reason: str) -> Finding:
    topic: Any = min((each.topic for each in member.assigned), default=None)
    return Finding(
        Harm.LATENCY,
        "member that does not poll",
        f"{member.name} left group {member.group} ({named(exchange)}), and says why:"
        f" “{reason}” Its rebalance timeout is {age(member.poll_ms)}.",
        (exchange.number,),
        ("why", f"group:{member.group}"),
        topic,
    )
