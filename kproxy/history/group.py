"""One group: who is a member, its generations, what happened to its members.

::

    Joined, Assigned, Beat, Left, CommitRequested ─▶ Member, Generation, Happening
    ConnectionEnd ──────────────────────────▶ the end of a member that did not leave

A generation changes when a member joins, leaves, or is silent for longer than its session timeout.
The coordinator does not report the cause, so it is concluded from the requests of the members.

Invariant: only the coordinator's list of members, which it sends to the leader, shows that a member
is gone. If the list of a generation is not recorded, only members that sent LeaveGroup are gone.
"""

from __future__ import annotations

import copy
import itertools
from typing import Any

import attrs

from kproxy.exchange.endings import ConnectionEnd
from kproxy.exchange.entities import TopicPartition
from kproxy.history.kept import Kept
from kproxy.history.members import Generation, Given, Happening, Join, Load, Member, Quiet
from kproxy.history.ref import Ref
from kproxy.history.rows import Assigned, Beat, Commit, CommitRequested, Joined, Left
from kproxy.history.standstills import (
    ENDED,
    LEFT,
    REMOVED,
    SOON_NS,
    Brought,
    Covered,
    GroupPosition,
)

INSTANCE_ERRORS = frozenset(("FENCED_INSTANCE_ID", "UNRELEASED_INSTANCE_ID"))
"""The errors by which a coordinator refuses one of two clients with one group.instance.id."""
REBALANCE = "REBALANCE_IN_PROGRESS"
POLL_TIMEOUT = "poll timeout"
"""Stands in the reason with which consumers leave that did not poll in time."""
REMOVED_BY = frozenset(("UNKNOWN_MEMBER_ID", "FENCED_MEMBER_EPOCH"))
_MEMBERS_MAX = 5000
_MEMBERS_LOOKED_AT = 100
"""Of more, one of the oldest goes."""
_POSITIONS_MAX = 5000
_KEPT_REQUESTS_MAX = 100
_HAPPENINGS_KEPT = 200
"""At each end of the recording."""
_GENERATIONS_MAX = 100
"""Of more, the second goes: the first tells how the recording began."""
_BEATS_MISSED = 3
"""Heartbeats that a member of KIP-848 must miss to be called silent."""
_SILENT_MAX = 20
_SETTLED_NS, _SETTLED_CONSUMER_NS = 3_000_000_000, 15_000_000_000
"""What a member has had for so long is not that of the midst of a rebalance; members of KIP-848
give up and get partitions with heartbeats that are seconds apart."""
_LOADS_MAX = 20
_LOOKED_AT_EACH = 32
_FINDINGS_MAX = 100


