"""What brokers tell of the cluster and of themselves, and how clients log in, as rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kproxy.exchange.entities import TopicPartition
from kproxy.exchange.exchange import Exchange
from kproxy.history.coordinator_events import error_of, topic_of
from kproxy.history.rows import (
    Authenticated,
    ClusterDescribed,
    Counted,
    Handshake,
    InSession,
    Led,
    Row,
    Unknown,
    Versions,
)
from kproxy.wire.protocol import error_code

_UNKNOWN_TOPIC = error_code("UNKNOWN_TOPIC_OR_PARTITION")


def _describe(exchange: Exchange) -> Iterator[Row]:
    """Yield the brokers of Metadata and DescribeCluster, and the partitions of Metadata and
    DescribeTopicPartitions."""
    response = exchange.response
    if response is None or exchange.injected:
        return
    controllers = getattr(response, "endpoint_type", 1) == 2  # then they are in place of brokers
    found = () if controllers else getattr(response, "brokers", ())
    cluster_id = getattr(response, "cluster_id", None) or ""
    if found or cluster_id:
        own = "broker_id" if exchange.api == "DescribeCluster" else "node_id"
        nodes = tuple(getattr(each, own) for each in found)
        yield ClusterDescribed(cluster_id, response.controller_id, nodes)
    is_whole = getattr(response, "next_cursor", None) is None  # else it tells a part only
    for topic in getattr(response, "topics", None) or ():
        name = topic_of(topic, exchange)
        if topic.error_code == _UNKNOWN_TOPIC and topic.name:
            yield Unknown(name)
        if not topic.error_code:
            if is_whole and topic.partitions and topic.name:
                yield Counted(name, len(topic.partitions), is_new=False)
            for each in topic.partitions:
                yield Led(
                    TopicPartition(name, each.partition_index), each.leader_id,
                    tuple(each.isr_nodes or ()), tuple(each.replica_nodes or ()),
                )  # fmt: skip


def _leaders(exchange: Exchange) -> Iterator[Row]:
    """Yield the leaders that a response to a Produce or a Fetch names beside its errors."""
    if exchange.injected or not exchange.errors:
        return
    for topic in getattr(exchange.response, "responses", None) or ():
        of_produce = exchange.api == "Produce"
        for each in topic.partition_responses if of_produce else topic.partitions:
            leader = getattr(each, "current_leader", None)
            if leader is not None and leader.leader_id >= 0:
                number = each.index if of_produce else each.partition_index
                where = TopicPartition(topic_of(topic, exchange), number)
                yield Led(where, leader.leader_id, (), ())


def _fetch(exchange: Exchange) -> Iterator[Row]:
    session = getattr(exchange.response, "session_id", 0)
    if session and exchange.request is not None:
        yield InSession(session, exchange.request.session_epoch <= 0)
    yield from _leaders(exchange)


def _versions(exchange: Exchange) -> Iterator[Row]:
    if found := getattr(exchange.response, "api_keys", None):
        yield Versions(tuple((each.api_key, each.min_version, each.max_version) for each in found))


def _handshake(exchange: Exchange) -> Iterator[Row]:
    if (response := exchange.response) is not None:
        offered = tuple(response.mechanisms or ())
        yield Handshake(exchange.request.mechanism or "", offered, error_of(response))


def _authenticate(exchange: Exchange) -> Iterator[Row]:
    if (response := exchange.response) is not None:
        yield Authenticated(response.error_message or "", error_of(response))


EVENTS: dict[str | None, Callable[[Exchange], Iterator[Row]]] = {
    "Metadata": _describe,
    "DescribeTopicPartitions": _describe,
    "DescribeCluster": _describe,
    "Produce": _leaders,
    "Fetch": _fetch,
    "ApiVersions": _versions,
    "SaslHandshake": _handshake,
    "SaslAuthenticate": _authenticate,
}
