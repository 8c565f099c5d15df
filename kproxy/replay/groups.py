"""All groups: their kinds, members and committed offsets."""

from __future__ import annotations

import uuid
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs

from kproxy.replay.call import Call
from kproxy.replay.classic_group import ClassicGroup
from kproxy.replay.consumer_group import ConsumerGroup
from kproxy.replay.loaded import Committed, Loaded, PartitionKey
from kproxy.replay.steps import Steps, by_partition
from kproxy.replay.timers import Timers
from kproxy.wire.protocol import codes, messages
from kproxy.wire.protocol.schema import NO_UUID

if TYPE_CHECKING:
    from kproxy.replay.state import State

_GROUP = 0
_MEMBER_IDS = uuid.UUID("b0a1a3a0-5c58-4a7b-8a35-2b0c0a1f7e55")
"""Clients tell its text; that of UNSUPPORTED_VERSION would be theirs."""


@attrs.define(eq=False)
class ServedGroups:
    """Groups by id."""

    loaded: Loaded
    timers: Timers
    respond: Any
    by_id: dict[str, ClassicGroup | ConsumerGroup] = attrs.Factory(dict)
    committed: dict[str, dict[PartitionKey, Committed]] = attrs.field(init=False)
    recorded: dict[str, str] = attrs.field(init=False)
    """The kinds of the recorded groups that were not deleted."""
    undecided: dict[str, dict[int, dict[PartitionKey, Committed]]] = attrs.Factory(dict)
    """Offsets that open transactions would commit, by group and producer id."""
    _members: int = attrs.field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        known = self.loaded.committed
        self.recorded = dict(self.loaded.groups)
        self.committed = {group: dict(offsets) for group, offsets in known.items()}

    def new_member_id(self, client_id: str) -> str:
        """Return an id that no member has had."""
        self._members += 1
        return f"{client_id or 'member'}-{uuid.uuid5(_MEMBER_IDS, str(self._members))}"

    def classic(self, group_id: str) -> ClassicGroup | int:
        """Return the classic group of this id, creating it if needed; or an error code."""
        group = self.by_id.get(group_id)
        if isinstance(group, ClassicGroup):
            return group
        if not group_id:
            return codes.INVALID_GROUP_ID
        if group is not None and not group.empty:
            return codes.INCONSISTENT_GROUP_PROTOCOL
        group = self.by_id[group_id] = ClassicGroup(group_id, self.timers, self.respond)
        return group

    def consumer(self, group_id: str) -> ConsumerGroup | int:
        """Return the KIP-848 group of this id, creating it if needed; or an error code."""
        group = self.by_id.get(group_id)
        if isinstance(group, ConsumerGroup):
            return group
        if not group_id:
            return codes.INVALID_GROUP_ID
        if group is not None and not group.empty:
            return codes.GROUP_ID_NOT_FOUND
        group = self.by_id[group_id] = ConsumerGroup(group_id, self.timers, self.loaded.cluster)
        return group

    def check_commit(
        self, group_id: str, member_id: str, instance_id: str | None, epoch: int
    ) -> int:
        """Return the error code for a commit of offsets by this member."""
        group = self.by_id.get(group_id)
        if epoch < 0 and (group is None or group.empty or not member_id):
            return 0  # not a member: a consumer that assigns partitions to itself
        if group is None:
            return codes.ILLEGAL_GENERATION
        if isinstance(group, ClassicGroup):
            return group.check(member_id, instance_id, epoch)
        return group.check(member_id, epoch)

    def listed(self) -> dict[str, tuple[str, str, str]]:
        """Return protocol type, state and kind of every group; recorded groups are empty."""
        found = {
            group_id: ("", "Empty", "classic")  # a consumer without a group protocol
            for group_id, offsets in self.committed.items()
            if offsets
        }
        for group_id, kind in self.recorded.items():
            found[group_id] = ("consumer", "Empty", kind)
        for group_id, group in self.by_id.items():
            if not group.empty or self.committed.get(group_id) or group_id in found:
                found[group_id] = (
                    group.protocol_type or "consumer",
                    group.group_state,
                    group.group_type,
                )
        return found


