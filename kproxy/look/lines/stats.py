"""`kproxy stats`: a recording on one screen.

    Exchange, ConnectionEnd ─▶ Stats: counts by API, client and topic, errors, events ─▶ lines

The broker's time excludes queueing behind earlier requests of the connection, and the time that a
long poll or the joining of a group may have waited (`exchange.derived`): of requests that may wait,
only the time beyond their own limit counts.

Memory grows with the number of APIs, clients, topics, partitions, errors, groups, producers and
connections, not with the length of the recording. Percentiles come from a histogram that is exact
to 1 %.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime

import attrs

from kproxy.exchange.counts import Counts, Tally, summed
from kproxy.exchange.endings import ConnectionEnd
from kproxy.exchange.entities import TopicPartition
from kproxy.exchange.exchange import Exchange
from kproxy.history.events import taken
from kproxy.history.producers import ProducerStates
from kproxy.history.ref import Ref
from kproxy.history.rows import Appended, Assigned, Beat, Joined, Led, Row

_Peers = tuple[str | None, int | None]
"""A client id, and the node id of a broker."""


@attrs.define(eq=False)
class _RecordingState:
    """Connections, producers and leaders of one recording. The next one may be of another cluster,
    and numbers its connections from 1 again."""

    number: int = 1
    name: str | None = None
    peers: dict[int, _Peers] = attrs.field(factory=dict, init=False)
    """Connection → who is connected by it."""
    ended_ns: dict[_Peers, int] = attrs.field(factory=dict, init=False)
    """The end of the connection that ended first …"""
    begun_ns: dict[_Peers, list[int]] = attrs.field(factory=dict, init=False)
    """… and the first uses of those that were begun before."""
    batches: ProducerStates = attrs.field(factory=ProducerStates, init=False)
    leaders: dict[TopicPartition, int] = attrs.field(factory=dict, init=False)


@attrs.define(eq=False)
class Stats:
    """The counts over all recordings, in the order of their exchanges."""

    reads_bodies: bool = True
    """True: bodies are read, to count errors, topics, records and events."""
    start_ns: int | None = None
    """The start of the first recording; None if it is unknown."""
    recordings: Sequence[str] = ()
    """The names of the recordings, if there are several."""
    counts: Counts = attrs.field(factory=Counts, init=False)
    first: datetime | None = attrs.field(default=None, init=False)
    """The arrival of the earliest request; it may complete, and be counted, after later ones."""
    last: datetime | None = attrs.field(default=None, init=False)
    """The arrival of the latest request."""
    generations: dict[tuple[str, int], set[int]] = attrs.field(factory=dict, init=False)
    """Group and recording → the generations (KIP-848: epochs) that members joined."""
    throttled: int = attrs.field(default=0, init=False)
    connection_count: int = attrs.field(default=0, init=False)
    ended_by: Counter[str | None] = attrs.field(factory=Counter, init=False)
    """Ends of connections by the side that ended first: client, broker, proxy; None: unknown."""
    tls_failures: Counter[str] = attrs.field(factory=Counter, init=False)
    """Ends of connections on which TLS failed, by their reason."""
    retries: int = attrs.field(default=0, init=False)
    """Batches that idempotent producers sent again."""
    leader_changes: int = attrs.field(default=0, init=False)
    """Changes of the leader of a partition, as Metadata shows them."""
    reconnects: int = attrs.field(default=0, init=False)
    """Connections to a broker that the same client had been connected to before."""
    _recording: _RecordingState = attrs.field(factory=_RecordingState, init=False)

    def take(self, exchange: Exchange, name: str | None = None) -> None:
        """Count the next exchange; `name` is that of its recording, if there are several."""
        recording = self._recording
        if recording.name != name:
            later = 0 if recording.name is None else 1
            recording = self._recording = _RecordingState(recording.number + later, name)
        connection = exchange.connection
        if connection not in recording.peers:
            peers = recording.peers[connection] = exchange.client_id, exchange.node_id
            self.connection_count += 1
            recording.begun_ns.setdefault(peers, []).append(exchange.completed_ns)
            self._count_reconnects(peers)
        self.first = min(self.first or exchange.time, exchange.time)
        self.last = max(self.last or exchange.time, exchange.time)
        place = self.name_of(recording.number), exchange.number
        self.counts.add(exchange, place, self.reads_bodies)
        if self.reads_bodies:
            self.throttled += exchange.facts.throttled
            if exchange.api in _FOLLOWED:
                ref, rows = taken(exchange)
                for row in rows:
                    self._follow(ref, row)

    def _follow(self, ref: Ref, row: Row) -> None:
        recording = self._recording
        if isinstance(row, Appended) and row.sequences:
            self.retries += recording.batches.sent_before(row)
            recording.batches.take(ref, row)
        elif isinstance(row, Led) and row.leader >= 0:
            self.leader_changes += recording.leaders.get(row.where, row.leader) != row.leader
            recording.leaders[row.where] = row.leader
        elif isinstance(row, Joined | Assigned | Beat) and row.generation and not row.error:
            if ref.is_answered:
                key = row.group, recording.number
                self.generations.setdefault(key, set()).add(row.generation)

    def name_of(self, recording: int) -> str:
        """Return the name of a recording, if there are several."""
        return self.recordings[recording - 1] if self.recordings else ""

    @property
    def tables(self) -> dict[str, dict[str, Tally]]:
        """The counts by API, by client and by topic, under the names of their fields."""
        clients, topics = self.counts.clients.items(), self.counts.topics.items()
        return {
            "api": summed((api or "(half a header)", tally) for (api, _), tally in clients),
            "client_id": summed((name or "(no client id)", tally) for (_, name), tally in clients),
            "topic": summed((topic, tally) for (_, topic), tally in topics),
        }

    def end(self, end: ConnectionEnd) -> None:
        """Count the end of a connection."""
        self.ended_by[end.first.side if end.first else None] += 1
        if end.tls_failed:
            self.tls_failures[end.reason] += 1
        recording = self._recording
        if (peers := recording.peers.get(end.connection)) is not None:
            recording.ended_ns[peers] = min(end.time_ns, recording.ended_ns.get(peers, end.time_ns))
            self._count_reconnects(peers)

    def _count_reconnects(self, peers: _Peers) -> None:
        """Count the connections that were begun when another of the same had ended."""
        recording = self._recording
        if (ended_ns := recording.ended_ns.get(peers)) is not None:
            before = [each for each in recording.begun_ns[peers] if each <= ended_ns]
            self.reconnects += len(recording.begun_ns[peers]) - len(before)
            recording.begun_ns[peers] = before


_FOLLOWED = ("Produce", "Metadata", "JoinGroup", "ConsumerGroupHeartbeat")
"""APIs that tell what is sent again, leaders, and generations."""
