"""A consumer group of the classic protocol: a small real coordinator.

::

    EMPTY ──join──▶ PREPARING ──all have joined, or time is up──▶ COMPLETING ──the leader──▶ STABLE
                        ▲                                              │       assigns          │
                        └──────────── a member comes, leaves, dies, wants another ──────────────┘

JoinGroup waits in PREPARING until every known member has joined again; SyncGroup waits in
COMPLETING until the leader has sent its assignment. The names and rules are Kafka's own (group
coordinator; KIP-345 for static members, KIP-394 for the first JoinGroup).
"""

from __future__ import annotations

import enum
from collections import Counter
from typing import TYPE_CHECKING, Any

import attrs

from kproxy.replay.call import LATER, Call
from kproxy.replay.timers import Timer, Timers
from kproxy.wire.protocol import codes, messages

if TYPE_CHECKING:
    from kproxy.replay.state import State

_MS = 1_000_000


class GroupState(enum.Enum):
    """The state of a classic group, by Kafka's names."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"


@attrs.define(eq=False)
class ClassicMember:
    """One member of a classic group: a consumer, or another user of the protocol."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ns: int
    rebalance_timeout_ns: int
    protocols: list[tuple[str, bytes]]
    """Names of assignors, the favourite first, each with the member's metadata."""
    assignment: bytes = b""
    joining: Call | None = None
    """Its JoinGroup request that is not answered yet."""
    syncing: Call | None = None
    """Its SyncGroup request that is not answered yet."""
    timer: Timer | None = None

    def metadata(self, protocol: str) -> bytes:
        """Return the metadata that it sent for an assignor."""
        return next((data for name, data in self.protocols if name == protocol), b"")


