"""What members of groups, and producers with transactions, ask of coordinators, as rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from kproxy.exchange import embedded
from kproxy.exchange.entities import TopicPartition
from kproxy.exchange.exchange import Exchange
from kproxy.history.rows import (
    AddedToTxn,
    Assigned,
    Beat,
    CommitRequested,
    Coordinator,
    Deleted,
    Ended,
    Initialized,
    Joined,
    Left,
    OffsetsFetched,
    Row,
)
from kproxy.wire.protocol import error_name

_NOBODY = (-1, -1)
_LEAVES_FOR_NOW = -2
"""The epoch with which a static member of KIP-848 leaves, and means to come again."""


def error_of(body: Any) -> str:
    """Return the name of the error of a response or of a part of it; "" if there is none."""
    code = getattr(body, "error_code", 0)
    return error_name(code) if code else ""


def topic_of(struct: Any, exchange: Exchange) -> str:
    """Return the topic of a struct, which has its name or, in newer versions, its id."""
    name = getattr(struct, "name", "") or getattr(struct, "topic", "") or ""
    return name or exchange.topic_names.text(struct.topic_id)


def _instance(request: Any) -> str:
    return getattr(request, "group_instance_id", None) or ""


def _join(exchange: Exchange) -> Iterator[Row]:
    request, response = exchange.request, exchange.response
    given = getattr(response, "generation_id", -1)
    yield Joined(
        request.group_id,
        getattr(response, "member_id", "") or request.member_id,
        request.member_id,
        _instance(request),
        "classic",
        given if given >= 0 else None,
        request.protocol_type,
        tuple(each.name for each in request.protocols),
        tuple(exchange.topics),
        request.session_timeout_ms,
        request.rebalance_timeout_ms,
        tuple(each.member_id for each in getattr(response, "members", None) or ()),
        getattr(request, "reason", None) or "",
        error_of(response),
        _owned(request),
    )


def _owned(request: Any) -> tuple[TopicPartition, ...]:
    """Return the partitions that a member has, as it says with the first assignor that it offers:
    with all the same."""
    metadata = request.protocols[0].metadata if request.protocols else None
    found = embedded.subscription(metadata) if request.protocol_type == "consumer" else None
    return tuple(
        TopicPartition(each.topic, partition)
        for each in getattr(found, "owned_partitions", None) or ()
        for partition in each.partitions
    )


def _sync(exchange: Exchange) -> Iterator[Row]:
    request, response = exchange.request, exchange.response
    found, undecoded = embedded.read_assignment(getattr(response, "assignment", None))
    given = [
        TopicPartition(each.topic, partition)
        for each in (found.assigned_partitions if found is not None else ())
        for partition in each.partitions
    ]
    yield Assigned(
        request.group_id, request.member_id, request.generation_id, tuple(given),
        undecoded if found is None else "", 0, error_of(response), _instance(request),
    )  # fmt: skip


def _heartbeat(exchange: Exchange) -> Iterator[Row]:
    request = exchange.request
    yield Beat(
        request.group_id, request.member_id, request.generation_id, None,
        error_of(exchange.response), _instance(request),
    )  # fmt: skip


def _leave(exchange: Exchange) -> Iterator[Row]:
    """Yield the members that leave, together and each with its own error from version 3 on."""
    request, response = exchange.request, exchange.response
    whole = error_of(response)
    if not request.members:
        yield Left(request.group_id, request.member_id, "", False, "", whole)
        return
    errors = {
        (each.member_id, each.group_instance_id or ""): error_of(each)
        for each in getattr(response, "members", None) or ()
    }
    for each in request.members:
        instance = each.group_instance_id or ""
        error = whole or errors.get((each.member_id, instance), "")
        reason = getattr(each, "reason", None) or ""
        yield Left(request.group_id, each.member_id, instance, False, reason, error)


def _group_heartbeat(exchange: Exchange) -> Iterator[Row]:
    """Yield what a heartbeat of KIP-848 does: it joins, leaves, reports, and gets an assignment."""
    request, response = exchange.request, exchange.response
    error, epoch = error_of(response), request.member_epoch
    member = request.member_id or getattr(response, "member_id", None) or ""
    instance = request.instance_id or ""
    given = getattr(response, "member_epoch", -1)
    if epoch == 0:
        regex = getattr(request, "subscribed_topic_regex", None)
        topics = [
            *(request.subscribed_topic_names or ()),
            *([f"all like {regex}"] if regex else ()),
        ]
        assignor = (request.server_assignor,) if request.server_assignor else ()
        yield Joined(
            request.group_id, member, request.member_id, instance, "consumer",
            given if response is not None and not error else None, "consumer", assignor,
            tuple(topics), 0, max(0, request.rebalance_timeout_ms), (), "", error,
        )  # fmt: skip
    elif epoch < 0:
        for_now = epoch == _LEAVES_FOR_NOW
        yield Left(request.group_id, member, instance, for_now, "", error)
        return
    else:
        owned = request.topic_partitions
        places = None if owned is None else tuple(_places(owned, exchange))
        yield Beat(request.group_id, member, epoch, places, error, instance, given)
    if response is not None and not error and response.assignment is not None:
        places = tuple(_places(response.assignment.topic_partitions, exchange))
        beat_ms = response.heartbeat_interval_ms
        yield Assigned(request.group_id, member, given, places, "", beat_ms, "", instance)


def _places(topics: Iterable[Any], exchange: Exchange) -> Iterator[TopicPartition]:
    for each in topics:
        topic = exchange.topic_names.text(each.topic_id)
        yield from (TopicPartition(topic, partition) for partition in each.partitions)


def _commit(exchange: Exchange) -> Iterator[Row]:
    """Yield the offsets of an OffsetCommit or a TxnOffsetCommit."""
    request = exchange.request
    errors = {
        (topic_of(topic, exchange), each.partition_index): error_of(each)
        for topic in getattr(exchange.response, "topics", ())
        for each in topic.partitions
    }
    in_transaction = exchange.api == "TxnOffsetCommit"
    transactional_id = request.transactional_id if in_transaction else ""
    producer = (request.producer_id, request.producer_epoch) if in_transaction else _NOBODY
    generation = request.generation_id_or_member_epoch
    for topic in request.topics:
        name = topic_of(topic, exchange)
        for each in topic.partitions:
            where = TopicPartition(name, each.partition_index)
            yield CommitRequested(
                request.group_id, request.member_id, generation, where, each.committed_offset,
                transactional_id, producer, errors.get(where, ""), _instance(request),
            )  # fmt: skip


def _fetch_offsets(exchange: Exchange) -> Iterator[Row]:
    """Yield the committed offsets that a coordinator tells; of several groups from version 8 on."""
    request, response = exchange.request, exchange.response
    if response is None:
        return
    for group in getattr(response, "groups", None) or ():
        yield from _fetched(group.group_id, group.topics, exchange)
    if response.topics:
        yield from _fetched(request.group_id, response.topics, exchange)


def _fetched(group: str, topics: Iterable[Any], exchange: Exchange) -> Iterator[Row]:
    for topic in topics:
        for each in topic.partitions:
            where = TopicPartition(topic_of(topic, exchange), each.partition_index)
            yield OffsetsFetched(group, where, each.committed_offset, error_of(each))


def _delete_groups(exchange: Exchange) -> Iterator[Row]:
    for each in getattr(exchange.response, "results", ()):
        if not each.error_code:
            yield Deleted(each.group_id, None, None)


def _delete_offsets(exchange: Exchange) -> Iterator[Row]:
    request, response = exchange.request, exchange.response
    if response is None or response.error_code:
        return
    for topic in response.topics:
        for each in topic.partitions:
            if not each.error_code:
                yield Deleted(request.group_id, topic.name, each.partition_index)


def _find_coordinator(exchange: Exchange) -> Iterator[Row]:
    """Yield the coordinators that are told; of several keys from version 4 on."""
    request, response = exchange.request, exchange.response
    if response is None or exchange.injected or request.key_type not in (0, 1):
        return
    for each in response.coordinators or ():
        if not each.error_code:
            yield Coordinator(request.key_type == 0, each.key, each.node_id)
    if not response.coordinators and not response.error_code:
        yield Coordinator(request.key_type == 0, request.key, response.node_id)


# ── what producers ask ─────────────────────────────────────────────────────────────────────────


def _initialize(exchange: Exchange) -> Iterator[Row]:
    request, response = exchange.request, exchange.response
    asked = getattr(request, "producer_id", -1), getattr(request, "producer_epoch", -1)
    given = getattr(response, "producer_id", -1), getattr(response, "producer_epoch", -1)
    yield Initialized(
        request.transactional_id or "", asked, given, request.transaction_timeout_ms,
        error_of(response),
    )  # fmt: skip


def _add_partitions(exchange: Exchange) -> Iterator[Row]:
    """Yield what clients add; the batches of version 4 and newer are brokers' own."""
    request = exchange.request
    errors = exchange.broker_errors
    errors = exchange.errors if errors is None else errors
    places = [
        TopicPartition(topic.name, partition)
        for topic in request.v3_and_below_topics or ()
        for partition in topic.partitions
    ]
    if request.v3_and_below_transactional_id:
        yield AddedToTxn(
            request.v3_and_below_transactional_id,
            (request.v3_and_below_producer_id, request.v3_and_below_producer_epoch),
            tuple(places), "", errors[0] if errors else "",
        )  # fmt: skip


