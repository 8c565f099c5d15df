"""`kproxy stats`: a recording on one screen.

    StatsPart, ConnectionEnd ─▶ Stats: tallies by API, client and topic, errors, events ─▶ lines

The broker's time is what it took for certain: without what a request waited behind an earlier one,
and without what a long poll or the joining of a group may have waited (`exchange.derived`). Of
requests that may wait, only what went beyond their own limit counts.

Memory does not grow with the recording, but with what there is to name: APIs, clients, topics and
partitions, errors, groups, producers. Percentiles come from a histogram that is exact to 1 %.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import attrs

from kproxy.exchange.endings import ConnectionEnd
from kproxy.exchange.entities import TopicPartition
from kproxy.view.stats_counts import Counts, StatsPart

_SEQUENCES = 1 << 31
"""Sequences go from 0 to one less, and begin anew."""
_SEQUENCES_IN_FLIGHT_MAX = 1 << 24
"""More records than producers have in flight: what is further behind than that is ahead."""


@attrs.define(eq=False)
class _Peers:
    """A client and a broker, and when they were connected."""

    ended_ns: int | None = None
    """When one of their connections ended, the first that did."""
    begun_ns: list[int] = attrs.field(factory=list[int])
    """When others were first used; those are left out that were after such an end."""

    def begin(self, at_ns: int) -> int:
        """A connection is used; return how many reconnects are known by that."""
        if self.ended_ns is not None and at_ns > self.ended_ns:
            return 1
        self.begun_ns.append(at_ns)
        return 0

    def end(self, at_ns: int) -> int:
        """A connection has ended; return how many reconnects are known by that."""
        if self.ended_ns is None or at_ns < self.ended_ns:
            self.ended_ns = at_ns
        before = [begun_ns for begun_ns in self.begun_ns if begun_ns <= at_ns]
        found, self.begun_ns = len(self.begun_ns) - len(before), before
        return found


@attrs.define(eq=False)
class _Recording:
    """What is remembered of one recording: another one numbers its connections anew, and may be of
    another cluster."""

    number: int = 1
    connections: set[int] = attrs.field(factory=set[int], init=False)
    open: dict[int, _Peers] = attrs.field(factory=dict[int, _Peers], init=False)
    """By connection."""
    peers: dict[tuple[str | None, int | None], _Peers] = attrs.field(
        factory=dict[tuple[str | None, int | None], _Peers], init=False
    )
    """By client and broker."""
    sequences: dict[tuple[int, TopicPartition], int] = attrs.field(
        factory=dict[tuple[int, TopicPartition], int], init=False
    )
    """The furthest that a producer has come."""
    leaders: dict[TopicPartition, int] = attrs.field(factory=dict[TopicPartition, int], init=False)

    def begin(self, connection: int, client_id: str | None, node_id: int | None, at_ns: int) -> int:
        """A connection is used for the first time; return how many reconnects are known by that."""
        self.connections.add(connection)
        peers = self.peers.setdefault((client_id, node_id), _Peers())
        self.open[connection] = peers
        return peers.begin(at_ns)

    def end(self, end: ConnectionEnd) -> int:
        """A connection has ended; return how many reconnects are known by that."""
        peers = self.open.pop(end.connection, None)
        return 0 if peers is None else peers.end(end.time_ns)

    def sent_again(self, producer: int, where: TopicPartition, sequence: int) -> bool:
        """Whether a batch was sent before: its sequence is not beyond the furthest."""
        before = self.sequences.get((producer, where))
        if before is not None and (before - sequence) % _SEQUENCES < _SEQUENCES_IN_FLIGHT_MAX:
            return True
        self.sequences[producer, where] = sequence
        return False

    def leads(self, where: TopicPartition, leader: int) -> bool:
        """Metadata names the leader of a partition; return whether that was another before."""
        before = self.leaders.get(where, leader)
        self.leaders[where] = leader
        return leader != before


@attrs.define(eq=False)
class Stats:
    """What is counted over recordings."""

    reads_bodies: bool = True
    """Whether errors, topics, records and events are counted, for which bodies are looked into."""
    start_ns: int | None = None
    """When the recording began, if that is known."""
    recordings: Sequence[str] = ()
    """What the recordings are called, where there are several."""
    counts: Counts = attrs.field(factory=Counts, init=False)
    connection_count: int = attrs.field(default=0, init=False)
    ended_by: Counter[str | None] = attrs.field(factory=Counter[str | None], init=False)
    """Ends of connections by who was first: client, broker, proxy; None where nobody knows."""
    reconnects: int = attrs.field(default=0, init=False)
    """Connections to a broker that the same client had been connected to before."""
    retries: int = attrs.field(default=0, init=False)
    """Batches that an idempotent producer sent again."""
    leader_changes: int = attrs.field(default=0, init=False)
    """Partitions of which Metadata named another leader than before."""
    _recording: _Recording = attrs.field(factory=_Recording, init=False)

    def take(self, part: StatsPart) -> None:
        """Count what the next exchanges tell."""
        if part.recording != self._recording.number:
            self._recording = _Recording(part.recording)
        recording = self._recording
        self.counts.merge(part.counts)
        for connection, client_id, node_id, at_ns in part.connections:
            if connection not in recording.connections:
                self.connection_count += 1
                self.reconnects += recording.begin(connection, client_id, node_id, at_ns)
        for sequence in part.sequences:
            self.retries += recording.sent_again(*sequence)
        for where, leader in part.leaders:
            self.leader_changes += recording.leads(where, leader)

    def end(self, end: ConnectionEnd) -> None:
        """Count the end of a connection."""
        self.ended_by[end.first.side if end.first else None] += 1
        self.reconnects += self._recording.end(end)
