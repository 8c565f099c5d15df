"""Tallies of `kproxy stats` by API, client and topic, and their sums.

    batch of rows, or Exchange ─▶ StatsPart ─▶ `Stats`

A part has the counts of some exchanges, independent of earlier ones. Counts that depend on earlier
exchanges (retries, reconnects, changes of leaders) are made by `Stats`, which takes the parts in
order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime

import attrs

from kproxy.exchange.derived import UNKNOWN
from kproxy.exchange.entities import TopicPartition
from kproxy.exchange.exchange import Exchange
from kproxy.exchange.histogram import Histogram
from kproxy.view.stats_bodies import (
    Failure,
    ProducerSequence,
    RecordsByTopic,
    count_records,
    failure_of,
)


@attrs.define(eq=False)
class Tally:
    """The counts of one API, client or topic."""

    count: int = 0
    errors: int = 0
    """Exchanges with errors that are not routine …"""
    routine: int = 0
    """… and those with routine ones only."""
    unanswered: int = 0
    undelivered: int = 0
    """Those of them whose response came, but did not reach the client …"""
    open: int = 0
    """… and those that may be answered after the recording."""
    silenced: int = 0
    """Those of them that a fault rule made so."""
    broker: Histogram = attrs.field(factory=Histogram)
    proxy: Histogram = attrs.field(factory=Histogram)
    bytes: int = 0
    """Bytes of frames in both directions; for a topic, bytes of its record batches."""
    records: int = 0

    def merge(self, other: Tally) -> None:
        """Add the counts of another tally."""
        self.count += other.count
        self.errors += other.errors
        self.routine += other.routine
        self.unanswered += other.unanswered
        self.undelivered += other.undelivered
        self.open += other.open
        self.silenced += other.silenced
        self.broker.merge(other.broker)
        self.proxy.merge(other.proxy)
        self.bytes += other.bytes
        self.records += other.records


@attrs.define(eq=False)
class ErrorTally:
    """The counts of one Kafka error."""

    count: int = 0
    apis: Counter[str] = attrs.field(factory=Counter[str])
    first: int = 0
    """The number of the first exchange with the error."""
    recording: int = 1
    """The number of the recording of that exchange."""

    def merge(self, other: ErrorTally) -> None:
        """Add the counts of a tally of later exchanges."""
        self.count += other.count
        self.apis += other.apis


@attrs.define(eq=False)
class Counts:
    """Counts that can be made in parts and added."""

    total: Tally = attrs.field(factory=Tally)
    by_api: dict[str, Tally] = attrs.field(factory=dict[str, Tally])
    by_client: dict[str, Tally] = attrs.field(factory=dict[str, Tally])
    by_topic: dict[str, Tally] = attrs.field(factory=dict[str, Tally])
    errors: dict[str, ErrorTally] = attrs.field(factory=dict[str, ErrorTally])
    """Errors of exchanges that have others than routine ones …"""
    routine: dict[str, ErrorTally] = attrs.field(factory=dict[str, ErrorTally])
    """… and of those that have routine ones only."""
    first: datetime | None = None
    """The arrival of the earliest request; it may complete, and be counted, after later ones."""
    last: datetime | None = None
    """The arrival of the latest request."""
    generations: dict[tuple[str, int], set[int]] = attrs.field(
        factory=dict[tuple[str, int], set[int]]
    )
    """Group and recording → the generations (KIP-848: epochs) that members joined."""
    throttled: int = 0

    def extend_span(self, first: datetime, last: datetime) -> None:
        """Extend the span from the earliest to the latest request."""
        self.first = min(self.first or first, first)
        self.last = max(self.last or last, last)

    def tallies(self, api: str | None, client_id: str | None) -> list[Tally]:
        """Return the tallies in which an exchange of an API and client counts."""
        return [
            self.total,
            self.by_api.setdefault(api or "(half a header)", Tally()),
            self.by_client.setdefault(client_id or "(no client id)", Tally()),
        ]

    def topic(self, name: str) -> Tally:
        """Return the tally of a topic."""
        return self.by_topic.setdefault(name, Tally())

    def merge(self, other: Counts) -> None:
        """Add the counts of later exchanges."""
        self.total.merge(other.total)
        for tallies, others in (
            (self.by_api, other.by_api),
            (self.by_client, other.by_client),
            (self.by_topic, other.by_topic),
        ):
            for name, tally in others.items():
                tallies.setdefault(name, Tally()).merge(tally)
        for errors, others in ((self.errors, other.errors), (self.routine, other.routine)):
            for name, error in others.items():
                first = ErrorTally(first=error.first, recording=error.recording)
                errors.setdefault(name, first).merge(error)
        for where, generations in other.generations.items():
            self.generations.setdefault(where, set()).update(generations)
        self.throttled += other.throttled
        if other.first is not None and other.last is not None:
            self.extend_span(other.first, other.last)


_ConnectionUse = tuple[int, str | None, int | None, int]
"""Number of a connection, its client id and node id, the end of an exchange on it."""


@attrs.define(eq=False)
class StatsPart:
    """The counts of some exchanges of one recording, in their order."""

    recording: int = 1
    """The number of the recording."""
    counts: Counts = attrs.field(factory=Counts)
    connections: list[_ConnectionUse] = attrs.field(factory=list[_ConnectionUse])
    sequences: list[ProducerSequence] = attrs.field(factory=list[ProducerSequence])
    leaders: list[tuple[TopicPartition, int]] = attrs.field(
        factory=list[tuple[TopicPartition, int]]
    )
    """The leaders of partitions, from Metadata."""

    @classmethod
    def of(cls, exchange: Exchange, reads_bodies: bool, recording: int = 1) -> StatsPart:
        """Return the counts of one exchange."""
        part = cls(recording)
        counts = part.counts
        counts.extend_span(exchange.time, exchange.time)
        use = exchange.connection, exchange.client_id, exchange.node_id, exchange.completed_ns
        part.connections.append(use)
        topics, failure, records = list[str](), Failure.NONE, RecordsByTopic()
        if reads_bodies:
            facts, routine = exchange.facts, exchange.routine
            topics, failure = facts.topics, failure_of(facts.errors, routine)
            count_records(facts.records, records, part.sequences)
            part.add_errors(facts.errors, failure, exchange.number, exchange.api)
            counts.throttled += facts.throttled
            part.add_decoded(exchange)
        tallies = counts.tallies(exchange.api, exchange.client_id)
        by_topic = {name: counts.topic(name) for name in topics}
        for tally in tallies:
            tally.bytes += (exchange.request_bytes or 0) + (exchange.response_bytes or 0)
        for tally in (*tallies, *by_topic.values()):
            _count(tally, exchange, failure)
        add_records(records, tallies, by_topic)
        return part

    def add_errors(
        self, names: Iterable[str], failure: Failure, number: int, api: str | None
    ) -> None:
        """Add the errors of an exchange, apart from those in tallies."""
        errors = self.counts.routine if failure is Failure.ROUTINE else self.counts.errors
        for name in names:
            error = errors.get(name)
            if error is None:
                error = errors[name] = ErrorTally(first=number, recording=self.recording)
            error.count += 1
            error.apis[api or "?"] += 1

    def add_decoded(self, exchange: Exchange) -> None:
        """Add the leaders and generations that a decoded exchange shows."""
        request, response = exchange.request, exchange.response
        if response is None:
            return
        if exchange.api == "Metadata":
            self._add_leaders(exchange)
        elif exchange.api == "JoinGroup" and not response.error_code and request is not None:
            self._add_generation(request.group_id, response.generation_id)
        elif exchange.api == "ConsumerGroupHeartbeat" and request is not None:
            if not response.error_code and response.member_epoch > 0:
                self._add_generation(request.group_id, response.member_epoch)

    def _add_generation(self, group: str, generation: int) -> None:
        self.counts.generations.setdefault((group, self.recording), set()).add(generation)

    def _add_leaders(self, exchange: Exchange) -> None:
        for topic in exchange.response.topics or ():
            name = topic.name or exchange.topic_names.text(topic.topic_id)
            for partition in topic.partitions or ():
                if partition.leader_id >= 0:
                    where = TopicPartition(name, partition.partition_index)
                    self.leaders.append((where, partition.leader_id))


def _count(tally: Tally, exchange: Exchange, failure: Failure) -> None:
    """Count an exchange in a tally, apart from its bytes and records."""
    tally.count += 1
    tally.errors += failure is Failure.ERROR
    tally.routine += failure is Failure.ROUTINE
    tally.unanswered += exchange.got_no_response
    tally.undelivered += exchange.is_undelivered
    tally.open += exchange.open_at_end
    tally.silenced += exchange.silenced
    if exchange.served_us != UNKNOWN:
        tally.broker.add(exchange.served_us)
    if exchange.proxy_us != UNKNOWN:
        tally.proxy.add(exchange.proxy_us)


def add_records(
    records: RecordsByTopic, tallies: Iterable[Tally], by_topic: Mapping[str, Tally]
) -> None:
    """Add records to the tallies of their API and client, and to those of their topics."""
    for tally in tallies:
        tally.records += sum(count for count, _ in records.values())
    for topic, (count, size) in records.items():
        if topic in by_topic:
            by_topic[topic].records += count
            by_topic[topic].bytes += size