def _add_offsets(exchange: Exchange) -> Iterator[Row]:
    request = exchange.request
    yield AddedToTxn(
        request.transactional_id, (request.producer_id, request.producer_epoch), (),
        request.group_id, error_of(exchange.response),
    )  # fmt: skip


def _end(exchange: Exchange) -> Iterator[Row]:
    request, response = exchange.request, exchange.response
    raised = getattr(response, "producer_id", -1), getattr(response, "producer_epoch", -1)
    yield Ended(
        request.transactional_id, (request.producer_id, request.producer_epoch),
        bool(request.committed), raised, error_of(response),
    )  # fmt: skip


EVENTS: dict[str | None, Callable[[Exchange], Iterator[Row]]] = {
    "JoinGroup": _join,
    "SyncGroup": _sync,
    "Heartbeat": _heartbeat,
    "LeaveGroup": _leave,
    "ConsumerGroupHeartbeat": _group_heartbeat,
    "OffsetCommit": _commit,
    "TxnOffsetCommit": _commit,
    "OffsetFetch": _fetch_offsets,
    "FindCoordinator": _find_coordinator,
    "DeleteGroups": _delete_groups,
    "OffsetDelete": _delete_offsets,
    "InitProducerId": _initialize,
    "AddPartitionsToTxn": _add_partitions,
    "AddOffsetsToTxn": _add_offsets,
    "EndTxn": _end,
}