# ---- offsets


def offset_commit(state: State, call: Call) -> Steps:
    """OffsetCommit."""
    body = call.body
    error = state.groups.check_commit(
        body.group_id, body.member_id, body.group_instance_id, body.generation_id_or_member_epoch
    )
    offsets = state.groups.committed.setdefault(body.group_id, {})
    kind = messages.OffsetCommitResponse
    response = yield from commit_response(state, kind, "OffsetCommit", body, offsets, error)
    if took_offsets(response):
        state.check.committing.plainly.add(body.group_id)
    return response


def took_offsets(response: Any) -> bool:
    """Return whether the response to an OffsetCommit or a TxnOffsetCommit says that an offset was
    taken."""
    return any(not one.error_code for each in response.topics for one in each.partitions)


def commit_response(
    state: State,
    response: Any,
    name: str,
    body: Any,
    offsets: dict[PartitionKey, Committed],
    error: int,
) -> Steps:
    """Put the offsets of an OffsetCommit or a TxnOffsetCommit in `offsets`; return the response."""
    topic_class = getattr(response, f"{name}ResponseTopic")
    partition_class = getattr(response, f"{name}ResponsePartition")

    def commit(each: Any, wanted: Any) -> Any:
        code, index = error, wanted.partition_index
        topic = state.cluster.topic(each.name, each.topic_id)
        if not code and topic is None:
            code = codes.UNKNOWN_TOPIC_OR_PARTITION if each.name else codes.UNKNOWN_TOPIC_ID
        elif not code and topic is not None:
            epoch, metadata = wanted.committed_leader_epoch, wanted.committed_metadata
            offsets[topic.name, index] = Committed(wanted.committed_offset, epoch, metadata)
        return partition_class(partition_index=index, error_code=code)

    return response(topics=(yield from by_partition(body.topics, commit, topic_class)))


def offset_fetch(state: State, call: Call) -> Steps:
    """OffsetFetch, for one group (up to version 7) or for several."""
    body, response = call.body, messages.OffsetFetchResponse
    if call.version < 8:
        asked = [body]
        kinds = response.OffsetFetchResponseTopic, response.OffsetFetchResponsePartition
    else:
        asked = body.groups
        kinds = response.OffsetFetchResponseTopics, response.OffsetFetchResponsePartitions
    groups: list[Any] = []
    for each in asked:
        wanted = each.topics if call.version >= 2 or each.topics else []
        stable = body.require_stable
        topics = yield from _offsets(state, each.group_id, wanted, stable, *kinds)
        groups.append(response.OffsetFetchResponseGroup(group_id=each.group_id, topics=topics))
    return response(topics=groups[0].topics) if call.version < 8 else response(groups=groups)


def _offsets(
    state: State,
    group_id: str,
    wanted: list[Any] | None,
    stable: bool,
    topic_class: Any,
    partition_class: Any,
) -> Steps:
    """Return the offsets that a group has committed for `wanted` topics; None: for all."""
    groups, cluster = state.groups, state.cluster
    committed = groups.committed.get(group_id, {})
    undecided = {key for each in groups.undecided.get(group_id, {}).values() for key in each}
    asked: dict[tuple[str, uuid.UUID], list[int]] = {}
    if wanted is None:
        for name, index in sorted(committed):
            yield
            topic = cluster.topics.get(name)
            topic_id = topic.topic_id if topic else NO_UUID
            asked.setdefault((name, topic_id), []).append(index)
    else:
        for each in wanted:
            yield
            topic_id = getattr(each, "topic_id", NO_UUID)
            name = each.name or cluster.names.get(topic_id, "")
            asked.setdefault((name, topic_id), []).extend(each.partition_indexes)
    has_ids = "topic_id" in topic_class.__slots__
    topics = []
    for (name, topic_id), indexes in asked.items():
        partitions = []
        for index in indexes:
            yield
            found = committed.get((name, index), Committed(-1))
            error = codes.UNSTABLE_OFFSET_COMMIT if stable and (name, index) in undecided else 0
            if not name:
                error = codes.UNKNOWN_TOPIC_ID
            if error:
                found = Committed(-1)
            partitions.append(
                partition_class(
                    partition_index=index,
                    committed_offset=found.offset,
                    committed_leader_epoch=found.leader_epoch,
                    metadata=found.metadata or "",
                    error_code=error,
                )
            )
        known = {"topic_id": topic_id} if has_ids else {}
        topics.append(topic_class(name=name, partitions=partitions, **known))
    return topics


