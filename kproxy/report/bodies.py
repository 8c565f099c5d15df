"""Values from the bodies of exchanges: traffic of partitions, ends of logs, events of groups.

Exchange ─▶ bytes and records · topic, partition, end · what a member said, what it committed
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from kproxy.exchange import delivered, entities, topic_records
from kproxy.exchange.exchange import Exchange
from kproxy.protocol import error_name

RECORDS, BYTES, EXCHANGES = range(3)
"""What is counted of the traffic of a partition."""


def count_traffic(exchange: Exchange, second: int, traffic: Counter[tuple[Any, ...]]) -> None:
    """Add the records, bytes and exchanges of an exchange to the sums by topic, partition, second,
    direction (True: produced), and what is counted. Batches that the broker refused,
    or did not get or answer, are left out."""
    produced = exchange.api == "Produce"
    if produced and not delivered.may_have_written(exchange):
        return
    refused = delivered.refused(exchange) if produced else ()
    for each in exchange.facts.records:
        if each.where in refused:
            continue
        key = (*each.where, second, produced)
        traffic[(*key, RECORDS)] += topic_records.batch_heads(each).records or 0
        traffic[(*key, BYTES)] += each.stop - each.start
        traffic[(*key, EXCHANGES)] += 1


def ends_of(exchange: Exchange) -> Iterator[tuple[str, int, int]]:
    """Yield the ends of logs that an exchange shows: topic, partition, offset. The offset behind a
    produced batch is the end of its log at that time."""
    if exchange.api == "Produce":
        offsets = topic_records.base_offsets(exchange.facts)
        for each in exchange.facts.records:
            count = topic_records.batch_heads(each).records
            if each.where in offsets and count is not None:
                yield each.where.topic, each.where.partition, offsets[each.where] + count
    elif exchange.api == "Fetch":
        for each in exchange.facts.results:
            if each.error_code == 0 and each.offset >= 0:
                yield each.where.topic, each.where.partition, each.offset
    elif exchange.api == "ListOffsets":
        yield from _latest(exchange)


def _latest(exchange: Exchange) -> Iterator[tuple[str, int, int]]:
    """Yield the ends of logs that a ListOffsets asked for."""
    response = exchange.response
    if response is not None and exchange.request is not None:
        latest = {
            (topic.name, partition.partition_index)
            for topic in exchange.request.topics
            for partition in topic.partitions
            if partition.timestamp == -1
        }
        for topic in response.topics:
            for partition in topic.partitions:
                if (topic.name, partition.partition_index) in latest and partition.offset >= 0:
                    yield topic.name, partition.partition_index, partition.offset


_COMMIT_APIS = frozenset({"OffsetCommit", "TxnOffsetCommit"})
_MEMBER_APIS = frozenset({"JoinGroup", "SyncGroup", "Heartbeat", "LeaveGroup"})
_GROUP_APIS = _COMMIT_APIS | _MEMBER_APIS | {"ConsumerGroupHeartbeat"}


def group_events(exchange: Exchange) -> Iterator[tuple[Any, ...]]:
    """Yield the events of groups in an exchange: group, event, client id, member, generation,
    topic, partition, committed offset, error. Heartbeats that change nothing are left out."""
    api, client_id = exchange.api, exchange.client_id
    if api not in _GROUP_APIS or (api == "Heartbeat" and not exchange.errors):
        return
    request, response = exchange.request, exchange.response
    if request is None:
        return
    code = getattr(response, "error_code", 0)
    error = error_name(code) if code else None
    if api in _MEMBER_APIS:
        generation = getattr(response, "generation_id", getattr(request, "generation_id", None))
        member = getattr(response, "member_id", "") or request.member_id
        if api != "Heartbeat" or error:
            yield (
                request.group_id, api, client_id, member,
                generation if generation is None or generation >= 0 else None,
                None, None, None, error,
            )  # fmt: skip
    elif api == "ConsumerGroupHeartbeat":
        changes = error or getattr(response, "assignment", None) is not None
        if changes or request.member_epoch <= 0:
            epoch = getattr(response, "member_epoch", None)
            member = request.member_id or getattr(response, "member_id", None)
            yield (
                request.group_id, api, client_id, member,
                epoch if epoch and epoch > 0 else None, None, None, None, error,
            )  # fmt: skip
    elif api in _COMMIT_APIS:
        yield from _commits(exchange)


def _commits(exchange: Exchange) -> Iterator[tuple[Any, ...]]:
    request, names = exchange.request, exchange.topic_names
    errors = {
        (entities.topic_of((topic,), names), partition.partition_index): partition.error_code
        for topic in getattr(exchange.response, "topics", ())
        for partition in topic.partitions
    }
    generation = request.generation_id_or_member_epoch
    for topic in request.topics:
        where = entities.topic_of((topic,), names)
        for partition in topic.partitions:
            code = errors.get((where, partition.partition_index), 0)
            yield (
                request.group_id, exchange.api, exchange.client_id, request.member_id,
                generation if generation >= 0 else None, where, partition.partition_index,
                partition.committed_offset, error_name(code) if code else None,
            )  # fmt: skip
