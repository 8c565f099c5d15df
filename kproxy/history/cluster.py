"""The cluster: its brokers and topics, who leads, how many replicas are in sync, fetch sessions.

::

    ClusterDescribed, Led ─────▶ nodes · controller · leader and replicas of each partition
    Counted, Deleted ─▶ the life of each topic

Invariant: memory is bounded by the limits below, and by the changes that `Extents` keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import attrs

from kproxy.exchange.entities import TopicPartition
from kproxy.history.extents import Extents
from kproxy.history.ref import Ref
from kproxy.history.rows import (
    Appended,
    Bound,
    ClusterDescribed,
    Counted,
    Deleted,
    FetchPosition,
    InSession,
    Led,
    Row,
)

_SESSIONS_MAX = 10_000
_TOPICS_MAX, _PARTITIONS_MAX = 5000, 20_000


@attrs.define(eq=False)
class TopicLives:
    """A topic, as far as clients are told of it."""

    sizes: Extents[int] = attrs.Factory(Extents[int])
    """Its number of partitions, as brokers tell it."""
    lives: Extents[bool] = attrs.Factory(Extents[bool])
    """True when it was created, False when it was deleted."""
    used: Ref | None = None
    """The first exchange that names it and has no error."""


@attrs.define(eq=False)
class PartitionState:
    """A partition, as brokers tell of it."""

    leaders: Extents[int] = attrs.Factory(Extents[int])
    replicas: Extents[Led] = attrs.Factory(Extents[Led])


@attrs.define(eq=False)
class ClusterMetadata:
    """The cluster of a recording."""

    brokers: Extents[tuple[int, ...]] = attrs.Factory(Extents[tuple[int, ...]])
    controllers: Extents[int] = attrs.Factory(Extents[int])
    topics: dict[str, TopicLives] = attrs.Factory(dict)
    partitions: dict[TopicPartition, PartitionState] = attrs.Factory(dict)
    sessions: dict[tuple[int | None, int], tuple[Ref, bool]] = attrs.Factory(dict)
    """Node and fetch session → the Fetch that opened it, else the first in it; True if it did."""

    def take(self, ref: Ref, row: Row) -> None:
        """Take the next row."""
        take = _TAKES.get(type(row))
        if take is not None and ref.is_answered:
            take(self, ref, row)

    def close(self, time_ns: int) -> None:
        """Have what is told from a time on stand by itself."""
        for each in self._extents():
            each.close(time_ns)

    def _extents(self) -> Iterator[Extents[Any]]:
        yield self.brokers
        yield self.controllers
        for topic in self.topics.values():
            yield from (topic.sizes, topic.lives)
        for partition in self.partitions.values():
            yield from (partition.leaders, partition.replicas)

    def _topic(self, name: str) -> TopicLives:
        """Return a topic, added if new; of too many, one that is thrown away."""
        found = self.topics.get(name)
        if found is None:
            found = TopicLives()
            if len(self.topics) < _TOPICS_MAX:
                self.topics[name] = found
        return found

    def _named(self, ref: Ref, row: Appended | FetchPosition | Bound) -> None:
        topic = self._topic(row.where.topic)
        if topic.used is None and not ref.errors:
            topic.used = ref

    def _counted(self, ref: Ref, row: Counted) -> None:
        topic = self._topic(row.topic)
        if row.is_new:
            topic.lives.see(True, ref)
        else:
            topic.sizes.see(row.partitions, ref)

    def _deleted(self, ref: Ref, row: Deleted) -> None:
        if row.topic is not None and row.group is None:
            self._topic(row.topic).lives.see(False, ref)

    def _led(self, ref: Ref, row: Led) -> None:
        found = self.partitions.get(row.where)
        if found is None:
            if len(self.partitions) >= _PARTITIONS_MAX:
                return
            found = self.partitions[row.where] = PartitionState()
        if row.leader >= 0:
            found.leaders.see(row.leader, ref)
        if row.replicas:
            found.replicas.see(row, ref)

    def _brokers(self, ref: Ref, row: ClusterDescribed) -> None:
        if row.nodes:
            self.brokers.see(row.nodes, ref)
        if row.controller >= 0:
            self.controllers.see(row.controller, ref)

    def _in_session(self, ref: Ref, row: InSession) -> None:
        key = ref.node_id, row.session
        if row.is_new or key not in self.sessions:
            self.sessions.pop(key, None)
            self.sessions[key] = ref, row.is_new
            if len(self.sessions) > _SESSIONS_MAX:
                del self.sessions[next(iter(self.sessions))]


_TAKES: dict[type, Callable[[ClusterMetadata, Ref, Any], None]] = {
    Appended: ClusterMetadata._named,
    FetchPosition: ClusterMetadata._named,
    Bound: ClusterMetadata._named,
    Counted: ClusterMetadata._counted,
    Deleted: ClusterMetadata._deleted,
    Led: ClusterMetadata._led,
    ClusterDescribed: ClusterMetadata._brokers,
    InSession: ClusterMetadata._in_session,
}
