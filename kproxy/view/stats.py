"""`kproxy stats`: a recording on one screen.

    Exchange, ConnectionEnd ─▶ Stats: tallies by API, client and topic, errors, events ─▶ lines

The broker's time is what it took for certain: without what a request waited behind an earlier one,
and without what a long poll or the joining of a group may have waited (`exchange.timing`). Of
requests that may wait, only what went beyond their own limit counts.

Memory does not grow with the recording, but with what there is to name: APIs, clients, topics and
partitions, errors, groups, producers. Percentiles come from a histogram that is exact to 1 %.
"""

from __future__ import annotations

from collections import Counter

import attrs

from kproxy.exchange.endings import ConnectionEnd
from kproxy.exchange.entities import TopicPartition
from kproxy.exchange.exchange import Exchange
from kproxy.view.stats_counts import Counts, Part


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
class Stats:
    """What is counted over recordings."""

    reads_bodies: bool = True
    """Whether errors, topics, records and events are counted, for which bodies are looked into."""
    counts: Counts = attrs.field(factory=Counts, init=False)
    connection_count: int = attrs.field(default=0, init=False)
    ended_by: Counter[str] = attrs.field(factory=Counter[str], init=False)
    """Ends of connections by who was first: client, broker, proxy."""
    reconnects: int = attrs.field(default=0, init=False)
    """Connections to a broker that the same client had been connected to before."""
    retries: int = attrs.field(default=0, init=False)
    """Batches that an idempotent producer sent again."""
    leader_changes: int = attrs.field(default=0, init=False)
    """Partitions of which Metadata named another leader than before."""
    _recording: int = attrs.field(default=1, init=False)
    _connections: set[int] = attrs.field(factory=set[int], init=False)
    """Those of that recording."""
    _open: dict[int, _Peers] = attrs.field(factory=dict[int, _Peers], init=False)
    _peers: dict[tuple[str | None, int | None], _Peers] = attrs.field(
        factory=dict[tuple[str | None, int | None], _Peers], init=False
    )
    """By client and broker."""
    _sequences: dict[tuple[int, TopicPartition], int] = attrs.field(
        factory=dict[tuple[int, TopicPartition], int], init=False
    )
    _leaders: dict[TopicPartition, int] = attrs.field(factory=dict[TopicPartition, int], init=False)

    def add(self, shown: Exchange | ConnectionEnd) -> None:
        """Count an exchange, or the end of a connection."""
        if isinstance(shown, ConnectionEnd):
            self._end(shown)
        else:
            self.take(Part.of(shown, self.reads_bodies))

    def take(self, part: Part) -> None:
        """Count what the next exchanges tell."""
        if part.recording != self._recording:
            self._recording = part.recording
            self._connections.clear()
            self._open.clear()
        self.counts.merge(part.counts)
        for about in part.connections:
            self._connect(*about)
        for sequence in part.sequences:
            self._sequence(*sequence)
        for where, leader in part.leaders:
            self.leader_changes += self._leaders.get(where, leader) != leader
            self._leaders[where] = leader

    def _connect(self, number: int, client_id: str | None, node_id: int | None, at_ns: int) -> None:
        if number not in self._connections:
            self._connections.add(number)
            self.connection_count += 1
            peers = self._peers.setdefault((client_id, node_id), _Peers())
            self._open[number] = peers
            self.reconnects += peers.begin(at_ns)

    def _end(self, end: ConnectionEnd) -> None:
        self.ended_by[end.first.side if end.first else "nobody knows whom"] += 1
        if (peers := self._open.pop(end.connection, None)) is not None:
            self.reconnects += peers.end(end.time_ns)

    def _sequence(self, producer: int, where: TopicPartition, sequence: int) -> None:
        """A sequence that does not go on is one that was sent before; they begin anew at 0 after
        2³¹ − 1."""
        before = self._sequences.get((producer, where), -1)
        self.retries += 0 <= before - sequence < 1 << 30
        self._sequences[producer, where] = max(before, sequence)
