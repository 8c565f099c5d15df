"""Metadata, FindCoordinator, DescribeCluster, DescribeTopicPartitions.

Addresses are those of our listeners, node ids those of the recording. Topics that are not in the
recording do not exist, and are not created when a client names one. Most clients then retry
silently, so naming such a topic is a finding, unless it was missing in the recording, too.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from difflib import get_close_matches
from itertools import islice
from typing import TYPE_CHECKING, Any

from kproxy.replay.call import Call
from kproxy.replay.steps import Steps
from kproxy.replay.topics import Partition, Topic
from kproxy.wire.protocol import codes, messages
from kproxy.wire.protocol.schema import NO_UUID

if TYPE_CHECKING:
    from kproxy.replay.state import State

_GROUP, _TRANSACTION = 0, 1
_COMPARED_MAX = 1000
"""At most this many names are searched for the closest one."""
_SORTED_MAX = 1000
_ADVICE = "if that is meant, record a run that uses it"


def metadata(state: State, call: Call) -> Steps:
    """Metadata."""
    response, cluster = messages.MetadataResponse, state.cluster
    wanted = call.body.topics
    topics = []
    if wanted is None or (call.version == 0 and not wanted):
        for topic in list(cluster.topics.values()):
            topics.append((yield from _described(topic)))
    else:
        for each in wanted:
            yield
            topic_id = each.topic_id if call.version >= 12 else NO_UUID
            topic = cluster.topic(each.name, topic_id)
            if topic is None and each.name and call.body.allow_auto_topic_creation:
                topic = cluster.create_by_itself(each.name)
            if topic is not None:
                topics.append((yield from _described(topic)))
                continue
            if each.name:
                yield from _report_unknown_topic(state, each.name)
            error = codes.UNKNOWN_TOPIC_OR_PARTITION if each.name else codes.UNKNOWN_TOPIC_ID
            if state.settings.fails_fast and each.name in state.reported_topics:
                error = codes.TOPIC_AUTHORIZATION_FAILED
            missing = response.MetadataResponseTopic
            topics.append(missing(error_code=error, name=each.name, topic_id=topic_id))
    broker = response.MetadataResponseBroker
    brokers = [
        broker(node_id=node_id, host=host, port=port, rack=rack)
        for node_id, host, port, rack in _brokers(state, call)
    ]
    return response(
        brokers=brokers,
        cluster_id=cluster.cluster_id,
        controller_id=cluster.controller_id,
        topics=topics,
    )


def _report_unknown_topic(state: State, name: str) -> Steps:
    """Report a topic that does not exist, unless it was missing in the recording, too."""
    loaded = state.loaded
    known = loaded.cluster.names.values()
    if name in state.reported_topics or name in loaded.refused or name in known:
        return
    if state.report.full:
        state.report.add("not recorded", "")
        return
    state.reported_topics.add(name)
    compared = list(islice(known, _COMPARED_MAX))
    yield from (None for _ in compared)  # a step for each: it takes long
    closest = get_close_matches(name, compared, 1)
    hint = f" (closest: {closest[0]})" if closest else ""
    state.report.add("not recorded", f"topic {name} is not in the recording{hint}", _ADVICE)


def _described(topic: Topic) -> Steps:
    response = messages.MetadataResponse
    partitions = []
    for index in sorted(topic.partitions):
        yield
        found = response.MetadataResponsePartition
        partitions.append(found(**_placement(topic.partitions[index])))
    return response.MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.internal,
        partitions=partitions,
    )


def _brokers(state: State, call: Call) -> Iterator[tuple[int, str, int, str | None]]:
    """Yield node id, host, port and rack of each broker that has a listener."""
    for node_id in sorted(state.listening):
        yield node_id, *state.address(call.connection, node_id), state.cluster.racks.get(node_id)


def find_coordinator(state: State, call: Call) -> Steps:
    """FindCoordinator, for one key (up to version 3) or for several."""
    body, response = call.body, messages.FindCoordinatorResponse
    keys = body.coordinator_keys if call.version >= 4 else [body.key]
    found = []
    for key in keys:
        yield
        if body.key_type not in (_GROUP, _TRANSACTION):
            text = "share groups are not replayed"
            refused = response.Coordinator(
                key=key,
                node_id=-1,
                port=-1,
                error_code=codes.INVALID_REQUEST,
                error_message=text,
            )
            found.append(refused)
            continue
        node_id = state.cluster.coordinator(body.key_type, key)
        host, port = state.address(call.connection, node_id)
        found.append(response.Coordinator(key=key, node_id=node_id, host=host, port=port))
    if call.version >= 4:
        return response(coordinators=found)
    one = found[0]
    return response(
        error_code=one.error_code,
        error_message=one.error_message,
        node_id=one.node_id,
        host=one.host,
        port=one.port,
    )


def describe_cluster(state: State, call: Call) -> Any:
    """DescribeCluster."""
    response, cluster = messages.DescribeClusterResponse, state.cluster
    broker = response.DescribeClusterBroker
    brokers = [
        broker(broker_id=node_id, host=host, port=port, rack=rack)
        for node_id, host, port, rack in _brokers(state, call)
    ]
    return response(
        cluster_id=cluster.cluster_id or "",
        controller_id=cluster.controller_id,
        brokers=brokers,
        endpoint_type=call.body.endpoint_type,
    )


def describe_topic_partitions(state: State, call: Call) -> Steps:
    """DescribeTopicPartitions, with a cursor if a response cannot have all."""
    body, response = call.body, messages.DescribeTopicPartitionsResponse
    names = (yield from _sorted_names(body.topics)) if body.topics else sorted(state.cluster.topics)
    first = (body.cursor.topic_name, body.cursor.partition_index) if body.cursor else ("", 0)
    left = max(1, body.response_partition_limit)
    topics, cursor = [], None
    for name in names:
        yield
        if name < first[0]:
            continue
        topic = state.cluster.topics.get(name)
        kind = response.DescribeTopicPartitionsResponseTopic
        if topic is None:
            yield from _report_unknown_topic(state, name)
            topics.append(kind(error_code=codes.UNKNOWN_TOPIC_OR_PARTITION, name=name))
            continue
        start = first[1] if name == first[0] else 0
        indexes = sorted(index for index in topic.partitions if index >= start)
        if left == 0:
            cursor = response.Cursor(topic_name=name, partition_index=start)
            break
        described = kind(name=name, topic_id=topic.topic_id, is_internal=topic.internal)
        found = response.DescribeTopicPartitionsResponsePartition
        described.partitions = [
            found(
                **_placement(topic.partitions[index]),
                eligible_leader_replicas=[],
                last_known_elr=[],
            )
            for index in indexes[:left]
        ]
        topics.append(described)
        if len(indexes) > left:
            cursor = response.Cursor(topic_name=name, partition_index=indexes[left])
            break
        left -= len(indexes)
    return response(topics=topics, next_cursor=cursor)


def _sorted_names(topics: list[Any]) -> Steps:
    """Return the names in order; they are put in order a few at a time."""
    runs = []
    for start in range(0, len(topics), _SORTED_MAX):
        run = topics[start : start + _SORTED_MAX]
        yield from (None for _ in run)
        runs.append(sorted(each.name for each in run))
    return heapq.merge(*runs)


def _placement(partition: Partition) -> dict[str, Any]:
    """Return where a partition is, in the words of both APIs that describe topics."""
    return {
        "partition_index": partition.index,
        "leader_id": partition.leader_id,
        "leader_epoch": partition.leader_epoch,
        "replica_nodes": partition.replicas or [partition.leader_id],
        "isr_nodes": partition.in_sync or [partition.leader_id],
    }


HANDLERS = {
    "Metadata": metadata,
    "FindCoordinator": find_coordinator,
    "DescribeCluster": describe_cluster,
    "DescribeTopicPartitions": describe_topic_partitions,
}
