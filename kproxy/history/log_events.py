"""What clients write to logs, read of them, and learn of their ends, as rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from kproxy.exchange import delivered
from kproxy.exchange.body_facts import Records
from kproxy.exchange.entities import TopicPartition
from kproxy.exchange.exchange import Exchange
from kproxy.exchange.topic_records import aborted_count, batch_heads
from kproxy.history.coordinator_events import error_of, topic_of
from kproxy.history.rows import (
    A_TIME,
    EARLIEST,
    LATEST,
    SENT,
    TRIED,
    WROTE,
    Appended,
    Bound,
    Counted,
    Deleted,
    FetchPosition,
    Forgotten,
    Read,
    Row,
)
from kproxy.wire.protocol import error_name
from kproxy.wire.protocol.record_batch import read_heads

_KINDS = {-1: LATEST, -2: EARLIEST}


def writes(exchange: Exchange) -> Iterator[Appended]:
    """Yield the writes of a Produce; nothing of any other exchange."""
    facts, request = exchange.facts, exchange.request
    results = {each.where: each for each in facts.results}
    transactional_id = getattr(request, "transactional_id", None) or ""
    refused = delivered.refused(exchange)
    done = TRIED
    if delivered.may_have_written(exchange):
        done = SENT if exchange.one_way else WROTE
    for each in facts.records:
        if not each.produced:
            continue
        heads, result = batch_heads(each), results.get(each.where)
        error = error_name(result.error_code) if result is not None and result.error_code else ""
        offset = result.offset if result is not None and result.offset >= 0 else None
        outcome = done
        if each.where in refused:
            offset, outcome = None, TRIED
        yield Appended(
            each.where, heads.records or 0, len(each.data), tuple(heads.sequences), outcome, offset,
            transactional_id, request.acks, error,
        )  # fmt: skip


def _fetch(exchange: Exchange) -> Iterator[Row]:
    request, response = exchange.request, exchange.response
    for topic in getattr(request, "topics", ()):
        name = topic_of(topic, exchange)
        for each in topic.partitions:
            yield FetchPosition(TopicPartition(name, each.partition), each.fetch_offset)
    for topic in getattr(request, "forgotten_topics_data", None) or ():
        name = topic_of(topic, exchange)
        yield from (Forgotten(TopicPartition(name, each)) for each in topic.partitions)
    if response is None:
        return
    carried = {each.where: each for each in exchange.facts.records}
    session = getattr(response, "session_id", 0)
    committed_only = bool(getattr(request, "isolation_level", 0))
    for topic in response.responses:
        name = topic_of(topic, exchange)
        for each in topic.partitions:
            where = TopicPartition(name, each.partition_index)
            yield _read(each, where, carried.get(where), session, committed_only)


def _read(
    result: Any, where: TopicPartition, carried: Records | None, session: int, committed_only: bool
) -> Read:
    heads = read_heads(carried.data) if carried is not None else []
    data = [each for each in heads if not each.control]
    markers = tuple((each.offset, each.last_offset) for each in heads if each.control)
    aborted = getattr(result, "aborted_transactions", None)
    return Read(
        where,
        session,
        sum(each.record_count or 0 for each in data),
        len(carried.data) if carried is not None else 0,
        data[0].offset if data else None,
        data[-1].last_offset + 1 if data else None,
        heads[-1].last_offset + 1 if heads else None,
        markers,
        aborted_count(carried) if carried is not None and carried.aborted else 0,
        result.high_watermark,
        getattr(result, "last_stable_offset", -1),
        getattr(result, "log_start_offset", -1),
        committed_only,
        error_of(result),
        tuple((each.producer_id, each.first_offset) for each in aborted or ()),
    )


def _list_offsets(exchange: Exchange) -> Iterator[Row]:
    """Yield the ends of logs that were asked for."""
    request, response = exchange.request, exchange.response
    if response is None:
        return
    asked = {
        (topic.name, each.partition_index): each.timestamp
        for topic in request.topics
        for each in topic.partitions
    }
    for topic in response.topics:
        for each in topic.partitions:
            where = TopicPartition(topic.name, each.partition_index)
            timestamp = asked.get(where, 0)
            if each.error_code or each.offset < 0:
                continue
            kind = A_TIME if timestamp >= 0 else _KINDS.get(timestamp)
            if kind is not None:
                stable = kind == LATEST and bool(getattr(request, "isolation_level", 0))
                yield Bound(where, each.offset, kind, stable)


def _delete_records(exchange: Exchange) -> Iterator[Row]:
    for topic in getattr(exchange.response, "topics", ()):
        for each in topic.partitions:
            if not each.error_code:
                where = TopicPartition(topic.name, each.partition_index)
                yield Bound(where, each.low_watermark, EARLIEST)


def _delete_topics(exchange: Exchange) -> Iterator[Row]:
    for each in getattr(exchange.response, "responses", ()):
        if not each.error_code:
            yield Deleted(None, topic_of(each, exchange), None)


def _create_topics(exchange: Exchange) -> Iterator[Row]:
    if exchange.request.validate_only:
        return
    for each in getattr(exchange.response, "topics", ()):
        if not each.error_code:
            yield Counted(each.name, max(0, getattr(each, "num_partitions", 0)), is_new=True)


def _create_partitions(exchange: Exchange) -> Iterator[Row]:
    wanted = {each.name: each.count for each in exchange.request.topics}
    for each in getattr(exchange.response, "results", ()):
        if not (each.error_code or exchange.request.validate_only):
            yield Counted(each.name, wanted.get(each.name, 0), is_new=False)


EVENTS: dict[str | None, Callable[[Exchange], Iterator[Row]]] = {
    "Produce": writes,
    "Fetch": _fetch,
    "ListOffsets": _list_offsets,
    "DeleteRecords": _delete_records,
    "DeleteTopics": _delete_topics,
    "CreateTopics": _create_topics,
    "CreatePartitions": _create_partitions,
}