@attrs.define(eq=False)
class ClassicGroup:
    """The members of a group, and the assignor and leader that they have agreed on."""

    group_id: str
    timers: Timers
    respond: Any
    """Called with (call, body): sends the response to a request that waited."""
    state: GroupState = GroupState.EMPTY
    generation: int = 0
    protocol_type: str = ""
    protocol: str | None = None
    leader: str = ""
    members: dict[str, ClassicMember] = attrs.Factory(dict)
    pending: dict[str, Timer] = attrs.Factory(dict)
    """Member ids that were given out and not used yet (KIP-394)."""
    deadline: Timer | None = None

    @property
    def group_type(self) -> str:
        """The group type in ListGroups."""
        return "classic"

    @property
    def group_state(self) -> str:
        """The group state in ListGroups."""
        return self.state.value

    @property
    def empty(self) -> bool:
        """True while the group has no members."""
        return not self.members and not self.pending

    # ---- JoinGroup

    def join(self, call: Call, new_member_id: str) -> Any:
        """Handle a JoinGroup; return its response, or None if that comes later."""
        body = call.body
        protocols = [(each.name, each.metadata) for each in body.protocols]
        member_id, instance_id = body.member_id, body.group_instance_id
        if not self._compatible(body.protocol_type, protocols, member_id):
            return join_error(call.version, codes.INCONSISTENT_GROUP_PROTOCOL, member_id)
        known = self._static(instance_id)
        if member_id:
            if known is not None and known.member_id != member_id:
                return join_error(call.version, codes.FENCED_INSTANCE_ID, member_id)
            if member_id in self.pending:
                self.pending.pop(member_id).cancel()
            elif member_id not in self.members:
                return join_error(call.version, codes.UNKNOWN_MEMBER_ID, member_id)
            else:
                return self._rejoin(call, self.members[member_id], protocols)
        elif known is not None:
            return self._take_over(call, known, new_member_id, protocols)
        elif instance_id is None and call.version >= 4:
            until = call.now + body.session_timeout_ms * _MS
            forget = self.timers.at(until, lambda now: self._forget_pending(new_member_id, now))
            self.pending[new_member_id] = forget
            return join_error(call.version, codes.MEMBER_ID_REQUIRED, new_member_id)
        self.protocol_type = body.protocol_type
        member = _member(call, member_id or new_member_id, protocols)
        self.members[member.member_id] = member
        member.joining = call
        self._prepare(call.now)
        return None

    def _rejoin(self, call: Call, member: ClassicMember, protocols: list[tuple[str, bytes]]) -> Any:
        changed = member.protocols != protocols
        member.protocols = protocols
        restarts = {
            GroupState.EMPTY: True,
            GroupState.PREPARING: True,
            GroupState.COMPLETING: changed,
            GroupState.STABLE: changed or member.member_id == self.leader,
        }
        if not restarts[self.state]:
            return self._joined(member)
        member.joining = call
        if member.timer:
            member.timer.cancel()
        self._prepare(call.now)
        return None

    def _take_over(
        self, call: Call, old: ClassicMember, member_id: str, protocols: list[tuple[str, bytes]]
    ) -> Any:
        """Give a static member that came back without its id a new one, and its old assignment."""
        changed = old.protocols != protocols
        self._dismiss(old, codes.FENCED_INSTANCE_ID)
        del self.members[old.member_id]
        member = _member(call, member_id, protocols)
        member.assignment = old.assignment
        self.members[member_id] = member
        led = self.leader == old.member_id
        if led:
            self.leader = member_id
        if self.state is GroupState.STABLE and not changed:
            self._keep_alive(member, call.now)
            body = self._joined(member)
            if led and call.version < 9:
                body.leader, body.members = old.member_id, []  # so that it does not assign again
            body.skip_assignment = led and call.version >= 9
            return body
        member.joining = call
        self._prepare(call.now)
        return None

    def _prepare(self, now: int) -> None:
        """Begin a rebalance, or continue one; complete it when all have joined."""
        if self.state is GroupState.COMPLETING:
            for member in self.members.values():
                self._answer_sync(member, codes.REBALANCE_IN_PROGRESS, now)
        if self.state is not GroupState.PREPARING:
            self.state = GroupState.PREPARING
            longest = max((each.rebalance_timeout_ns for each in self.members.values()), default=0)
            self.deadline = self.timers.at(now + longest, self._complete)
        if not self.pending and all(each.joining for each in self.members.values()):
            self._complete(now)

    def _complete(self, now: int) -> None:
        """Remove the members that have not joined in time, and begin a generation."""
        if self.deadline:
            self.deadline.cancel()
        for member in list(self.members.values()):
            if member.joining is None and member.instance_id is None:
                self._remove(member)
        joined = [each for each in self.members.values() if each.joining]
        self.generation += 1
        if not joined:
            self.state = GroupState.STABLE if self.members else GroupState.EMPTY
            return
        self.protocol = self._elect()
        if self.leader not in {each.member_id for each in joined}:
            self.leader = joined[0].member_id
        self.state = GroupState.COMPLETING
        for member in joined:
            call, member.joining = member.joining, None
            self._keep_alive(member, now)
            self.respond(call, self._joined(member))

    def _joined(self, member: ClassicMember) -> Any:
        response = messages.JoinGroupResponse
        members = []
        if member.member_id == self.leader:
            members = [
                response.JoinGroupResponseMember(
                    member_id=each.member_id,
                    group_instance_id=each.instance_id,
                    metadata=each.metadata(self.protocol or ""),
                )
                for each in self.members.values()
            ]
        return response(
            generation_id=self.generation,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol,
            leader=self.leader,
            member_id=member.member_id,
            members=members,
        )

    def _elect(self) -> str:
        """Return the assignor that all members support and most prefer."""
        members = list(self.members.values())
        common = set.intersection(*({name for name, _ in each.protocols} for each in members))
        votes = Counter(
            next(name for name, _ in each.protocols if name in common) for each in members
        )
        return votes.most_common(1)[0][0]

    def _compatible(
        self, protocol_type: str, protocols: list[tuple[str, bytes]], member_id: str
    ) -> bool:
        others = [each for each in self.members.values() if each.member_id != member_id]
        names = {name for name, _ in protocols}
        for each in others:
            names &= {name for name, _ in each.protocols}
        same = protocol_type == self.protocol_type if others else bool(protocol_type)
        return same and bool(names)

    # ---- SyncGroup, Heartbeat, LeaveGroup

    def sync(self, call: Call) -> Any:
        """Handle a SyncGroup; return its response, or None if that comes later."""
        body = call.body
        error = self.check(body.member_id, body.group_instance_id, body.generation_id)
        if error:
            return messages.SyncGroupResponse(error_code=error)
        member = self.members[body.member_id]
        self._keep_alive(member, call.now)
        if self.state is GroupState.PREPARING:
            return messages.SyncGroupResponse(error_code=codes.REBALANCE_IN_PROGRESS)
        if self.state is GroupState.STABLE:
            return self._synced(member)
        member.syncing = call
        if member.member_id == self.leader:
            given = {each.member_id: each.assignment for each in body.assignments}
            self.state = GroupState.STABLE
            for each in self.members.values():
                each.assignment = given.get(each.member_id, b"")
            for each in self.members.values():
                self._answer_sync(each, 0, call.now)
        return None

    def heartbeat(self, call: Call) -> int:
        """Handle a Heartbeat; return the error code."""
        body = call.body
        error = self.check(body.member_id, body.group_instance_id, body.generation_id)
        if error:
            return error
        self._keep_alive(self.members[body.member_id], call.now)
        return codes.REBALANCE_IN_PROGRESS if self.state is GroupState.PREPARING else 0

    def leave(self, member_id: str, instance_id: str | None, now: int) -> int:
        """Remove a member that leaves; return the error code."""
        member = self._static(instance_id) if instance_id else self.members.get(member_id)
        if member is None:
            if member_id in self.pending:
                self.pending.pop(member_id).cancel()
                self._someone_left(now)
                return 0
            return codes.UNKNOWN_MEMBER_ID
        if instance_id and member_id and member.member_id != member_id:
            return codes.FENCED_INSTANCE_ID
        self._remove(member)
        self._someone_left(now)
        return 0

    def check(self, member_id: str, instance_id: str | None, generation: int) -> int:
        """Return the error code for a request of this member in this generation."""
        static = self._static(instance_id)
        if static is not None and static.member_id != member_id:
            return codes.FENCED_INSTANCE_ID
        if member_id not in self.members:
            return codes.UNKNOWN_MEMBER_ID
        return 0 if generation == self.generation else codes.ILLEGAL_GENERATION

    # ---- members

    def _static(self, instance_id: str | None) -> ClassicMember | None:
        if instance_id is None:
            return None
        found = (each for each in self.members.values() if each.instance_id == instance_id)
        return next(found, None)

    def _keep_alive(self, member: ClassicMember, now: int) -> None:
        if member.timer:
            member.timer.cancel()

        def expire(now: int) -> None:
            self._remove(member)
            self._someone_left(now)

        member.timer = self.timers.at(now + member.session_timeout_ns, expire)

    def _remove(self, member: ClassicMember) -> None:
        self._dismiss(member, codes.UNKNOWN_MEMBER_ID)
        self.members.pop(member.member_id, None)

    def _dismiss(self, member: ClassicMember, error: int) -> None:
        """Answer a member's waiting requests with an error."""
        if member.timer:
            member.timer.cancel()
        if member.joining:
            call, member.joining = member.joining, None
            self.respond(call, join_error(call.version, error, member.member_id))
        if member.syncing:
            call, member.syncing = member.syncing, None
            self.respond(call, messages.SyncGroupResponse(error_code=error))

    def _forget_pending(self, member_id: str, now: int) -> None:
        self.pending.pop(member_id, None)
        self._someone_left(now)

    def _someone_left(self, now: int) -> None:
        if self.members:
            self._prepare(now)
        elif self.state is not GroupState.EMPTY:
            if self.deadline:
                self.deadline.cancel()
            self.generation += 1
            self.state, self.protocol, self.leader = GroupState.EMPTY, None, ""

    def _synced(self, member: ClassicMember) -> Any:
        return messages.SyncGroupResponse(
            protocol_type=self.protocol_type,
            protocol_name=self.protocol,
            assignment=member.assignment,
        )

    def _answer_sync(self, member: ClassicMember, error: int, now: int) -> None:
        if member.syncing:
            call, member.syncing = member.syncing, None
            self._keep_alive(member, now)
            body = messages.SyncGroupResponse(error_code=error) if error else self._synced(member)
            self.respond(call, body)


