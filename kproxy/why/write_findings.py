"""Findings about what producers wrote: a hot partition, a key on two partitions, a fenced
producer, records that kproxy sent twice.

Invariants: a write counts if the broker took it, or if none was to answer (acks=0). Of keys, at
most `KEYS_MAX` are remembered, as digests; what comes after them is compared with these only.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator

import attrs

from kproxy.exchange import delivered
from kproxy.exchange.deletions import deleted_topics
from kproxy.exchange.entities import TopicPartition
from kproxy.exchange.exchange import Exchange
from kproxy.exchange.partitioners import PARTITIONERS, agreeing
from kproxy.exchange.words.wording import count
from kproxy.history.items import Gap, Item
from kproxy.why.committed import partition_counts
from kproxy.why.finding import Finding, Harm
from kproxy.why.key import key_text
from kproxy.why.sentences import who
from kproxy.why.transactional_id import TransactionalId
from kproxy.why.written import TRIED, writes

RECORDS_MAX = 250_000
"""Records whose keys are compared: it takes 8 µs each, so that it ends in seconds."""
KEYS_MAX = 50_000
_HOT_RECORDS_MIN = 100
_HOT_WRITES_MIN = 10
"""Fewer writes are spread by chance: a batch without keys goes to one partition."""
_HOT_FACTOR = 3
"""A hot partition gets more than this many times the mean of the others."""
_HOT_PARTITIONS_MIN = 3
_PARTITIONER_KEYS_MIN = 8
"""Keys that must agree with one partitioner, and no other, before it is named."""
_PARTITIONER_KEYS_MAX = 200
_IDS_MAX = 1000


@attrs.define(eq=False)
class HotPartitions:
    """Finds partitions that get many more records than the others of their topic."""

    _records: dict[str, Counter[int]] = attrs.field(factory=dict[str, Counter[int]], init=False)
    _writes: Counter[TopicPartition] = attrs.field(factory=Counter[TopicPartition], init=False)
    _latest: dict[TopicPartition, int] = attrs.field(factory=dict[TopicPartition, int], init=False)
    _partition_counts: dict[str, int] = attrs.field(factory=dict[str, int], init=False)

    def add(self, item: Item) -> None:
        """Take the next item."""
        if not isinstance(item, Exchange):
            return
        self._partition_counts.update(partition_counts(item))
        for each in writes(item):
            if each.outcome != TRIED:
                self._records.setdefault(each.where.topic, Counter())[each.where.partition] += (
                    each.records
                )
                self._writes[each.where] += 1
                self._latest[each.where] = item.number

    def found(self) -> list[Finding]:
        """Return a finding for each topic with a hot partition."""
        return [each for topic in sorted(self._records) for each in self._hot(topic)]

    def _hot(self, topic: str) -> Iterator[Finding]:
        found = self._records[topic]
        partition, most = max(found.items(), key=lambda each: each[1])
        total = sum(found.values())
        partition_count = max(self._partition_counts.get(topic, 0), len(found))
        write_count = sum(self._writes[TopicPartition(topic, each)] for each in found)
        if partition_count < _HOT_PARTITIONS_MIN or write_count < _HOT_WRITES_MIN:
            return
        mean_of_others = (total - most) / (partition_count - 1)
        if total < _HOT_RECORDS_MIN or most <= _HOT_FACTOR * mean_of_others:
            return
        where = TopicPartition(topic, partition)
        known = topic in self._partition_counts
        among = f"{partition_count} partitions{'' if known else ' that were written to'}"
        yield Finding(
            Harm.LATENCY,
            "hot partition",
            f"{topic}[{partition}] got {most} of {count(total, 'record')} written to {topic}"
            f" ({100 * most / total:.0f} %), one of {among} (last #{self._latest[where]}).",
            (self._latest[where],),
            ("why", f"topic:{topic}"),
            topic,
        )


@attrs.frozen
class _KeyWrite:
    partition: int
    who: str
    number: int


@attrs.define(eq=False)
class KeysOnPartitions:
    """Finds keys that were written to several partitions while their number stayed the same."""

    _first: dict[str, dict[bytes, _KeyWrite]] = attrs.field(
        factory=dict[str, dict[bytes, _KeyWrite]], init=False
    )
    """Topic → digest of a key → its first write."""
    _kept: int = attrs.field(default=0, init=False)
    _read: int = attrs.field(default=0, init=False)
    """The number of records that were read."""
    _examples: dict[str, tuple[bytes, _KeyWrite, _KeyWrite]] = attrs.field(
        factory=dict[str, tuple[bytes, _KeyWrite, _KeyWrite]], init=False
    )
    _split: dict[str, set[bytes]] = attrs.field(factory=dict[str, set[bytes]], init=False)
    _partition_counts: dict[str, int] = attrs.field(factory=dict[str, int], init=False)
    _agreeing: dict[tuple[str, str], tuple[set[str], set[bytes]]] = attrs.field(
        factory=dict[tuple[str, str], tuple[set[str], set[bytes]]], init=False
    )
    """Topic and client → partitioners that agree with all of its keys, and the keys."""

    def add(self, item: Item) -> None:
        """Take the next item."""
        if isinstance(item, Gap):  # there may be more partitions behind it
            for topic in list(self._first):
                self._forget(topic)
            self._partition_counts.clear()
        if not isinstance(item, Exchange):
            return
        for topic, partition_count in partition_counts(item):
            if self._partition_counts.get(topic, partition_count) != partition_count:
                self._forget(topic)
            self._partition_counts[topic] = partition_count
        for topic in deleted_topics(item):
            self._forget(topic)
        if self._read < RECORDS_MAX and not item.injected and delivered.may_have_written(item):
            self._written(item)

    def _forget(self, topic: str) -> None:
        self._kept -= len(self._first.pop(topic, {}))
        for key in [each for each in self._agreeing if each[0] == topic]:
            del self._agreeing[key]

    def _written(self, exchange: Exchange) -> None:
        refused, client = delivered.refused(exchange), who(exchange)
        self._read += len(exchange.records)
        for record in exchange.records:
            key, topic = record.key, record.topic
            if not key or not record.produced or (topic, record.partition) in refused:
                continue
            digest = hashlib.blake2b(key, digest_size=12).digest()
            self._compare(topic, client, key, digest, record.partition)
            now = _KeyWrite(record.partition, client, exchange.number)
            first = self._first.setdefault(topic, {})
            before = first.get(digest)
            if before is None:
                if self._kept < KEYS_MAX:
                    first[digest] = now
                    self._kept += 1
            elif before.partition != now.partition:
                self._examples.setdefault(topic, (key, before, now))
                self._split.setdefault(topic, set()).add(digest)

    def _compare(self, topic: str, client: str, key: bytes, digest: bytes, partition: int) -> None:
        partition_count = self._partition_counts.get(topic, 0)
        if partition_count < 2:
            return
        start = set(PARTITIONERS), set[bytes]()
        agree, keys = self._agreeing.setdefault((topic, client), start)
        if len(keys) < _PARTITIONER_KEYS_MAX and digest not in keys:
            agree &= set(agreeing(key, partition, partition_count))
            keys.add(digest)

    def found(self) -> list[Finding]:
        """Return a finding for each topic that has such keys."""
        return [self._finding(topic) for topic in sorted(self._examples)]

    def _finding(self, topic: str) -> Finding:
        key, first, second = self._examples[topic]
        more = len(self._split[topic]) - 1
        text = (
            f"Key {key_text(key)} was written to {topic}[{first.partition}] by {first.who}"
            f" (#{first.number}) and to {topic}[{second.partition}] by {second.who}"
            f" (#{second.number}): Kafka keeps the order of records only within one partition."
        )
        if more:
            text += f" {count(more, 'more key')} of {topic} {'is' if more == 1 else 'are'} so."
        for client in dict.fromkeys((first.who, second.who)):
            agree, keys = self._agreeing.get((topic, client), (set[str](), set[bytes]()))
            if len(agree) == 1 and len(keys) >= _PARTITIONER_KEYS_MIN:
                (name,) = agree
                text += f" {client} places keys as {name} does, {PARTITIONERS[name][1]}."
        numbers = first.number, second.number
        shown_by = ("why", f"topic:{topic}", f"key:{key_text(key)}")
        return Finding(Harm.DATA, "key on two partitions", text, numbers, shown_by, topic)


@attrs.define(eq=False)
class FencedProducers:
    """Finds producers whose transactional id another one took."""

    _ids: dict[str, TransactionalId] = attrs.field(factory=dict[str, TransactionalId], init=False)

    def add(self, item: Item) -> None:
        """Take the next item."""
        if isinstance(item, Gap):
            for each in self._ids.values():
                each.gap()
        if not isinstance(item, Exchange) or not TransactionalId.wants(item):
            return
        for name in item.transactional_ids:
            if name in self._ids or len(self._ids) < _IDS_MAX:
                self._ids.setdefault(name, TransactionalId(name)).add(item)

    def found(self) -> list[Finding]:
        """Return a finding for each transactional id."""
        return [
            Finding(
                Harm.DATA, "fenced producer",
                f"Transactional id {name}: {each.fenced}."
                + (f" {count(each.fenced_count - 1, 'more request')} of it was refused so."
                   if each.fenced_count > 1 else ""),
                (each.fenced_number,), ("why", f"transactional_id:{name}"),
            )
            for name, each in sorted(self._ids.items()) if each.fenced
        ]  # fmt: skip