# ---- describing


def list_groups(state: State, call: Call) -> Any:
    """ListGroups."""
    response = messages.ListGroupsResponse
    states = {each.lower() for each in call.body.states_filter}
    kinds = {each.lower() for each in call.body.types_filter}
    groups = [
        response.ListedGroup(
            group_id=group_id, protocol_type=protocol, group_state=group_state, group_type=kind
        )
        for group_id, (protocol, group_state, kind) in sorted(state.groups.listed().items())
        if _is_coordinator(state, call, group_id)
        and (not states or group_state.lower() in states)
        and (not kinds or kind in kinds)
    ]
    return response(groups=groups)


def _is_coordinator(state: State, call: Call, group_id: str) -> bool:
    """Return whether the broker that was asked coordinates a group: clients ask all of them."""
    node_id = call.connection.client.node_id
    return node_id in (None, state.cluster.coordinator(_GROUP, group_id))


def describe_groups(state: State, call: Call) -> Steps:
    """DescribeGroups, for groups of the classic protocol."""
    response = messages.DescribeGroupsResponse
    known = state.groups.listed()
    groups = []
    for group_id in call.body.groups:
        yield
        group = state.groups.by_id.get(group_id)
        if isinstance(group, ClassicGroup):
            groups.append(_described(group))
        elif group_id in known:
            found = response.DescribedGroup(
                group_id=group_id, group_state="Empty", protocol_type=known[group_id][0]
            )
            groups.append(found)
        else:
            found = response.DescribedGroup(group_id=group_id, group_state="Dead")
            if call.version >= 6:
                found.error_code = codes.GROUP_ID_NOT_FOUND
                found.error_message = f"Group {group_id} not found."
            groups.append(found)
    return response(groups=groups)


def _described(group: ClassicGroup) -> Any:
    response = messages.DescribeGroupsResponse
    return response.DescribedGroup(
        group_id=group.group_id,
        group_state=group.group_state,
        protocol_type=group.protocol_type,
        protocol_data=group.protocol or "",
        members=[
            response.DescribedGroupMember(
                member_id=each.member_id,
                group_instance_id=each.instance_id,
                client_id=each.client_id,
                client_host=each.client_host,
                member_metadata=each.metadata(group.protocol or ""),
                member_assignment=each.assignment,
            )
            for each in group.members.values()
        ],
    )


# ---- groups that are not replayed


def _refuse(kind: str, response: Any, state: State, call: Call) -> Any:
    """Tell a member of a share or streams group at once. With a recorded assignment it would wait
    for records for ever; without the API in ApiVersions it would not say so to the broker."""
    text = f"{kind} groups are not replayed by kproxy"
    state.report.add("not served", f"group {call.body.group_id}: {text}")
    return response(error_code=codes.INVALID_REQUEST, error_message=text)


REFUSED = {
    "ShareGroupHeartbeat": partial(_refuse, "share", messages.ShareGroupHeartbeatResponse),
    "StreamsGroupHeartbeat": partial(_refuse, "streams", messages.StreamsGroupHeartbeatResponse),
}
HANDLERS = {
    **REFUSED,
    "OffsetCommit": offset_commit,
    "OffsetFetch": offset_fetch,
    "ListGroups": list_groups,
    "DescribeGroups": describe_groups,
}
