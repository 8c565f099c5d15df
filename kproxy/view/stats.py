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
from datetime import datetime
from typing import Any

import attrs

from kproxy.exchange.endings import ConnectionEnd
from kproxy.exchange.entities import TopicPartition
from kproxy.exchange.entries import EVENTS, ExchangeRow, Note
from kproxy.exchange.exchange import Exchange
from kproxy.view.stats_bodies import NOTHING, Told, told_by

_SIGNIFICANT_BITS = 8


@attrs.define(eq=False)
class Histogram:
    """Durations, to about 1 %; the largest is exact."""

    count: int = 0
    max_ms: float = 0.0
    _counts: dict[int, int] = attrs.field(factory=dict[int, int], init=False)
    """By microseconds, of which the first eight significant bits are kept."""

    def add(self, duration_ms: float) -> None:
        """Count one."""
        microseconds = max(0, round(duration_ms * 1000))
        dropped = max(0, microseconds.bit_length() - _SIGNIFICANT_BITS)
        kept = microseconds >> dropped << dropped
        self._counts[kept] = self._counts.get(kept, 0) + 1
        self.count += 1
        self.max_ms = max(self.max_ms, duration_ms)

    @classmethod
    def of(cls, microseconds: dict[int, int]) -> Histogram:
        """Those of durations of which each came so many times; what is negative is none."""
        found = cls()
        for each, count in microseconds.items():
            if each >= 0:
                dropped = max(0, each.bit_length() - _SIGNIFICANT_BITS)
                kept = each >> dropped << dropped
                found._counts[kept] = found._counts.get(kept, 0) + count
                found.count += count
        found.max_ms = max(0, *microseconds, 0) / 1000
        return found

    def merge(self, other: Histogram) -> None:
        """Count what another has counted."""
        counts = self._counts
        for kept, count in other._counts.items():
            counts[kept] = counts.get(kept, 0) + count
        self.count += other.count
        self.max_ms = max(self.max_ms, other.max_ms)

    def percentile(self, part: float) -> float | None:
        """The duration in milliseconds that this part of all does not exceed; None of none."""
        if not self.count:
            return None
        rank = max(1, -int(-part * self.count // 1))
        passed = 0
        for microseconds in sorted(self._counts):
            passed += self._counts[microseconds]
            if passed >= rank:
                return min(microseconds / 1000, self.max_ms)
        return self.max_ms


@attrs.define(eq=False)
class Tally:
    """What is counted of one API, one client or one topic."""

    count: int = 0
    errors: int = 0
    unanswered: int = 0
    broker: Histogram = attrs.field(factory=Histogram)
    proxy: Histogram = attrs.field(factory=Histogram)
    bytes: int = 0
    """Of frames, both ways; of a topic, of its record batches."""
    records: int = 0


@attrs.define(eq=False)
class ErrorTally:
    """One of Kafka's errors."""

    count: int = 0
    apis: Counter[str] = attrs.field(factory=Counter[str])
    first: int = 0
    """The number of the first exchange that has it."""


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
    """Whether errors, topics, records and events are counted, for which bodies are decoded."""
    total: Tally = attrs.field(factory=Tally, init=False)
    by_api: dict[str, Tally] = attrs.field(factory=dict[str, Tally], init=False)
    by_client: dict[str, Tally] = attrs.field(factory=dict[str, Tally], init=False)
    by_topic: dict[str, Tally] = attrs.field(factory=dict[str, Tally], init=False)
    errors: dict[str, ErrorTally] = attrs.field(factory=dict[str, ErrorTally], init=False)
    first: datetime | None = attrs.field(default=None, init=False)
    last: datetime | None = attrs.field(default=None, init=False)
    connection_count: int = attrs.field(default=0, init=False)
    ended_by: Counter[str] = attrs.field(factory=Counter[str], init=False)
    """Ends of connections by who was first: client, broker, proxy."""
    reconnects: int = attrs.field(default=0, init=False)
    """Connections to a broker that the same client had been connected to before."""
    retries: int = attrs.field(default=0, init=False)
    """Batches that an idempotent producer sent again."""
    leader_changes: int = attrs.field(default=0, init=False)
    """Partitions of which Metadata named another leader than before."""
    generations: dict[str, set[int]] = attrs.field(factory=dict[str, set[int]], init=False)
    """Of groups: the generations (KIP-848: epochs) that members joined."""
    throttled: int = attrs.field(default=0, init=False)
    _connections: set[int] = attrs.field(factory=set[int], init=False)
    """Those of the present recording."""
    _open: dict[int, _Peers] = attrs.field(factory=dict[int, "_Peers"], init=False)
    _peers: dict[tuple[str | None, int | None], _Peers] = attrs.field(
        factory=dict[tuple[str | None, int | None], "_Peers"], init=False
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
            return
        used_ns = completed_ns(shown.row)
        self.connect(shown.connection, shown.client_id, shown.node_id, used_ns)
        self.span(shown.time, shown.time)
        told = NOTHING
        if self.reads_bodies:
            told = told_by(shown)
            self.tell(told, shown.number, shown.api)
            self.see(shown)
        tallies = self.tallies(shown.api, shown.client_id)
        by_topic = {name: self.topic(name) for name in told.topics}
        for tally in tallies:
            tally.bytes += (shown.request_bytes or 0) + (shown.response_bytes or 0)
            tally.records += sum(count for _, count, _ in told.records)
        for tally in (*tallies, *by_topic.values()):
            _count(tally, shown, bool(told.errors))
        for topic, count, size in told.records:
            if topic in by_topic:
                by_topic[topic].records += count
                by_topic[topic].bytes += size

    def span(self, first: datetime, last: datetime) -> None:
        """Something happened between these times."""
        self.first = self.first or first
        self.last = max(self.last or last, last)

    def tallies(self, api: str | None, client_id: str | None) -> list[Tally]:
        """All that counts what such a client asks of such an API."""
        return [
            self.total,
            self.by_api.setdefault(api or "(half a header)", Tally()),
            self.by_client.setdefault(client_id or "(no client id)", Tally()),
        ]

    def topic(self, name: str) -> Tally:
        """What counts a topic."""
        return self.by_topic.setdefault(name, Tally())

    def connect(self, number: int, client_id: str | None, node_id: int | None, at_ns: int) -> None:
        """A connection was used at a time."""
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

    def hear(self, note: Note) -> None:
        """Begin anew with the numbers of connections where another recording begins."""
        if note.channel == EVENTS and note.body.get("event") == "recording":
            self._connections.clear()
            self._open.clear()

    # ---- what bodies tell

    def tell(self, told: Told, number: int, api: str | None) -> None:
        """Count what the bodies of an exchange tell beside its tallies."""
        for name in told.errors:
            error = self.errors.get(name)
            if error is None:
                error = self.errors[name] = ErrorTally(first=number)
            error.count += 1
            error.apis[api or "?"] += 1
        self.throttled += told.throttled
        for producer, where, sequence in told.sequences:
            # A sequence that does not go on is one that was sent before; they begin anew at 0
            # after 2³¹ − 1.
            before = self._sequences.get((producer, where), -1)
            self.retries += 0 <= before - sequence < 1 << 30
            self._sequences[producer, where] = max(before, sequence)

    def see(self, exchange: Exchange) -> None:
        """See what an exchange tells of the cluster and of groups."""
        request, response = exchange.request, exchange.response
        if response is None:
            return
        if exchange.api == "Metadata":
            self._metadata(response, exchange)
        elif exchange.api == "JoinGroup" and not response.error_code and request is not None:
            self._generation(request.group_id, response.generation_id)
        elif exchange.api == "ConsumerGroupHeartbeat" and request is not None:
            if not response.error_code and response.member_epoch > 0:
                self._generation(request.group_id, response.member_epoch)

    def _generation(self, group: str, generation: int) -> None:
        self.generations.setdefault(group, set()).add(generation)

    def _metadata(self, response: Any, exchange: Exchange) -> None:
        for topic in response.topics or ():
            name = topic.name or exchange.topic_names.text(topic.topic_id)
            for partition in topic.partitions or ():
                where = TopicPartition(name, partition.partition_index)
                before = self._leaders.get(where)
                if partition.leader_id >= 0:
                    self.leader_changes += before not in (None, partition.leader_id)
                    self._leaders[where] = partition.leader_id


def _count(tally: Tally, exchange: Exchange, failed: bool) -> None:
    """Count an exchange in a tally, apart from its bytes and records."""
    tally.count += 1
    tally.errors += failed
    tally.unanswered += exchange.unanswered is not None
    service_ms = counted_service_ms(exchange)
    if service_ms is not None:
        tally.broker.add(service_ms)
    if exchange.proxy_ms is not None:
        tally.proxy.add(exchange.proxy_ms)


def completed_ns(row: ExchangeRow) -> int:
    """When an exchange was over."""
    return max(row.response_sent_ns, row.response_received_ns, row.request_sent_ns)


def counted_service_ms(exchange: Exchange) -> float | None:
    """How long the broker took for certain; None where all of its time may be a wait."""
    service_ms, waiting_ms = exchange.service_ms, exchange.waiting_ms
    return service_ms if service_ms or not waiting_ms else None
