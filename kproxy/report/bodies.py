"""What the bodies of an exchange say for tables and reports: found once, kept without the bodies.

Exchange ─▶ traffic of partitions · ends of logs · events of groups
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from kproxy.exchange import delivered, entities
from kproxy.exchange.deletions import Gone, deletions
from kproxy.exchange.entities import TopicPartition
from kproxy.exchange.exchange import Exchange
from kproxy.history.events import events
from kproxy.history.rows import TRIED, Appended, Bound, Read, Row
from kproxy.protocol import error_name

_CLUSTER_ID_APIS = frozenset({"Metadata", "DescribeCluster"})


class Traffic(NamedTuple):
    """The batches of a partition in an exchange."""

    where: TopicPartition
    produced: bool
    records: int
    bytes: int
    numbers: tuple[int, int, int] | None
    """Producer id, producer epoch and base sequence of an idempotent producer's batch."""


class GroupEvent(NamedTuple):
    """What a member of a group did; the columns of the table `group_events`."""

    group: str
    event: str
    client_id: str | None
    member_id: str | None
    generation: int | None
    topic: str | None = None
    partition: int | None = None
    committed: int | None = None
    error: str | None = None

    @property
    def commit(self) -> tuple[tuple[str, int], int] | None:
        """Topic and partition where an offset was committed, and the offset."""
        if self.topic is None or self.partition is None or self.committed is None:
            return None
        return (self.topic, self.partition), self.committed


class ExchangeBodies(NamedTuple):
    """What the bodies of an exchange say."""

    traffic: Sequence[Traffic]
    """Without batches that the broker refused, or did not get or answer, and those that the client
    did not get."""
    log_ends: Sequence[tuple[str, int, int]]
    """Topic, partition, and an offset that ends its log at that time."""
    markers: Sequence[tuple[str, int, int, int]]
    """Topic, partition, offset and last offset of a marker of a transaction."""
    group_events: Sequence[GroupEvent]
    """A commit has an offset only if the broker has taken it."""
    transactional_id: str | None
    """That of the transaction that the commits are part of, or that has ended."""
    ended: bool | None
    """How that ended: True if it was committed, False if it was aborted."""
    deleted: Sequence[Gone]
    cluster_id: str | None


def bodies_of(exchange: Exchange, rows: Sequence[Row] | None = None) -> ExchangeBodies:
    """Return what the bodies of an exchange say; `rows` are its rows, if they are known."""
    api, traffic = exchange.api, list[Traffic]()
    ends, markers = list[tuple[str, int, int]](), list[tuple[str, int, int, int]]()
    for row in events(exchange) if rows is None else rows:
        topic, partition = getattr(row, "where", ("", 0))
        if isinstance(row, Appended):
            if row.outcome != TRIED:
                numbers = row.sequences[0] if len(row.sequences) == 1 else None
                traffic.append(Traffic(row.where, True, row.records, row.size_bytes, numbers))
            if row.last_offset is not None:
                ends.append((topic, partition, row.last_offset + 1))
        elif isinstance(row, Read) and not row.error:
            if row.size_bytes and not exchange.may_be_lost and exchange.response_told is None:
                traffic.append(Traffic(row.where, False, row.records, row.size_bytes, None))
            if row.high_watermark >= 0 and not exchange.injected:
                ends.append((topic, partition, row.high_watermark))
                markers += ((topic, partition, *each) for each in row.markers)
        elif isinstance(row, Bound) and not (row.is_start or row.is_stable or exchange.injected):
            ends.append((topic, partition, row.offset))
    cluster_id: str | None = None
    if api in _CLUSTER_ID_APIS:
        cluster_id = getattr(exchange.response, "cluster_id", None) or None
    return ExchangeBodies(
        traffic,
        ends,
        markers,
        list(_group_events(exchange)) if api in _GROUP_APIS else (),
        _transactional_id(exchange) if api in _TRANSACTION_APIS else None,
        _ended(exchange) if api in _TRANSACTION_APIS else None,
        list(deletions(exchange)),
        cluster_id,
    )


_TRANSACTION_APIS = frozenset({"TxnOffsetCommit", "EndTxn", "InitProducerId"})


def _transactional_id(exchange: Exchange) -> str | None:
    return getattr(exchange.request, "transactional_id", None) or None


def _ended(exchange: Exchange) -> bool | None:
    """Return how an exchange ends a transaction. One that nobody answered may be sent again; if a
    producer begins anew instead, what it has left open is not committed as far as is known."""
    response = exchange.response
    if response is None or exchange.request is None or getattr(response, "error_code", -1):
        return None  # the response to a TxnOffsetCommit has no error of its own
    return bool(getattr(exchange.request, "committed", False))


_COMMIT_APIS = frozenset({"OffsetCommit", "TxnOffsetCommit"})
_MEMBER_APIS = frozenset({"JoinGroup", "SyncGroup", "Heartbeat", "LeaveGroup"})
_GROUP_APIS = _COMMIT_APIS | _MEMBER_APIS | {"ConsumerGroupHeartbeat"}


def _group_events(exchange: Exchange) -> Iterator[GroupEvent]:
    """Yield the events of groups in an exchange of `_GROUP_APIS`, without those of heartbeats that
    change nothing, and of requests that a rule kept from the broker."""
    api, client_id = str(exchange.api), exchange.client_id
    if api == "Heartbeat" and not exchange.errors:
        return
    request, response = exchange.request, exchange.response
    if request is None or delivered.kept(exchange):
        return
    code = getattr(response, "error_code", 0)
    error = error_name(code) if code else None
    if api == "LeaveGroup" and request.members:
        yield from _leaving(exchange, error)
    elif api in _MEMBER_APIS:
        generation = getattr(response, "generation_id", getattr(request, "generation_id", None))
        member = getattr(response, "member_id", "") or request.member_id
        if api != "Heartbeat" or error:
            known = generation is not None and generation >= 0
            yield GroupEvent(
                request.group_id, api, client_id, member, generation if known else None, error=error
            )
    elif api == "ConsumerGroupHeartbeat":
        changes = error or getattr(response, "assignment", None) is not None
        if changes or request.member_epoch <= 0:
            epoch = getattr(response, "member_epoch", None)
            member = request.member_id or getattr(response, "member_id", None)
            known = epoch is not None and epoch > 0
            yield GroupEvent(
                request.group_id, api, client_id, member, epoch if known else None, error=error
            )
    elif api in _COMMIT_APIS:
        yield from _commits(exchange)


def _leaving(exchange: Exchange, error: str | None) -> Iterator[GroupEvent]:
    """Yield the members that leave together, each with its own error (version 3 and newer)."""
    request = exchange.request
    answered = getattr(exchange.response, "members", None) or ()
    # A static member may leave by its instance id alone.
    codes = {each.member_id or each.group_instance_id: each.error_code for each in answered}
    for each in request.members:
        code = codes.get(each.member_id or each.group_instance_id, 0)
        yield GroupEvent(
            request.group_id, "LeaveGroup", exchange.client_id, each.member_id, None,
            error=error or (error_name(code) if code else None),
        )  # fmt: skip


def _commits(exchange: Exchange) -> Iterator[GroupEvent]:
    request, names = exchange.request, exchange.topic_names
    taken = exchange.response is not None
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
            yield GroupEvent(
                request.group_id, str(exchange.api), exchange.client_id, request.member_id,
                generation if generation >= 0 else None, where, partition.partition_index,
                partition.committed_offset if taken and not code else None,
                error_name(code) if code else None,
            )  # fmt: skip
