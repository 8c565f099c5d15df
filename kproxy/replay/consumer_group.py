"""A consumer group of KIP-848: the broker assigns, members follow at their own pace.

::

    members, subscriptions ──change──▶ group epoch + 1 ──▶ target assignment
                                                               │ per member, at its heartbeats
           give up what is not in the target ◀─────────────────┤
           take what nobody else holds any more ◀──────────────┘ member epoch = group epoch

A partition belongs to one member at a time: it goes to the next only after the member that had it
has released it, has left, or has timed out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs

from kproxy.replay.call import Call
from kproxy.replay.steps import Steps
from kproxy.replay.timers import Timer, Timers
from kproxy.replay.topics import ClusterState
from kproxy.wire.protocol import codes, messages

if TYPE_CHECKING:
    from kproxy.replay.state import State

HEARTBEAT_MS = 500
"""The heartbeat interval sent to members; Kafka's default of 5 s only makes tests slow."""
SESSION_NS = 45_000_000_000
_LEAVE, _LEAVE_STATIC = -1, -2


Key = tuple[str, int]


@attrs.define(eq=False)
class ConsumerMember:
    """One member of a KIP-848 group."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rack_id: str | None = None
    topics: frozenset[str] = frozenset()
    regex: str | None = None
    epoch: int = 0
    held: set[Key] = attrs.Factory(set)
    """Partitions that it may read now."""
    leaving: set[Key] = attrs.Factory(set)
    """Partitions that it must give up, and has not released yet."""
    target: set[Key] = attrs.Factory(set)
    last_sent: set[Key] | None = None
    """The assignment in the last heartbeat response that had one."""
    timer: Timer | None = None


@attrs.define(eq=False)
class ConsumerGroup:
    """The members of a group, and their partitions."""

    group_id: str
    timers: Timers
    cluster: ClusterState
    epoch: int = 0
    members: dict[str, ConsumerMember] = attrs.Factory(dict)
    _assigned: dict[str, int] = attrs.field(factory=dict[str, int], init=False)
    """Number of partitions of each topic at the last assignment."""

    @property
    def group_type(self) -> str:
        """The group type in ListGroups."""
        return "consumer"

    @property
    def protocol_type(self) -> str:
        """The protocol type in ListGroups."""
        return "consumer"

    @property
    def group_state(self) -> str:
        """The group state in ListGroups."""
        if not self.members:
            return "Empty"
        settled = all(
            each.epoch == self.epoch and each.held == each.target for each in self.members.values()
        )
        return "Stable" if settled else "Reconciling"

    @property
    def empty(self) -> bool:
        """True while the group has no members."""
        return not self.members

    def heartbeat(self, call: Call, new_member_id: str) -> Any:
        """Handle a ConsumerGroupHeartbeat; return its response."""
        body = call.body
        if body.member_epoch in (_LEAVE, _LEAVE_STATIC):
            return self._leave(body, call.now)
        member = self.members.get(body.member_id) if body.member_id else None
        if body.member_epoch == 0:
            member = self._join(call, member, new_member_id)
        elif member is None:
            return _refusal(codes.UNKNOWN_MEMBER_ID, "the group has no such member")
        elif body.member_epoch != member.epoch and not self._behind(body, member):
            self._remove(member)
            return _refusal(codes.FENCED_MEMBER_EPOCH, "another epoch than the group's")
        if isinstance(member, int):
            return _refusal(member, "the instance id is in use")
        self._keep_alive(member, call.now)
        try:
            self._subscribe(member, body)
        except re.error as error:
            return _refusal(codes.INVALID_REGULAR_EXPRESSION, str(error))
        self._reconcile(member, body)
        return self._response(member, full=body.member_epoch == 0)

    def check(self, member_id: str, epoch: int) -> int:
        """Return the error code for a request of this member in this epoch."""
        member = self.members.get(member_id)
        if member is None:
            return codes.UNKNOWN_MEMBER_ID
        return 0 if epoch == member.epoch else codes.STALE_MEMBER_EPOCH

    # ---- members

    def _join(
        self, call: Call, member: ConsumerMember | None, new_member_id: str
    ) -> ConsumerMember | int:
        body = call.body
        if member is not None:
            member.last_sent = None
            return member
        held: set[Key] = set()
        if body.instance_id is not None:
            old = next(
                (each for each in self.members.values() if each.instance_id == body.instance_id),
                None,
            )
            if old is not None:
                if old.epoch != _LEAVE_STATIC:
                    return codes.UNRELEASED_INSTANCE_ID
                held = old.target
                self._remove(old, rebalance=False)
        host = call.connection.client_host
        member_id = body.member_id or new_member_id
        member = ConsumerMember(member_id, body.instance_id, call.client_id, host)
        member.target = set(held)
        self.members[member_id] = member
        return member

    def _behind(self, body: Any, member: ConsumerMember) -> bool:
        """Return whether a member has missed our last response: it may try again."""
        if body.member_epoch > member.epoch or body.topic_partitions is None:
            return False
        return self._keys(body.topic_partitions) <= member.held | member.leaving

    def _leave(self, body: Any, now: int) -> Any:
        member = self.members.get(body.member_id)
        if member is None:
            return _refusal(codes.UNKNOWN_MEMBER_ID, "the group has no such member")
        if body.member_epoch == _LEAVE_STATIC:
            member.epoch = _LEAVE_STATIC  # its place is kept until its session ends
            self._keep_alive(member, now)
        else:
            self._remove(member)
        return messages.ConsumerGroupHeartbeatResponse(
            member_id=body.member_id, member_epoch=body.member_epoch
        )

    def _keep_alive(self, member: ConsumerMember, now: int) -> None:
        if member.timer:
            member.timer.cancel()
        member.timer = self.timers.at(now + SESSION_NS, lambda _: self._remove(member))

    def _remove(self, member: ConsumerMember, rebalance: bool = True) -> None:
        if member.timer:
            member.timer.cancel()
        if self.members.pop(member.member_id, None) and rebalance:
            self._assign()

    # ---- assignment

    def _subscribe(self, member: ConsumerMember, body: Any) -> None:
        """Update a member's subscription from a heartbeat; null means unchanged."""
        before = member.topics, member.regex
        if body.rack_id is not None:
            member.rack_id = body.rack_id
        if body.subscribed_topic_names is not None:
            member.topics = frozenset(body.subscribed_topic_names)
        if body.subscribed_topic_regex is not None:
            re.compile(body.subscribed_topic_regex)
            member.regex = body.subscribed_topic_regex or None
        changed = before != (member.topics, member.regex) or member.epoch == 0
        if changed or self._assigned != self._partition_counts():
            self._assign()

    def _partition_counts(self) -> dict[str, int]:
        """Return the number of partitions of each subscribed topic: clients create and delete."""
        names = set().union(*map(self._topics, self.members.values()))
        return {name: len(self.cluster.topics[name].partitions) for name in names}

    def _topics(self, member: ConsumerMember) -> set[str]:
        topics = {each for each in member.topics if each in self.cluster.topics}
        if member.regex:
            pattern = re.compile(member.regex)
            topics |= {each for each in self.cluster.topics if pattern.fullmatch(each)}
        return topics

    def _assign(self) -> None:
        """Give every partition to one of its subscribers, evenly, moving as few as possible."""
        self.epoch += 1
        self._assigned = self._partition_counts()
        topics = {each.member_id: self._topics(each) for each in self.members.values()}
        left: list[Key] = []
        loads: dict[str, int] = dict.fromkeys(self.members, 0)
        for name in sorted(set().union(*topics.values())):
            subscribers = [each for each in self.members if name in topics[each]]
            count = len(self.cluster.topics[name].partitions)
            share, more = divmod(count, len(subscribers))
            taken: set[int] = set()
            # Who has most keeps one more, where they do not come out even.
            for rank, member_id in enumerate(sorted(subscribers, key=partial(self._spare, name))):
                member = self.members[member_id]
                kept = sorted(index for topic, index in member.target if topic == name)
                kept = kept[: share + (rank < more)]
                member.target = {key for key in member.target if key[0] != name}
                member.target |= {(name, index) for index in kept}
                taken.update(kept)
                loads[member_id] += len(kept)
            indexes = self.cluster.topics[name].partitions
            left += [(name, index) for index in sorted(indexes) if index not in taken]
        for member_id, member in self.members.items():
            member.target = {key for key in member.target if key[0] in topics[member_id]}
        for key in left:
            takers = [each for each in self.members if key[0] in topics[each]]
            member_id = min(takers, key=lambda each: loads[each])
            self.members[member_id].target.add(key)
            loads[member_id] += 1

    def _spare(self, topic: str, member_id: str) -> int:
        """Return how many partitions of a topic a member was to have, negative."""
        return -sum(name == topic for name, _ in self.members[member_id].target)

    def _reconcile(self, member: ConsumerMember, body: Any) -> None:
        """Move a member towards its target, as far as the other members allow."""
        if body.topic_partitions is not None:
            member.leaving &= self._keys(body.topic_partitions)
        elif body.member_epoch == 0:
            member.leaving.clear()
        member.leaving |= member.held - member.target
        member.held &= member.target
        if member.leaving:
            return
        member.epoch = self.epoch
        elsewhere: set[Key] = set()
        for other in self.members.values():
            if other is not member:
                elsewhere |= other.held | other.leaving
        member.held |= member.target - elsewhere

    def _keys(self, topic_partitions: Iterable[Any]) -> set[Key]:
        return {
            (self.cluster.names.get(each.topic_id, ""), index)
            for each in topic_partitions
            for index in each.partitions
        }

    def _response(self, member: ConsumerMember, full: bool) -> Any:
        assignment = None
        if full or member.last_sent != member.held:
            member.last_sent = set(member.held)
            kind = messages.ConsumerGroupHeartbeatResponse
            assignment = kind.Assignment(
                topic_partitions=[
                    kind.TopicPartitions(topic_id=topic.topic_id, partitions=indexes)
                    for topic, indexes in by_topic(self.cluster, member.held)
                ]
            )
        return messages.ConsumerGroupHeartbeatResponse(
            member_id=member.member_id,
            member_epoch=member.epoch,
            heartbeat_interval_ms=HEARTBEAT_MS,
            assignment=assignment,
        )