def join_error(version: int, error: int, member_id: str) -> Any:
    """Return a JoinGroup response with an error code."""
    return messages.JoinGroupResponse(
        error_code=error,
        member_id=member_id,
        protocol_name=None if version >= 7 else "",
    )


def _member(call: Call, member_id: str, protocols: list[tuple[str, bytes]]) -> ClassicMember:
    body = call.body
    session = body.session_timeout_ms
    rebalance = body.rebalance_timeout_ms if body.rebalance_timeout_ms >= 0 else session
    return ClassicMember(
        member_id,
        body.group_instance_id,
        call.client_id,
        call.connection.client_host,
        session * _MS,
        rebalance * _MS,
        protocols,
    )


# ---- handlers


def join_group(state: State, call: Call) -> Any:
    """JoinGroup."""
    group = state.groups.classic(call.body.group_id)
    if isinstance(group, int):
        return join_error(call.version, group, call.body.member_id)
    return _or_later(group.join(call, state.groups.new_member_id(call.client_id)))


def sync_group(state: State, call: Call) -> Any:
    """SyncGroup."""
    group = state.groups.classic(call.body.group_id)
    if isinstance(group, int):
        return messages.SyncGroupResponse(error_code=group)
    return _or_later(group.sync(call))


def heartbeat(state: State, call: Call) -> Any:
    """Heartbeat."""
    group = state.groups.classic(call.body.group_id)
    error = group if isinstance(group, int) else group.heartbeat(call)
    return messages.HeartbeatResponse(error_code=error)


def leave_group(state: State, call: Call) -> Any:
    """LeaveGroup, for one member or for several."""
    group = state.groups.classic(call.body.group_id)
    response = messages.LeaveGroupResponse
    if isinstance(group, int):
        return response(error_code=group)
    if call.version < 3:
        return response(error_code=group.leave(call.body.member_id, None, call.now))
    members = [
        response.MemberResponse(
            member_id=each.member_id,
            group_instance_id=each.group_instance_id,
            error_code=group.leave(each.member_id, each.group_instance_id, call.now),
        )
        for each in call.body.members
    ]
    return response(members=members)


def _or_later(body: Any) -> Any:
    return LATER if body is None else body


HANDLERS = {
    "JoinGroup": join_group,
    "SyncGroup": sync_group,
    "Heartbeat": heartbeat,
    "LeaveGroup": leave_group,
}
