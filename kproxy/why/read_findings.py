"""Findings about what consumer groups read: fetched twice, lag.

::

    JoinGroup, SyncGroup, ConsumerGroupHeartbeat ─▶ GroupMember: what it has been assigned
    Fetch ─▶ Reached: how far a group has fetched a partition, and in which generation
    OffsetCommit, EndTxn ─▶ Commit: how far a group has committed it

A Fetch names no group. It is that of a group if its client, by host and client id, is in one group
only, and the group has assigned the partition. Where that is not certain nothing is found.

Invariants: memory is bounded by members and by partitions of groups. Only what was fetched and
committed is told, never what an app did with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs

from kproxy.exchange.deletions import covers, deletions
from kproxy.exchange.endings import ConnectionEnd
from kproxy.exchange.entities import TopicPartition
from kproxy.exchange.exchange import Exchange
from kproxy.exchange.words.wording import count
from kproxy.history.items import Gap, Item
from kproxy.protocol.record_batch import Head, read_heads
from kproxy.why.committed import (
    Assignment,
    Client,
    Commit,
    Commits,
    assignment,
    client_of,
)
from kproxy.why.finding import Finding, Harm
from kproxy.why.sentences import named, offsets, who
from kproxy.why.written import writes

LAG = "lag at the end"
"""The kind of a finding that a report need not repeat."""
LAG_MIN = 2
"""Offsets; one may be the marker of a transaction, which nobody has fetched."""
_LATE_LAG = 1000
_MEMBERS_MAX = 10_000
_EARLY_MAX = 100
_AGAIN_MAX = 100
_TOLD_MAX = 3
"""Partitions that a finding names."""


@attrs.define(eq=False)
class GroupMember:
    """A member of a group."""

    group: str
    id: str
    client: Client
    name: str
    """Client id and host."""
    assigned: frozenset[TopicPartition] = frozenset()
    assigned_ns: int = 0
    generation: int = 0


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
    earlier: Reached | None = None
    """The same in the generation before, without its own `earlier`."""


@attrs.define(eq=False)
class Again:
    """A stretch of a partition that a group fetched a second time."""

    generations: tuple[int, int]
    first: Fetched
    second: Fetched
    start: int
    end: int
    past: int
    """As of `Fetched`, of the last one."""


@attrs.define(eq=False)
class ReadFindings:
    """Finds what groups fetched twice, and have not read yet."""

    _commits: Commits = attrs.field(factory=Commits, init=False)
    _members: dict[tuple[str, str], GroupMember] = attrs.field(
        factory=dict[tuple[str, str], GroupMember], init=False
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
    _again: dict[tuple[str, TopicPartition], list[Again]] = attrs.field(
        factory=dict[tuple[str, TopicPartition], list[Again]], init=False
    )
    """At most `_AGAIN_MAX` of each."""
    _before_gap: list[Finding] = attrs.field(factory=list[Finding], init=False)
    _latest: dict[tuple[str, TopicPartition], Commit] = attrs.field(
        factory=dict[tuple[str, TopicPartition], Commit], init=False
    )
    _ends: dict[TopicPartition, tuple[int, int]] = attrs.field(
        factory=dict[TopicPartition, tuple[int, int]], init=False
    )
    """Partition → its end, and the exchange that shows it."""
    _markers: dict[TopicPartition, tuple[int, int]] = attrs.field(
        factory=dict[TopicPartition, tuple[int, int]], init=False
    )
    """Partition → offsets of markers of transactions, with no record between them: the first, and
    one past the last; the latest that were fetched."""

    def add(self, item: Item) -> None:
        """Take the next item."""
        if isinstance(item, Gap):
            self._leave_all()
            return
        if isinstance(item, ConnectionEnd):
            self._positions.pop(item.connection, None)
            return
        for gone in deletions(item):
            for group, where in [each for each in self._latest if covers(gone, each[0], *each[1])]:
                del self._latest[group, where]
            if gone[0] is None and gone[1] is not None:
                self._forget(gone[1])
        for each in self._commits.add(item):
            self._committed(each)
        match item.api:
            case "JoinGroup" | "SyncGroup" | "Heartbeat" | "ConsumerGroupHeartbeat":
                self._member(item)
            case "LeaveGroup":
                self._leave(item)
            case "Fetch":
                self._fetch(item)
            case "Produce":
                for each in writes(item):
                    if each.last_offset is not None:
                        self._reach(each.where, each.last_offset + 1, item.number)
            case _:
                pass

    def found(self) -> list[Finding]:
        """Return the findings."""
        return [*self._before_gap, *self._twice(), *self._lag()]

    def _leave_all(self) -> None:
        """Take a gap: keep what is found, and forget what is open."""
        found = [*self._twice()]
        self._before_gap += found[: max(0, _EARLY_MAX - len(self._before_gap))]
        self._commits = Commits()
        for table in (
            self._members, self._owner, self._positions, self._reached, self._again, self._latest,
            self._ends, self._markers,
        ):  # fmt: skip
            table.clear()

    def _forget(self, topic: str) -> None:
        for key in [each for each in self._reached if each[1].topic == topic]:
            del self._reached[key]
        for by_partition in (self._ends, *self._positions.values()):
            for where in [each for each in by_partition if each.topic == topic]:
                del by_partition[where]
        for where in [each for each in self._markers if each.topic == topic]:
            del self._markers[where]

    def _reach(self, where: TopicPartition, end: int, number: int) -> None:
        if end > self._ends.get(where, (0, 0))[0]:
            self._ends[where] = end, number

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
            self._members[key] = GroupMember(*key, client_of(exchange), who(exchange))
        member = self._members[key]
        if getattr(request, "member_epoch", 0) < 0:
            member.assigned = frozenset()
            return
        given = assignment(exchange)
        if given is not None:
            self._assign(member, given, exchange)

    def _assign(self, member: GroupMember, given: Assignment, exchange: Exchange) -> None:
        if (given.partitions, given.generation) != (member.assigned, member.generation):
            member.assigned, member.generation = given.partitions, given.generation
            member.assigned_ns = exchange.completed_ns
        for where in given.partitions:
            self._owner[member.group, where] = member

    def _leave(self, exchange: Exchange) -> None:
        request, response = exchange.request, exchange.response
        if request is None or response is None or exchange.errors:
            return
        for each in getattr(request, "members", None) or [request]:
            member = self._members.get((request.group_id, each.member_id))
            if member is not None:
                member.assigned = frozenset()

    # ---- what is fetched

    def _fetch(self, exchange: Exchange) -> None:
        request = exchange.request
        if request is None:
            return
        positions = self._positions.setdefault(exchange.connection, {})
        for topic in request.topics:
            name = topic.topic or exchange.topic_names.text(topic.topic_id)
            for each in topic.partitions:
                where = TopicPartition(name, each.partition)
                positions[where] = each.fetch_offset
        for result in exchange.facts.results:
            if not result.error_code and not exchange.injected:
                self._reach(result.where, result.offset, exchange.number)
        if exchange.may_be_lost or exchange.response_told is not None:
            return  # the client got something else
        for each in exchange.facts.records:
            fetched = self._fetched(exchange, each.where, each.data)
            if fetched is not None:
                self._progress(exchange, each.where, fetched)

    def _fetched(self, exchange: Exchange, where: TopicPartition, data: bytes) -> Fetched | None:
        found = read_heads(data)
        self._mark(where, found)
        heads = [each for each in found if not each.control]
        position = self._positions.get(exchange.connection, {}).get(where)
        if not found or position is None or found[-1].last_offset < position:
            return None
        first = end = position
        if heads and heads[-1].last_offset >= position:
            first, end = max(position, heads[0].offset), heads[-1].last_offset + 1
        by = exchange.completed_ns, named(exchange), exchange.number, who(exchange)
        return Fetched(first, end, position, found[-1].last_offset + 1, *by)

    def _mark(self, where: TopicPartition, heads: Sequence[Head]) -> None:
        """Take the markers among batches that were fetched."""
        for head in heads:
            first, end = self._markers.get(where, (0, 0))
            if head.control and head.offset >= end:
                begins = first if head.offset == end and end else head.offset
                self._markers[where] = begins, head.last_offset + 1

    def _records_end(self, where: TopicPartition) -> tuple[int, int]:
        """Return the end of a partition without the markers after its last record, and the exchange
        that shows it."""
        end, number = self._ends.get(where, (0, 0))
        first, past = self._markers.get(where, (0, 0))
        return (first if past == end and past else end), number

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
            stretches = self._again.get(key)
            if stretches and stretches[-1].past == fetched.asked:
                stretches[-1].past = fetched.past
            return
        if reached is None or reached.generation != owner.generation:
            if reached is not None:
                reached.earlier = None
            span = fetched.first, fetched.end, fetched.past
            new = Reached(owner.generation, *span, fetched, reached)
            self._reached[key] = reached = new
            if reached.earlier is not None and fetched.first >= reached.earlier.end:
                reached.earlier = None  # it goes on where the group was
        elif fetched.asked > reached.past:  # it seeks
            reached.first, reached.end = fetched.first, fetched.end
            reached.past, reached.latest = fetched.past, fetched
        else:
            reached.first = min(reached.first, fetched.first)
            reached.end, reached.latest = max(reached.end, fetched.end), fetched
            reached.past = max(reached.past, fetched.past)
        before = reached.earlier
        if before is not None:
            start, end = max(before.first, fetched.first), min(before.end, fetched.end)
            if start < end:
                self._add_again(key, before, reached, fetched, start, end)

    def _add_again(
        self,
        key: tuple[str, TopicPartition],
        before: Reached,
        now: Reached,
        fetched: Fetched,
        start: int,
        end: int,
    ) -> None:
        generations = before.generation, now.generation
        found = self._again.setdefault(key, [])
        last = found[-1] if found else None
        if last is not None and last.generations == generations:
            if fetched.asked <= last.past and last.start <= fetched.past:
                last.start, last.end = min(last.start, start), max(last.end, end)
                last.past = max(last.past, fetched.past)
                return
        if len(found) < _AGAIN_MAX:
            found.append(Again(generations, before.latest, fetched, start, end, fetched.past))

    # ---- what is committed

    def _committed(self, commit: Commit) -> None:
        if not commit.certain:
            self._latest.pop((commit.group, commit.where), None)  # how far it is, is not known
        else:
            self._latest[commit.group, commit.where] = commit

    # ---- findings

    def _twice(self) -> Iterator[Finding]:
        by_topic: dict[tuple[str, str], list[tuple[int, Again]]] = {}
        for (group, (topic, partition)), stretches in sorted(self._again.items()):
            found = by_topic.setdefault((group, topic), [])
            found += ((partition, again) for again in stretches)
        for (group, topic), found in by_topic.items():
            found.sort(key=lambda each: (each[1].start - each[1].end, each[0]))  # the longest first
            told = [
                f"{topic}[{partition}]{offsets(again.start, again.end - 1)} in generation"
                f" {again.generations[0]} by {again.first.who} (until #{again.first.number}), and"
                f" again in generation {again.generations[1]} by {again.second.who} (from"
                f" #{again.second.number})"
                for partition, again in found[:_TOLD_MAX]
            ]
            text = f"Group {group} fetched records of {topic} twice: {'; '.join(told)}"
            if len(found) > _TOLD_MAX:
                text += f"; {count(len(found) - _TOLD_MAX, 'more stretch')} likewise"
            numbers = found[0][1].first.number, found[0][1].second.number
            yield Finding(
                Harm.DATA,
                "fetched twice after a rebalance",
                f"{text}. Whether the app processed them twice is not in the recording.",
                numbers,
                ("why", f"group:{group}"),
                topic,
            )

    def _lag(self) -> Iterator[Finding]:
        behind: dict[tuple[str, str], list[tuple[int, int, Commit, int]]] = {}
        maybe_more: set[tuple[str, str]] = set()
        for (group, where), commit in self._latest.items():
            end, number = self._records_end(where)
            if 0 < end - commit.offset < LAG_MIN:
                maybe_more.add((group, where.topic))
            elif end - commit.offset >= LAG_MIN:
                found = behind.setdefault((group, where.topic), [])
                found.append((end - commit.offset, where.partition, commit, number))
        for (group, topic), found in sorted(behind.items(), key=lambda each: each[0]):
            found.sort(key=lambda each: (-each[0], each[1]))
            total = sum(each[0] for each in found)
            lag, partition, commit, number = found[0]
            most = "" if len(found) == 1 else f"; {topic}[{partition}] is {lag} of them"
            where = f"{topic}[{partition}]" if len(found) == 1 else topic
            least = "at least " if len(found) > 1 and (group, topic) in maybe_more else ""
            yield Finding(
                Harm.LATENCY if total >= _LATE_LAG else Harm.CURIOSITY,
                LAG,
                f"The last commits of group {group} in the recording are"
                f" {least}{count(total, 'offset')} behind the end of {where}{most}:"
                f" {topic}[{partition}] is committed up to {commit.offset} ({commit.by}), its end"
                f" is {commit.offset + lag} (#{number}).",
                (commit.number, number),
                ("why", f"group:{group}"),
                topic,
                group=group,
            )
