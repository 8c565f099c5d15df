"""The cluster: its brokers, who leads, how many replicas are in sync, fetch sessions.

::

    ClusterDescribed, Led ─▶ nodes · controller · leader and replicas of each partition
    InSession ─────────────▶ the Fetch that opened a fetch session

Invariant: memory is bounded by the limits below, and by the changes that `Extents` keeps.
"""

from __future__ import annotations

import attrs

from kproxy.exchange.entities import TopicPartition
from kproxy.history.kept import Extents, one_of
from kproxy.history.ref import Ref
from kproxy.history.rows import ClusterDescribed, InSession, Led

_SESSIONS_MAX = 10_000
_PARTITIONS_MAX = 20_000


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
    partitions: dict[TopicPartition, PartitionState] = attrs.Factory(dict)
    sessions: dict[tuple[int | None, int], tuple[Ref, bool]] = attrs.Factory(dict)
    """Node and fetch session → the Fetch that opened it, else the first in it; True if it did."""

    def close(self, time_ns: int) -> None:
        """Have what is told from a time on stand by itself."""
        self.brokers.close(time_ns)
        self.controllers.close(time_ns)
        for partition in self.partitions.values():
            partition.leaders.close(time_ns)
            partition.replicas.close(time_ns)

    def led(self, ref: Ref, row: Led) -> None:
        """Take the leader of a partition."""
        found = one_of(self.partitions, row.where, _PARTITIONS_MAX, PartitionState)
        if row.leader >= 0:
            found.leaders.see(row.leader, ref)
        if row.replicas:
            found.replicas.see(row, ref)

    def described(self, ref: Ref, row: ClusterDescribed) -> None:
        """Take the brokers."""
        if row.nodes:
            self.brokers.see(row.nodes, ref)
        if row.controller >= 0:
            self.controllers.see(row.controller, ref)

    def in_session(self, ref: Ref, row: InSession) -> None:
        """Take a Fetch in a session."""
        key = ref.node_id, row.session
        if row.is_new or key not in self.sessions:
            self.sessions.pop(key, None)
            self.sessions[key] = ref, row.is_new
            if len(self.sessions) > _SESSIONS_MAX:
                del self.sessions[next(iter(self.sessions))]
