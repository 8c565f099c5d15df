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

from kproxy.exchange import topic_records
from kproxy.exchange.endings import ConnectionEnd
from kproxy.exchange.entities import TopicPartition
from kproxy.exchange.exchange import Exchange
from kproxy.protocol import ProtocolError, records

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

    def add_microseconds(self, counts: dict[int, int]) -> None:
        """Count many."""
        for microseconds, count in counts.items():
            dropped = max(0, microseconds.bit_length() - _SIGNIFICANT_BITS)
            kept = microseconds >> dropped << dropped
            self._counts[kept] = self._counts.get(kept, 0) + count
            self.count += count
        self.max_ms = max(self.max_ms, max(counts, default=0) / 1000)

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
    connections: set[int] = attrs.field(factory=set[int], init=False)
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
    _ended: set[tuple[str | None, int | None]] = attrs.field(
        factory=set[tuple[str | None, int | None]], init=False
    )
    """Clients and brokers between which a connection ended."""
    _clients: dict[int, tuple[str | None, int | None]] = attrs.field(
        factory=dict[int, tuple[str | None, int | None]], init=False
    )
    _sequences: dict[tuple[int, TopicPartition], int] = attrs.field(
        factory=dict[tuple[int, TopicPartition], int], init=False
    )
    _leaders: dict[TopicPartition, int] = attrs.field(factory=dict[TopicPartition, int], init=False)

    def add(self, shown: Exchange | ConnectionEnd) -> None:
        """Count an exchange, or the end of a connection."""
        if isinstance(shown, ConnectionEnd):
            self._end(shown)
            return
        self.connect(shown.connection, shown.client_id, shown.node_id)
        self.span(shown.time, shown.time)
        tallies = self.tallies(shown.api, shown.client_id)
        errors = bool(self._read_bodies(shown, tallies)) if self.reads_bodies else False
        for tally in tallies:
            tally.bytes += (shown.request_bytes or 0) + (shown.response_bytes or 0)
            _count(tally, shown, errors)

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

    def connect(self, number: int, client_id: str | None, node_id: int | None) -> None:
        """Something happened on a connection."""
        if number not in self.connections:
            self.connections.add(number)
            pair = self._clients[number] = (client_id, node_id)
            self.reconnects += pair in self._ended

    def _end(self, end: ConnectionEnd) -> None:
        self.ended_by[end.first.side if end.first else "nobody knows whom"] += 1
        if (pair := self._clients.pop(end.connection, None)) is not None:
            self._ended.add(pair)

    # ---- what bodies tell

    def _read_bodies(self, exchange: Exchange, tallies: list[Tally]) -> list[str]:
        errors = exchange.errors
        for name in errors:
            error = self.errors.setdefault(name, ErrorTally(first=exchange.number))
            error.count += 1
            error.apis[exchange.api or "?"] += 1
        by_topic = {name: self.by_topic.setdefault(name, Tally()) for name in exchange.topics}
        for tally in by_topic.values():
            _count(tally, exchange, bool(errors))
        found = topic_records.heads(exchange.request, exchange.response, exchange.topic_names)
        for each in found:
            topic = by_topic.get(each.where.topic)
            for tally in (*tallies, *((topic,) if topic else ())):
                tally.records += each.count
            if topic is not None:
                topic.bytes += each.bytes
            if exchange.api == "Produce":
                self._produced(each)
        self._event(exchange)
        self.throttled += bool(getattr(exchange.response, "throttle_time_ms", 0))
        return errors

    def _produced(self, produced: topic_records.TopicRecords) -> None:
        """A sequence that does not go on is one that was sent before."""
        try:
            batches = records.batches(produced.data)
        except ProtocolError:
            return
        for batch in batches:
            if batch.producer_id < 0 or batch.base_sequence < 0:
                continue
            key = (batch.producer_id << 16 | batch.producer_epoch & 0xFFFF, produced.where)
            before = self._sequences.get(key, -1)
            # They begin anew at 0 after 2³¹ − 1.
            self.retries += 0 <= before - batch.base_sequence < 1 << 30
            self._sequences[key] = max(before, batch.base_sequence)

    def _event(self, exchange: Exchange) -> None:
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


def _count(tally: Tally, exchange: Exchange, errors: bool) -> None:
    """Count an exchange in a tally, apart from its bytes and records."""
    tally.count += 1
    tally.errors += errors
    tally.unanswered += exchange.unanswered is not None
    service_ms, waiting_ms = exchange.service_ms, exchange.waiting_ms
    if service_ms is not None and (service_ms or not waiting_ms):
        tally.broker.add(service_ms)
    if exchange.proxy_ms is not None:
        tally.proxy.add(exchange.proxy_ms)