def by_topic(cluster: ClusterState, keys: Iterable[Key]) -> list[tuple[Any, list[int]]]:
    """Return topics with their partitions, in order."""
    found: dict[str, list[int]] = {}
    for name, index in sorted(keys):
        found.setdefault(name, []).append(index)
    topics = cluster.topics
    return [(topics[name], indexes) for name, indexes in found.items() if name in topics]


def _refusal(error: int, text: str) -> Any:
    return messages.ConsumerGroupHeartbeatResponse(
        error_code=error, error_message=text, member_id=None
    )


# ---- handlers


def consumer_group_heartbeat(state: State, call: Call) -> Any:
    """ConsumerGroupHeartbeat."""
    group = state.groups.consumer(call.body.group_id)
    if isinstance(group, int):
        return _refusal(group, "the group has members of the classic protocol")
    return group.heartbeat(call, state.groups.new_member_id(call.client_id))


def consumer_group_describe(state: State, call: Call) -> Steps:
    """ConsumerGroupDescribe."""
    kind = messages.ConsumerGroupDescribeResponse
    groups = []
    for group_id in call.body.group_ids:
        yield
        group = state.groups.by_id.get(group_id)
        if not isinstance(group, ConsumerGroup):
            error = codes.GROUP_ID_NOT_FOUND
            text = f"Group {group_id} is not a consumer group."
            groups.append(
                kind.DescribedGroup(group_id=group_id, error_code=error, error_message=text)
            )
            continue
        described = kind.DescribedGroup(
            group_id=group_id,
            group_state=group.group_state,
            group_epoch=group.epoch,
            assignment_epoch=group.epoch,
            assignor_name="uniform",
            members=[_described(state.cluster, each) for each in group.members.values()],
        )
        groups.append(described)
    return kind(groups=groups)


def _described(cluster: ClusterState, member: ConsumerMember) -> Any:
    kind = messages.ConsumerGroupDescribeResponse

    def assignment(keys: set[Key]) -> Any:
        return kind.Assignment(
            topic_partitions=[
                kind.TopicPartitions(
                    topic_id=topic.topic_id, topic_name=topic.name, partitions=indexes
                )
                for topic, indexes in by_topic(cluster, keys)
            ]
        )

    return kind.Member(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.topics),
        subscribed_topic_regex=member.regex,
        assignment=assignment(member.held),
        target_assignment=assignment(member.target),
        member_type=1,
    )


HANDLERS = {
    "ConsumerGroupHeartbeat": consumer_group_heartbeat,
    "ConsumerGroupDescribe": consumer_group_describe,
}
