"""What `kproxy stats` counts: tallies by API, client and topic, and their sums.

    batch of rows, or Exchange ─▶ StatsPart ─▶ `Stats`

A part is what some exchanges tell by themselves; what they tell together with those before them
(retries, reconnects, changes of leaders) is for `Stats` to see, which takes part after part.
"""

from __future__ import annotations

from collections import Counter
from datetime import datetime

import attrs

from kproxy.exchange.derived import UNKNOWN
from kproxy.exchange.entities import TopicPartition
from kproxy.exchange.exchange import Exchange
from kproxy.exchange.histogram import Histogram
from kproxy.view.stats_bodies import NOTHING, ProducerSequence, BodyCounts, count_bodies


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

    def merge(self, other: Tally) -> None:
        """Count what another has counted."""
        self.count += other.count
        self.errors += other.errors
        self.unanswered += other.unanswered
        self.broker.merge(other.broker)
        self.proxy.merge(other.proxy)
        self.bytes += other.bytes
        self.records += other.records


@attrs.define(eq=False)
class ErrorTally:
    """One of Kafka's errors."""

    count: int = 0
    apis: Counter[str] = attrs.field(factory=Counter[str])
    first: int = 0
    """The number of the first exchange that has it."""
    recording: int = 1
    """Which recording that is in."""

    def merge(self, other: ErrorTally) -> None:
        """Count what another has counted, later."""
        self.count += other.count
        self.apis += other.apis


@attrs.define(eq=False)
class Counts:
    """What can be counted in parts."""

    total: Tally = attrs.field(factory=Tally)
    by_api: dict[str, Tally] = attrs.field(factory=dict[str, Tally])
    by_client: dict[str, Tally] = attrs.field(factory=dict[str, Tally])
    by_topic: dict[str, Tally] = attrs.field(factory=dict[str, Tally])
    errors: dict[str, ErrorTally] = attrs.field(factory=dict[str, ErrorTally])
    first: datetime | None = None
    """When the earliest request arrived; a long poll that did may be counted after many others."""
    last: datetime | None = None
    """When the latest request arrived."""
    generations: dict[tuple[str, int], set[int]] = attrs.field(
        factory=dict[tuple[str, int], set[int]]
    )
    """Of groups, each in one recording: the generations (KIP-848: epochs) that members joined."""
    throttled: int = 0

    def span(self, first: datetime, last: datetime) -> None:
        """Something happened between these times."""
        self.first = min(self.first or first, first)
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

    def merge(self, other: Counts) -> None:
        """Count what another has counted, later."""
        self.total.merge(other.total)
        for mine, others in (
            (self.by_api, other.by_api),
            (self.by_client, other.by_client),
            (self.by_topic, other.by_topic),
        ):
            for name, tally in others.items():
                mine.setdefault(name, Tally()).merge(tally)
        for name, error in other.errors.items():
            first = ErrorTally(first=error.first, recording=error.recording)
            self.errors.setdefault(name, first).merge(error)
        for where, generations in other.generations.items():
            self.generations.setdefault(where, set()).update(generations)
        self.throttled += other.throttled
        if other.first is not None and other.last is not None:
            self.span(other.first, other.last)


_Use = tuple[int, str | None, int | None, int]
"""That a connection was used: its number, client and broker, and when that was over."""


@attrs.define(eq=False)
class StatsPart:
    """What some exchanges tell, in their order."""

    recording: int = 1
    """Which one they are in."""
    counts: Counts = attrs.field(factory=Counts)
    connections: list[_Use] = attrs.field(factory=list[_Use])
    sequences: list[ProducerSequence] = attrs.field(factory=list[ProducerSequence])
    leaders: list[tuple[TopicPartition, int]] = attrs.field(
        factory=list[tuple[TopicPartition, int]]
    )
    """What Metadata says."""

    @classmethod
    def of(cls, exchange: Exchange, reads_bodies: bool, recording: int = 1) -> StatsPart:
        """What an exchange tells by itself."""
        part = cls(recording)
        counts = part.counts
        counts.span(exchange.time, exchange.time)
        about = exchange.connection, exchange.client_id, exchange.node_id, exchange.completed_ns
        part.connections.append(about)
        said = NOTHING
        if reads_bodies:
            said = count_bodies(exchange.facts)
            part.tell(said, exchange.number, exchange.api)
            part.see(exchange)
        tallies = counts.tallies(exchange.api, exchange.client_id)
        by_topic = {name: counts.topic(name) for name in said.topics}
        for tally in tallies:
            tally.bytes += (exchange.request_bytes or 0) + (exchange.response_bytes or 0)
            tally.records += sum(count for _, count, _ in said.records)
        for tally in (*tallies, *by_topic.values()):
            _count(tally, exchange, bool(said.errors))
        for topic, count, size in said.records:
            if topic in by_topic:
                by_topic[topic].records += count
                by_topic[topic].bytes += size
        return part

    def tell(self, told: BodyCounts, number: int, api: str | None) -> None:
        """Count what the bodies of an exchange tell beside its tallies."""
        errors = self.counts.errors
        for name in told.errors:
            error = errors.get(name)
            if error is None:
                error = errors[name] = ErrorTally(first=number, recording=self.recording)
            error.count += 1
            error.apis[api or "?"] += 1
        self.counts.throttled += told.throttled
        self.sequences += told.sequences

    def see(self, exchange: Exchange) -> None:
        """See what an exchange tells of the cluster and of groups."""
        request, response = exchange.request, exchange.response
        if response is None:
            return
        if exchange.api == "Metadata":
            self._metadata(exchange)
        elif exchange.api == "JoinGroup" and not response.error_code and request is not None:
            self._generation(request.group_id, response.generation_id)
        elif exchange.api == "ConsumerGroupHeartbeat" and request is not None:
            if not response.error_code and response.member_epoch > 0:
                self._generation(request.group_id, response.member_epoch)

    def _generation(self, group: str, generation: int) -> None:
        self.counts.generations.setdefault((group, self.recording), set()).add(generation)

    def _metadata(self, exchange: Exchange) -> None:
        for topic in exchange.response.topics or ():
            name = topic.name or exchange.topic_names.text(topic.topic_id)
            for partition in topic.partitions or ():
                if partition.leader_id >= 0:
                    where = TopicPartition(name, partition.partition_index)
                    self.leaders.append((where, partition.leader_id))


def _count(tally: Tally, exchange: Exchange, failed: bool) -> None:
    """Count an exchange in a tally, apart from its bytes and records."""
    tally.count += 1
    tally.errors += failed
    tally.unanswered += exchange.got_no_response
    if exchange.served_us != UNKNOWN:
        tally.broker.add(exchange.served_us)
    if exchange.proxy_us != UNKNOWN:
        tally.proxy.add(exchange.proxy_us)
