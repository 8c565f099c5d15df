"""Tallies of `kproxy stats` by API, client and topic, and their sums.

Exchange ─▶ Counts: what it counts for by itself      (`stats` has what depends on earlier ones)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import datetime

import attrs

from kproxy.exchange import topic_records
from kproxy.exchange.body_facts import Records
from kproxy.exchange.derived import UNKNOWN
from kproxy.exchange.entities import TopicPartition
from kproxy.exchange.exchange import Exchange
from kproxy.exchange.histogram import Histogram

ProducerSequence = tuple[int, TopicPartition, int]
"""A batch of an idempotent producer: producer id and epoch, partition, base sequence."""


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


@attrs.define(eq=False)
class ErrorTally:
    """The counts of one Kafka error."""

    count: int = 0
    apis: Counter[str] = attrs.field(factory=Counter[str])
    first: int = 0
    """The number of the first exchange with the error."""
    recording: int = 1
    """The number of the recording of that exchange."""


@attrs.define(eq=False)
class Counts:
    """The counts of exchanges, each by itself."""

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

    def add(self, exchange: Exchange, recording: int, reads_bodies: bool) -> list[ProducerSequence]:
        """Count an exchange of the recording of this number; return the batches of idempotent
        producers in it."""
        self.first = min(self.first or exchange.time, exchange.time)
        self.last = max(self.last or exchange.time, exchange.time)
        about = [
            self.total,
            self.by_api.setdefault(exchange.api or "(half a header)", Tally()),
            self.by_client.setdefault(exchange.client_id or "(no client id)", Tally()),
        ]
        size = (exchange.request_bytes or 0) + (exchange.response_bytes or 0)
        for tally in about:
            tally.bytes += size
        if not reads_bodies:
            _count(about, exchange)
            return []
        facts = exchange.facts
        by_topic = {name: self.by_topic.setdefault(name, Tally()) for name in facts.topics}
        _count([*about, *by_topic.values()], exchange, bool(facts.errors))
        for name in facts.errors:
            self._add_error(name, exchange, recording)
        self.throttled += facts.throttled
        self._add_generation(exchange, recording)
        return _count_records(facts.records, about, by_topic)

    def _add_error(self, name: str, exchange: Exchange, recording: int) -> None:
        errors = self.routine if exchange.routine else self.errors
        error = errors.setdefault(name, ErrorTally(first=exchange.number, recording=recording))
        error.count += 1
        error.apis[exchange.api or "?"] += 1

    def _add_generation(self, exchange: Exchange, recording: int) -> None:
        """Add the generation of a group, or the epoch of a member, that the exchange shows."""
        read = _GENERATIONS.get(exchange.api or "")
        if read is None:
            return
        request, response = exchange.request, exchange.response
        if request is None or response is None or response.error_code:
            return
        generation = getattr(response, read)
        if generation > 0 or read == "generation_id":
            self.generations.setdefault((request.group_id, recording), set()).add(generation)


_GENERATIONS = {"JoinGroup": "generation_id", "ConsumerGroupHeartbeat": "member_epoch"}
"""API → the field of its response that has the generation, or the epoch, of a member."""


def _count(tallies: Iterable[Tally], exchange: Exchange, failed: bool = False) -> None:
    """Count an exchange in tallies, apart from its bytes and records."""
    routine = failed and exchange.routine
    served_us, proxy_us = exchange.served_us, exchange.proxy_us
    for tally in tallies:
        tally.count += 1
        tally.errors += failed and not routine
        tally.routine += routine
        tally.unanswered += exchange.got_no_response
        tally.undelivered += exchange.is_undelivered
        tally.open += exchange.open_at_end
        tally.silenced += exchange.silenced
        if served_us != UNKNOWN:
            tally.broker.add(served_us)
        if proxy_us != UNKNOWN:
            tally.proxy.add(proxy_us)


def _count_records(
    found: Iterable[Records], about: Iterable[Tally], by_topic: dict[str, Tally]
) -> list[ProducerSequence]:
    """Count the records in the bodies of an exchange; return the batches of idempotent producers,
    to find retries."""
    sequences: list[ProducerSequence] = []
    for each in found:
        count, sent = topic_records.batch_heads(each)
        for tally in about:
            tally.records += count or 0
        if each.topic in by_topic:
            by_topic[each.topic].records += count or 0
            by_topic[each.topic].bytes += each.stop - each.start
        for producer_id, producer_epoch, sequence in sent:
            producer = producer_id << 16 | producer_epoch & 0xFFFF
            sequences.append((producer, each.where, sequence))
    return sequences
