"""Requests that create and delete topics, partitions, records, groups and offsets; configs.

Only recorded topics and partitions can be created, each generation of a topic after the one before
was deleted. With `--visible causal` a topic that a client created in the recording does not exist
before it is created again; nor do added partitions.

Later requests do not find what was deleted. A deleted topic may be created again: it is then the
next one that the recording has of this name, or else the same again, with its recorded records.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

from kproxy.exchange.words.wording import count
from kproxy.replay import semantic
from kproxy.replay.call import Call
from kproxy.replay.steps import Steps, by_partition
from kproxy.replay.topics import Topic
from kproxy.wire.protocol import codes, messages
from kproxy.wire.protocol.schema import NO_UUID

if TYPE_CHECKING:
    from kproxy.replay.state import State

_ALL_RECORDS = -1
_TOPIC = 2
_ADVICE = "record a run that creates it"


def create_topics(state: State, call: Call) -> Steps:
    """CreateTopics: each topic once, as recorded."""
    kind = messages.CreateTopicsResponse
    recorded = _recorded(state, call.api_key, "topics")
    results = []
    for wanted in call.body.topics:
        yield
        name = wanted.name
        found = recorded.get(name)
        exists = name in state.cluster.topics
        if found and not (exists and name in state.created):
            topic = state.cluster.topics.get(name) or state.cluster.later.get(name)
            if not call.body.validate_only:
                state.created.add(name)
                state.cluster.create(name)
            results.append(_result_of(topic, found))
            continue
        error, text = codes.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists."
        if not exists:
            error, text = codes.POLICY_VIOLATION, f"the recording has no topic {name!r}"
            state.report.add("not served", f"CreateTopics: {text}", _ADVICE)
        results.append(kind.CreatableTopicResult(name=name, error_code=error, error_message=text))
    return kind(topics=results)


def create_partitions(state: State, call: Call) -> Steps:
    """CreatePartitions: partitions that come later in the recording."""
    kind = messages.CreatePartitionsResponse
    recorded = _recorded(state, call.api_key, "results")
    results = []
    for wanted in call.body.topics:
        yield
        topic = state.cluster.topics.get(wanted.name)
        found = recorded.get(wanted.name)
        result = kind.CreatePartitionsTopicResult(name=wanted.name)
        if topic is None:
            result.error_code = codes.UNKNOWN_TOPIC_OR_PARTITION
        elif wanted.count > len(topic.partitions) + len(topic.later):
            many = count(wanted.count, "partition")
            text = f"topic {wanted.name!r} never has {many} in the recording"
            result.error_code, result.error_message = codes.POLICY_VIOLATION, text
            state.report.add("not served", f"CreatePartitions: {text}", _ADVICE)
        elif wanted.count > len(topic.partitions):
            new = [index for index in topic.later if index < wanted.count]
            for index in () if call.body.validate_only else new:
                topic.partitions[index] = topic.later.pop(index)
        elif found:
            result = found[-1]
        else:
            text = f"Topic already has {len(topic.partitions)} partition(s)."
            result.error_code, result.error_message = codes.INVALID_PARTITIONS, text
        results.append(result)
    return kind(results=results)


def _result_of(topic: Topic | None, found: list[Any]) -> Any:
    """Return the recorded result that created a topic, or else the last that did not."""
    created = [each for each in found if not each.error_code]
    if topic is None or not created:
        return found[-1]
    result = next((each for each in created if each.topic_id == topic.topic_id), created[-1])
    result.topic_id = topic.topic_id
    return result


def _recorded(state: State, api_key: int, field: str) -> dict[str, list[Any]]:
    """Return the recorded results of each topic."""
    found: dict[str, list[Any]] = {}
    for exchange in state.loaded.others.get(api_key, ()):
        for each in getattr(exchange.response, field):
            found.setdefault(each.name, []).append(each)
    return found


def delete_topics(state: State, call: Call) -> Steps:
    """DeleteTopics: by name, or by id from version 6 on."""
    kind, cluster = messages.DeleteTopicsResponse, state.cluster
    by_name = ((name, NO_UUID) for name in call.body.topic_names)
    by_either = ((each.name, each.topic_id) for each in call.body.topics)
    results = []
    for name, topic_id in chain(by_name, by_either):  # no version has both
        yield
        topic = cluster.topic(name, topic_id)
        if topic is None:
            error = codes.UNKNOWN_TOPIC_OR_PARTITION if name else codes.UNKNOWN_TOPIC_ID
            result = kind.DeletableTopicResult(name=name, topic_id=topic_id, error_code=error)
            result.error_message = "This server does not host this topic-partition."
        else:
            cluster.delete(topic)
            state.created.discard(topic.name)
            for offsets in state.groups.committed.values():
                for key in [key for key in offsets if key[0] == topic.name]:
                    del offsets[key]
            for partition in topic.partitions.values():
                state.fetches.more_visible(state, partition)
            result = kind.DeletableTopicResult(name=topic.name, topic_id=topic.topic_id)
        results.append(result)
    return kind(responses=results)


def delete_records(state: State, call: Call) -> Steps:
    """DeleteRecords: move the start of each log forward."""
    kind = messages.DeleteRecordsResponse

    def delete(topic: Any, wanted: Any) -> Any:
        index = wanted.partition_index
        found = kind.DeleteRecordsPartitionResult(partition_index=index, low_watermark=-1)
        partition = state.cluster.partition(topic.name, NO_UUID, index)
        if partition is None:
            found.error_code = codes.UNKNOWN_TOPIC_OR_PARTITION
            return found
        log = partition.log
        offset = log.visible_end if wanted.offset == _ALL_RECORDS else wanted.offset
        if 0 <= offset <= log.visible_end:
            log.delete_before(offset)
            found.low_watermark = log.start_offset
        else:
            found.error_code = codes.OFFSET_OUT_OF_RANGE
        return found

    topics = yield from by_partition(call.body.topics, delete, kind.DeleteRecordsTopicResult)
    return kind(topics=topics)


def delete_groups(state: State, call: Call) -> Steps:
    """DeleteGroups: only groups without members can be deleted."""
    kind, groups = messages.DeleteGroupsResponse, state.groups
    results = []
    for group_id in call.body.groups_names:
        yield
        error = 0
        group = groups.by_id.get(group_id)
        if group is not None and not group.empty:
            error = codes.NON_EMPTY_GROUP
        elif group_id not in groups.listed():
            error = codes.GROUP_ID_NOT_FOUND
        else:
            groups.by_id.pop(group_id, None)
            groups.committed.pop(group_id, None)
            groups.recorded.pop(group_id, None)
        results.append(kind.DeletableGroupResult(group_id=group_id, error_code=error))
    return kind(results=results)


def offset_delete(state: State, call: Call) -> Steps:
    """OffsetDelete."""
    body, kind = call.body, messages.OffsetDeleteResponse
    if body.group_id not in state.groups.listed():
        return kind(error_code=codes.GROUP_ID_NOT_FOUND)
    offsets = state.groups.committed.get(body.group_id, {})

    def delete(topic: Any, wanted: Any) -> Any:
        index = wanted.partition_index
        offsets.pop((topic.name, index), None)
        known = state.cluster.partition(topic.name, NO_UUID, index) is not None
        error = 0 if known else codes.UNKNOWN_TOPIC_OR_PARTITION
        return kind.OffsetDeleteResponsePartition(partition_index=index, error_code=error)

    topics = yield from by_partition(body.topics, delete, kind.OffsetDeleteResponseTopic)
    return kind(topics=topics)


Resource = tuple[int, str]
"""Type and name."""


def describe_configs(state: State, call: Call) -> Steps:
    """DescribeConfigs: recorded responses, one after the other, where the request was recorded:
    configs may have been altered between them. Another set of resources gets the configs that were
    recorded last for each of them; what the recording does not have is not made up."""
    body = state.semantic.recorded(call)
    if body is not None:
        return body
    kind = messages.DescribeConfigsResponse
    recorded = _recorded_configs(state, call.api_key)
    results = []
    for each in call.body.resources:
        yield
        found = recorded.get((each.resource_type, each.resource_name))
        result = kind.DescribeConfigsResult(
            resource_type=each.resource_type, resource_name=each.resource_name
        )
        if each.resource_type == _TOPIC and each.resource_name not in state.cluster.topics:
            result.error_code = codes.UNKNOWN_TOPIC_OR_PARTITION
        elif found is None:
            text = f"the recording does not have the configs of {each.resource_name!r}"
            result.error_code, result.error_message = codes.INVALID_CONFIG, text
            state.report.add("not served", f"DescribeConfigs: {text}", semantic.ADVICE)
        else:
            wanted = each.configuration_keys
            result.configs = [config for config in found if wanted is None or config.name in wanted]
        results.append(result)
    return kind(results=results)


def _recorded_configs(state: State, api_key: int) -> dict[Resource, list[Any]]:
    """Return the configs of each resource, the last of each name."""
    found: dict[Resource, dict[str, Any]] = {}
    for exchange in state.loaded.others.get(api_key, ()):
        for each in exchange.response.results:
            if not each.error_code:
                configs = found.setdefault((each.resource_type, each.resource_name), {})
                configs.update((config.name, config) for config in each.configs)
    return {resource: list(configs.values()) for resource, configs in found.items()}


HANDLERS = {
    "DescribeConfigs": describe_configs,
    "CreateTopics": create_topics,
    "CreatePartitions": create_partitions,
    "DeleteTopics": delete_topics,
    "DeleteRecords": delete_records,
    "DeleteGroups": delete_groups,
    "OffsetDelete": offset_delete,
}
