"""What the bodies of an exchange say for tables and reports: found once, kept without the bodies.

Exchange ─▶ traffic of partitions · ends of logs · events of groups
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from kproxy.exchange import delivered
from kproxy.exchange.deletions import Gone, deletions
from kproxy.exchange.entities import TopicPartition
from kproxy.exchange.exchange import Exchange
from kproxy.history.events import events
from kproxy.history.rows import (
    TRIED,
    Appended,
    Assigned,
    Beat,
    Bound,
    Committed,
    Joined,
    Left,
    Read,
    Row,
)

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
    rows = events(exchange) if rows is None else rows
    for row in rows:
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
        list(_group_events(exchange, rows)) if api in _GROUP_APIS else (),
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
_MEMBER_APIS = frozenset(
    {"JoinGroup", "SyncGroup", "Heartbeat", "LeaveGroup", "ConsumerGroupHeartbeat"}
)
_GROUP_APIS = _COMMIT_APIS | _MEMBER_APIS


def _group_events(exchange: Exchange, rows: Sequence[Row]) -> Iterator[GroupEvent]:
    """Yield the events of groups in an exchange of `_GROUP_APIS`, without those of heartbeats that
    change nothing, and of requests that a rule kept from the broker."""
    api, client_id = str(exchange.api), exchange.client_id
    if exchange.request is None or delivered.kept(exchange):
        return
    taken, joins = exchange.response is not None, False
    for row in rows:
        place: tuple[str | None, int | None, int | None] = None, None, None
        generation: int | None = None
        match row:
            case Committed():
                generation, committed = row.generation, taken and not row.error
                where = row.where
                place = where.topic, where.partition, row.offset if committed else None
            case Joined():
                generation, joins = row.generation, True
            case Assigned() if not (joins and api == "ConsumerGroupHeartbeat"):
                generation = row.generation
            case Beat() if row.error:
                generation = row.generation if api == "Heartbeat" else row.given or None
            case Left():
                pass
            case _:
                continue
        known = generation if generation is not None and generation >= 0 else None
        error = row.error or None
        yield GroupEvent(row.group, api, client_id, row.member, known, *place, error=error)