@attrs.define(eq=False)
class Group:
    """A group, as far as its members' requests show it."""

    name: str
    members: dict[str, Member] = attrs.Factory(dict)
    generations: dict[int, Generation] = attrs.Factory(dict)
    generations_dropped: int = 0
    happenings: Kept[Happening] = attrs.Factory(lambda: Kept(_HAPPENINGS_KEPT))
    positions: dict[TopicPartition, GroupPosition] = attrs.Factory(dict)
    loads: dict[int, tuple[Load, ...]] = attrs.Factory(dict)
    """Generation or epoch → what each member had to read; the latest."""
    newest: Join | None = None
    """The first JoinGroup whose answer named the newest generation."""
    newest_generation: int = -1
    offered: tuple[Ref, Joined] | None = None
    """The JoinGroup that was accepted last."""
    unanswered: dict[str, Ref] = attrs.Factory(dict)
    """Member id → its last JoinGroup without an answer."""
    committing: tuple[Ref, Ref, int] | None = None
    """The first and the last OffsetCommit that was taken, and how many there were."""
    lost: dict[str, tuple[Member, list[Covered], ConnectionEnd]] = attrs.Factory(dict)
    """Member id → what its last commit covered, soon before its client ended the connection."""
    shared: dict[str, tuple[Member, Ref, int]] = attrs.Factory(dict)
    """group.instance.id → who had it when another client was refused first, and how often."""
    _covered: dict[str, list[Covered]] = attrs.field(factory=dict, init=False)
    """Member id → what its latest OffsetCommit newly covers, by partition; nothing if a Fetch that
    its client sent afterwards was answered."""
    _on: dict[int, str] = attrs.field(factory=dict, init=False)
    """Connection → the member that used it last."""
    _leaving: dict[int, Happening] = attrs.field(factory=dict, init=False)
    """Connection → the last that left on it."""
    _latest: Ref | None = attrs.field(default=None, init=False)
    """The latest exchange with commits: each of its rows is about one."""
    _settled: int = attrs.field(default=0, init=False)
    """Members that have settled since `loads` was made."""

    # ---- members

    def place(self, member_id: str) -> str:
        """Return what a member has in common with those who had its group.instance.id before."""
        member = self.members.get(member_id)
        return member_id if member is None else member.place

    def holder(self, instance: str) -> Member | None:
        """Return the member that had a group.instance.id last."""
        members = reversed(self.members.values()) if instance else ()
        return next((each for each in members if each.instance == instance), None)

    def on_connection(self, connection: int) -> Member | None:
        """Return the member that used a connection last."""
        return self.members.get(self._on.get(connection, ""))

    def _member(self, member_id: str, ref: Ref) -> Member:
        """Return the member with this id; a new one is named after the client of the exchange."""
        self._on[ref.connection] = member_id
        found = self.members.get(member_id)
        if found is None:
            if len(self.members) >= _MEMBERS_MAX:
                oldest = itertools.islice(self.members.values(), _MEMBERS_LOOKED_AT)
                over = (each.id for each in oldest if each.left or each.ended)
                del self.members[next(over, next(iter(self.members)))]
            found = self.members[member_id] = Member(member_id, ref, member_id)
        return found

    def _keep(self, member: Member, ref: Ref) -> None:
        """Take a request that a fault rule kept from the broker."""
        member.kept.append(ref)
        if len(member.kept) > _KEPT_REQUESTS_MAX:
            del member.kept[0]

    def _accept(self, member: Member, ref: Ref) -> None:
        """Take a request that the coordinator accepted: the member lives."""
        member.accepted = ref
        self.lost.pop(member.id, None)
        if ref.api != "OffsetCommit":
            _beats(member, ref.time_ns)
        if (given := member.given) is not None and not member.is_settled:
            least_ns = _SETTLED_NS if given.ref.api == "SyncGroup" else _SETTLED_CONSUMER_NS
            member.is_settled = ref.time_ns - given.ref.completed_ns >= least_ns
            if member.is_settled:
                self._settle(given.generation)
        if member.ended is not None:
            member.ended = None
            for where in member.given.partitions if member.given else ():
                if (stands := self.at(where).stands) is not None:
                    stands.go_on(member.id)

    def _settle(self, number: int) -> None:
        """Keep what each member has to read in a generation, or epoch. In a large group many settle
        one after the other: it is looked at again when a quarter more have."""
        self._settled += 1
        known = len(self.loads.get(number, ()))
        if known > _LOOKED_AT_EACH and self._settled * 4 < known:
            return
        self._settled = 0
        self.loads[number] = tuple(
            Load(each.ref, each.given, each.topics)
            for each in self.members.values()
            if each.given is not None and each.accepted and not (each.left or each.ended)
            and each.reported_silence is not each.accepted
            and (each.given.ref.api != "SyncGroup" or each.given.generation == number)
        )  # fmt: skip
        if len(self.loads) > _LOADS_MAX:
            del self.loads[next(iter(self.loads))]

    def _happen(self, kind: str, ref: Ref, member: Member | None, **more: Any) -> Happening:
        happening = Happening(kind, ref, copy.copy(member) if member else None, **more)
        self.happenings.add(happening)
        return happening

    def _end_life(self, member: Member, how: str, time_ns: int) -> None:
        for where in member.given.partitions if member.given else ():
            if (stands := self.at(where).stands) is not None:
                stands.end_life(member.id, how, time_ns)

    def at(self, where: TopicPartition) -> GroupPosition:
        """Return how far the group is in a partition."""
        found = self.positions.get(where)
        if found is None:
            if len(self.positions) >= _POSITIONS_MAX:
                del self.positions[next(iter(self.positions))]
            found = self.positions[where] = GroupPosition()
        return found

    # ---- classic groups

    def joined(self, ref: Ref, row: Joined) -> None:
        """Take a request to join."""
        if row.kind != "classic":
            self._joined_consumer(ref, row)
            return
        leaving = self._leaving.pop(ref.connection, None)
        if leaving is not None:
            leaving.again = ref
        if ref.fate.unanswered is not None:
            self.unanswered[self.place(row.asked_member)] = ref
            self._happen("asked", ref, None)
        elif not ref.is_answered or row.error:
            self._share(ref, row)
            if ref.errors and not ref.routine:
                self._happen("could not join", ref, None, other=self._holder_of(ref, row))
        elif row.generation is not None:
            self._add_member(ref, row, row.generation)

    def _add_member(self, ref: Ref, row: Joined, number: int) -> None:
        self._say_undelivered(ref)
        is_born = number in self.generations
        generation = self.generations[number] if is_born else self._new_generation(number)
        before = self.holder(row.instance)
        member = self._member(row.member, ref)
        if before is not None and before is not member:
            member.place = before.place
            self._happen("takes over", ref, member, other=copy.copy(before), is_quiet=is_born)
        self._enter(ref, row, member)
        self.offered = ref, row
        if row.protocol_type == "consumer":
            member.rebalance_ms = row.rebalance_ms
        if ref.errors:
            member.told_by_rule = ref
            self._happen("let in", ref, member)
        if number > self.newest_generation:
            self.newest, self.newest_generation = Join(ref, member.id, row.reason), number
        join = Join(ref, member.id, row.reason, row.topics, row.owned)
        generation.joins.setdefault(member.place, join)
        generation.members.setdefault(member.place, member.id)
        for each in row.members:
            generation.members.setdefault(self.place(each), each)
        if row.members and not generation.has_member_list:
            generation.has_member_list = True
            for each in generation.earlier.values():
                if each.place not in generation.members and each.id in self.members:
                    self._end_life(self.members[each.id], REMOVED, ref.completed_ns)

    def _enter(self, ref: Ref, row: Joined, member: Member) -> None:
        member.joined = member.joined or ref
        member.instance, member.topics, member.session_ms = row.instance, row.topics, row.session_ms
        member.left = member.told_to_join = member.told_by_rule = None
        self._accept(member, ref)

    def _new_generation(self, number: int) -> Generation:
        last = max((each for each in self.generations if each < number), default=None)
        places = set() if last is None else set(self.generations[last].members)
        earlier = {
            each.id: copy.copy(each) for each in self.members.values() if each.place in places
        }
        born = self.generations[number] = Generation(number, earlier)
        if len(self.generations) > _GENERATIONS_MAX:
            del self.generations[sorted(self.generations)[1]]  # the first stays
            self.generations_dropped += 1
        return born

    def assigned(self, ref: Ref, row: Assigned) -> None:
        """Take what a member was given to read."""
        if not ref.is_answered:
            return
        if ref.api == "ConsumerGroupHeartbeat":
            self._assigned_consumer(ref, row)
            return
        if ref.errors:
            self._refuse(ref, row)
        if row.error:
            return
        self._say_undelivered(ref)
        member = self._member(row.member, ref)
        given = Given(ref, row.generation, tuple(sorted(row.partitions)), row.undecoded)
        self._assign(member, given)
        if (generation := self.generations.get(row.generation)) is not None:
            generation.synced.setdefault(member.place, (member.id, given))
        self._accept(member, ref)

    def _assign(self, member: Member, given: Given) -> None:
        has = member.given
        if has is None or has[1:] != given[1:]:
            member.given, member.quiet_from_ns = given, given.ref.completed_ns
            member.is_settled = False

    def beat(self, ref: Ref, row: Beat) -> None:
        """Take a heartbeat."""
        if ref.api == "ConsumerGroupHeartbeat":
            member = self._heard(ref, row)
            if member is None:
                return
            if row.owned is not None:
                if row.owned != member.owns:
                    self._happen("owns", ref, member, given=row.owned)
                member.owns = row.owned
            if ref.is_answered:
                member.epoch = ref, row.generation if row.given < 0 else row.given
                self._accept(member, ref)
        else:
            self._classic(ref, row)

    def committed(self, ref: Ref, row: CommitRequested) -> None:
        """Take an OffsetCommit, once for all of its offsets."""
        if row.transactional_id or ref is self._latest:
            return
        self._latest = ref
        self._covered.pop(row.member, None)
        self.lost.pop(row.member, None)
        self._classic(ref, row)
        member = self.members.get(row.member)
        if ref.is_answered and not ref.broker_errors:
            first, _, times = self.committing or (ref, ref, 0)
            self.committing = first, ref, times + 1
            if member is not None:
                member.commit = ref

    def _classic(self, ref: Ref, row: Beat | CommitRequested) -> None:
        if row.member and ref.fate.kept:
            self._keep(self._member(row.member, ref), ref)
        if not ref.is_answered:
            return
        if ref.errors:
            self._refuse(ref, row)
        if row.member and not ref.broker_errors:
            self._accept(self._member(row.member, ref), ref)

    def _refuse(self, ref: Ref, row: Beat | CommitRequested | Assigned | Left) -> None:
        found = self._member(row.member, ref) if row.member else None
        member = found or self.on_connection(ref.connection)
        if member is None:  # it names no member, and none used its connection
            self._happen("nobody is refused", ref, None)
            return
        rebalances = ref.broker_errors == (REBALANCE,)
        self._share(ref, row)
        if ref.fate.made:
            member.told_by_rule = member.told_by_rule or ref
            self._happen("told", ref, member)
        else:
            kind = "learns" if rebalances else "refused"
            self._happen(kind, ref, member, other=self._holder_of(ref, row))
            if REMOVED_BY.intersection(ref.errors) and found is not None:
                self._end_life(member, REMOVED, ref.completed_ns)
        if rebalances and not ref.fate.injected:
            member.accepted, member.told_to_join = ref, member.told_to_join or ref

    def _say_undelivered(self, ref: Ref) -> None:
        """Say that a member does not learn that it joined, or what it was given."""
        if ref.fate.undelivered:
            self._happen("undelivered", ref, None)

    # ---- members that leave or end

    def leave(self, ref: Ref, row: Left) -> None:
        """Take a request to leave."""
        if ref.api == "ConsumerGroupHeartbeat":
            if (member := self._heard(ref, row)) is not None:
                self._happen("leaves for now" if row.is_for_now else "leaves", ref, member)
                if ref.is_answered:
                    self._accept(member, ref)
                self._leave(member, ref, row)
            return
        holder = self.holder(row.instance)
        member = self._member(row.member or (holder.id if holder is not None else ""), ref)
        if ref.fate.kept:
            self._keep(member, ref)
            self._happen("wants to leave", ref, member)
        elif row.error:
            self._refuse(ref, row._replace(member=member.id))
        else:
            own = member.accepted is not None and member.accepted.connection == ref.connection
            member.left_by_itself, member.reason = own, row.reason
            leaving = self._happen("left", ref, member)
            if own:
                self._leaving[ref.connection] = leaving
            self._leave(member, ref, row)

    def _leave(self, member: Member, ref: Ref, row: Left) -> None:
        how = REMOVED if POLL_TIMEOUT in row.reason else LEFT
        self._end_life(member, how, ref.completed_ns)
        member.left, member.given = ref, None
        self.lost.pop(member.id, None)
        self._covered.pop(member.id, None)

    def end(self, end: ConnectionEnd) -> Member | None:
        """Take the end of a connection; return the member that has ended with it."""
        self._leaving.pop(end.connection, None)
        member, first = self.members.get(self._on.pop(end.connection, "")), end.first
        last = None if member is None or member.left is not None else member.accepted
        if member is None or last is None or last.connection != end.connection:
            return None
        if first is None or first.side != "client":
            return None
        member.ended = last
        self._end_life(member, ENDED, first.time_ns)
        covered = self._covered.pop(member.id, None)
        if covered and covered[0].commit.connection == end.connection:
            after_ns = first.time_ns - covered[0].commit.time_ns
            if 0 <= after_ns <= SOON_NS and len(self.lost) < _FINDINGS_MAX:
                self.lost[member.id] = copy.copy(member), covered, end
        return member

    # ---- two clients with one group.instance.id

    def _holder_of(self, ref: Ref, row: Any) -> Member | None:
        """Return who has the group.instance.id because of which a request is refused."""
        if not INSTANCE_ERRORS.intersection(ref.errors):
            return None
        holder = self.holder(row.instance)
        own = row.asked_member if isinstance(row, Joined) else row.member
        is_other = holder is not None and holder.joined is not None and holder.id != own
        return copy.copy(holder) if is_other else None

    def _share(self, ref: Ref, row: Any) -> None:
        holder = None if ref.fate.made else self._holder_of(ref, row)
        if holder is not None:
            who, first, times = self.shared.get(row.instance, (holder, ref, 0))
            self.shared[row.instance] = who, first, times + 1

    # ---- KIP-848

    def _heard(self, ref: Ref, row: Joined | Beat | Left) -> Member | None:
        """Take a heartbeat; return its member if it has done what it asks for, or may have."""
        member = self._member(row.member or "?", ref)
        if ref.fate.kept:
            self._keep(member, ref)
            return None
        if ref.errors:
            self._share(ref, row)
            self._happen("refused beat", ref, member, other=self._holder_of(ref, row))
            if REMOVED_BY.intersection(ref.errors) and not ref.fate.made:
                self._end_life(member, REMOVED, ref.completed_ns)
        return None if ref.broker_errors else member

    def _joined_consumer(self, ref: Ref, row: Joined) -> None:
        member = self._heard(ref, row)
        if member is None:
            return
        member.left = None
        self._happen("joins", ref, member)
        if ref.is_answered:
            before = self.holder(row.instance)
            if before is not None:
                member.place = before.place
            self._enter(ref, row, member)
            member.joined, member.rebalance_ms = ref, row.rebalance_ms
            if row.generation is not None:
                member.epoch = ref, row.generation

    def _assigned_consumer(self, ref: Ref, row: Assigned) -> None:
        member = self._member(row.member, ref)
        before = member.given
        given = Given(ref, row.generation, tuple(sorted(row.partitions)))
        self._assign(member, given)
        if before is not None and member.given is before:
            return
        silent = self._silent(ref, member, row.heartbeat_ms)
        self._happen(
            "is to have", ref, member, given=row.partitions, number=row.generation, silent=silent
        )

    def _silent(self, ref: Ref, besides: Member, heartbeat_ms: int) -> tuple[Member, ...]:
        found: list[Member] = []
        for each in self.members.values():
            last = each.accepted
            if each is besides or each.left or last is None or last is each.reported_silence:
                continue
            if ref.time_ns - last.time_ns > _BEATS_MISSED * heartbeat_ms * 1_000_000:
                found.append(copy.copy(each))
                each.reported_silence = last
        return tuple(found[:_SILENT_MAX])

    # ---- what is fetched and committed

    def fetches(self, member: Member, ref: Ref) -> None:
        """Take a Fetch of a member's client."""
        if member.quiet is not None and ref.time_ns <= member.quiet.until_ns:
            member.quiet = None
        member.quiet_from_ns = max(member.quiet_from_ns, ref.completed_ns)
        member.fetches_on = ref.connection if ref.fate.undelivered else None
        covered = self._covered.get(member.id)
        if covered and ref.is_answered and ref.time_ns > covered[0].commit.time_ns:
            del self._covered[member.id]  # it goes on after the commit

    def bring(self, member: Member, where: TopicPartition, brought: Brought) -> None:
        """Take what a Fetch brought to a member, for its assignment."""
        if member.given is not None and brought.ref.time_ns >= member.given.ref.completed_ns:
            self.at(where).bring(brought, member.id, member.given.generation)
            if brought.first < brought.end:
                member.brought = brought.ref

    def commit(self, ref: Ref, row: Commit) -> None:
        """Take an offset that counts from now on."""
        if not row.certain:
            self.at(row.where).forget()
            return
        covered = self.at(row.where).commit(row.where, row.offset, ref)
        member = self.members.get(row.member)
        if covered is not None and member is not None and not member.instance:
            if ref.api == "OffsetCommit":
                self._covered.setdefault(member.id, []).append(covered)

    # ---- what is not known behind a gap

    def gap(self) -> None:
        """Take a gap: when a member was heard of last is not known behind it."""
        for member in self.members.values():
            member.accepted = member.told_to_join = member.given = None
            member.quiet_from_ns, member.fetches_on = 0, None
        for position in self.positions.values():
            position.forget()
        self._covered.clear()


def _beats(member: Member, time_ns: int) -> None:
    """Take a heartbeat, or the like, that was accepted: the member fetches, or it is quiet."""
    given = member.given
    if given is None or not given.partitions or member.rebalance_ms <= 0:
        return
    if member.fetches_on is not None:
        member.quiet_from_ns = time_ns
    if time_ns - member.quiet_from_ns > member.rebalance_ms * 1_000_000:
        if member.quiet is None or member.quiet.from_ns == member.quiet_from_ns:
            member.quiet = Quiet(member.quiet_from_ns, time_ns, given)
