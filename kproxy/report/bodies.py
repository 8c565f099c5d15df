"""What the bodies of an exchange say for tables and reports: found once, kept without the bodies.

Exchange ─▶ traffic of partitions · ends of logs · events of groups
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from kproxy.exchange import delivered
from kproxy.exchange.entities import TopicPartition
from kproxy.exchange.exchange import Exchange
from kproxy.history.events import events
from kproxy.history.history import Taken
from kproxy.history.ref import Ref
from kproxy.history.rows import (
    TRIED,
    Appended,
    Assigned,
    Beat,
    ClusterDescribed,
    CommitRequested,
    Joined,
    Left,
    Read,
    Row,
)


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

    ref: Ref
    rows: Sequence[Row]
    traffic: Sequence[Traffic]
    """Without batches that the broker refused, or did not get or answer, and those that the client
    did not get."""
    group_events: Sequence[GroupEvent]
    """A commit has an offset only if the broker has taken it."""

    @property
    def cluster_id(self) -> str | None:
        """The id of the cluster, if it tells that."""
        found = (row.cluster for row in self.rows if isinstance(row, ClusterDescribed))
        return next(found, None) or None


def bodies_of(exchange: Exchange, taken: Taken | None = None) -> ExchangeBodies:
    """Return what the bodies of an exchange say; `taken` is what a history has of it already."""
    ref, rows = taken or (Ref.of(exchange), events(exchange))
    traffic = list[Traffic]()
    for row in rows:
        if isinstance(row, Appended) and row.outcome != TRIED:
            numbers = row.sequences[0] if len(row.sequences) == 1 else None
            traffic.append(Traffic(row.where, True, row.records, row.size_bytes, numbers))
        elif isinstance(row, Read) and row.size_bytes and not row.error:
            if not exchange.may_be_lost and exchange.response_told is None:
                traffic.append(Traffic(row.where, False, row.records, row.size_bytes, None))
    told = list(_group_events(exchange, rows)) if exchange.api in _GROUP_APIS else ()
    return ExchangeBodies(ref, rows, traffic, told)


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
            case CommitRequested():
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
