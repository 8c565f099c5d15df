"""Findings about what producers wrote: a hot partition or key, a key on two partitions.

Invariants: a write counts if the broker took it, or if none was to answer (acks=0). Of keys, at
most `KEYS_MAX` are remembered, as digests; what comes after them is compared with these only.
"""

from __future__ import annotations

import hashlib
import itertools
import operator
from collections.abc import Iterator
from typing import NamedTuple

import attrs

from kproxy.exchange.entities import TopicPartition
from kproxy.exchange.exchange import Exchange
from kproxy.exchange.partitioners import PARTITIONERS, agreeing
from kproxy.exchange.words.wording import count
from kproxy.history.history import ExchangeRows, History
from kproxy.history.items import Gap, Item
from kproxy.history.rows import TRIED, Appended
from kproxy.look.why.finding import Finding, Harm, Subject
from kproxy.look.why.key import key_text
from kproxy.look.why.sentences import who
from kproxy.units import format_bytes

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

_where = operator.attrgetter("topic", "partition")


def hot_partitions(history: History) -> Iterator[Finding]:
    """Yield the partitions that get many more records, or bytes, than the others of their topic."""
    for _, topic in sorted(history.logs.topics.items()):
        written = topic.written()
        records = {partition: each.records for partition, each in written.items()}
        sizes = {partition: each.size_bytes for partition, each in written.items()}
        partition_count = max(topic.counted, len(written))
        writes = sum(each.requests for each in written.values())
        if partition_count < _HOT_PARTITIONS_MIN or writes < _HOT_WRITES_MIN:
            continue
        if sum(records.values()) < _HOT_RECORDS_MIN:
            continue
        among = f"{partition_count} partitions{'' if topic.counted else ' that were written to'}"
        for counts, show in ((records, _records), (sizes, format_bytes)):
            hot = max(counts, key=lambda each: counts[each])
            most, total, latest = counts[hot], sum(counts.values()), written[hot].latest
            if latest is None or not _is_hot(most, total, partition_count):
                continue
            got = f"{most if counts is records else show(most)} of {show(total)}"
            share = f"{100 * most / total:.0f} %"
            yield Finding(
                Harm.LATENCY,
                "hot partition",
                f"{topic.name}[{hot}] got {got} written to {topic.name} ({share}), one of {among}"
                f" (last #{latest.number}).",
                (latest.number,),
                Subject("topic", topic.name),
            )
            break


def _records(number: int) -> str:
    return count(number, "record")


def _is_hot(most: int, total: int, partition_count: int) -> bool:
    return most > _HOT_FACTOR * (total - most) / (partition_count - 1)


class _KeyWrite(NamedTuple):
    partition: int
    who: str
    number: int


@attrs.define(eq=False)
class _WrittenKey:
    """A key that was written."""

    first: _KeyWrite
    records: int = 0


@attrs.define(eq=False)
class _TopicKeys:
    """The keys of a topic, while its partitions stay the same."""

    deletions: int
    partitions: int
    """0 if it is not known."""
    keys: dict[bytes, _WrittenKey] = attrs.Factory(dict)
    """By the digest of a key."""
    records: int = 0
    """The records that were read, also those without a key."""
    hottest: tuple[_WrittenKey, bytes, _KeyWrite] | None = None
    """What is known of the key with the most records, the key, and its latest write."""
    agreeing: dict[str, tuple[list[str], set[bytes]]] = attrs.Factory(dict)
    """Client → partitioners that agree with all of its keys, and the keys."""

    def compare(self, client: str, key: bytes, digest: bytes, partition: int) -> None:
        """Leave the partitioners that put a key of a client elsewhere."""
        if self.partitions < 2:
            return
        found = self.agreeing.get(client)
        if found is None:
            found = self.agreeing[client] = [*PARTITIONERS], set()
        agree, keys = found
        if len(keys) < _PARTITIONER_KEYS_MAX and digest not in keys:
            agree[:] = agreeing(key, partition, self.partitions, agree)
            keys.add(digest)

    def count(self, key: bytes, known: _WrittenKey, now: _KeyWrite) -> None:
        """Count a record of a key."""
        known.records += 1
        if self.hottest is None or known.records >= self.hottest[0].records:
            self.hottest = known, key, now


@attrs.define(eq=False)
class KeysOnPartitions:
    """Finds keys that were written to several partitions while their number stayed the same, and
    keys that have so many records that more partitions do not spread them."""

    _history: History
    """It has the exchange that is added already."""
    _topics: dict[str, _TopicKeys] = attrs.field(factory=dict, init=False)
    _kept: int = attrs.field(default=0, init=False)
    _read: int = attrs.field(default=0, init=False)
    """The number of records that were read."""
    _examples: dict[str, tuple[bytes, _KeyWrite, _KeyWrite]] = attrs.field(factory=dict, init=False)
    _split: dict[str, set[bytes]] = attrs.field(factory=dict, init=False)

    def add(self, item: Item, taken: ExchangeRows | None) -> None:
        """Take the next item, and what the history has taken of it."""
        if isinstance(item, Gap):  # there may be more partitions behind it
            self._topics.clear()
            self._kept = 0
        if isinstance(item, Exchange) and taken is not None and self._read < RECORDS_MAX:
            rows = (each for each in taken.rows if isinstance(each, Appended))
            wrote = {each.where for each in rows if each.outcome != TRIED}
            if wrote and not item.injected:
                self._written(item, wrote)

    def _keys(self, name: str) -> _TopicKeys:
        """Return the keys of a topic, none of before it was deleted or got more partitions."""
        topic = self._history.logs.topics.get(name)
        deletions, partitions = (topic.deletions, topic.partitions) if topic else (0, 0)
        found = self._topics.get(name)
        if found is not None and (
            found.deletions != deletions
            or (found.partitions and partitions and found.partitions != partitions)
        ):
            self._kept -= len(found.keys)
            found = None
        if found is None:
            found = self._topics[name] = _TopicKeys(deletions, partitions)
        found.partitions = partitions
        return found

    def _written(self, exchange: Exchange, wrote: set[TopicPartition]) -> None:
        client = who(exchange)
        self._read += len(exchange.records)
        produced = (each for each in exchange.records if each.produced)
        for where, records in itertools.groupby(produced, key=_where):
            if where not in wrote:
                continue
            topic, partition = where
            keys, now = self._keys(topic), _KeyWrite(partition, client, exchange.number)
            for record in records:
                keys.records += 1
                if record.key:
                    self._key_written(topic, keys, record.key, now)

    def _key_written(self, topic: str, keys: _TopicKeys, key: bytes, now: _KeyWrite) -> None:
        digest = hashlib.blake2b(key, digest_size=12).digest()
        keys.compare(now.who, key, digest, now.partition)
        known = keys.keys.get(digest)
        if known is None:
            if self._kept >= KEYS_MAX:
                return
            known = keys.keys[digest] = _WrittenKey(now)
            self._kept += 1
        keys.count(key, known, now)
        if known.first.partition != now.partition:
            self._examples.setdefault(topic, (key, known.first, now))
            self._split.setdefault(topic, set()).add(digest)

    def found(self) -> list[Finding]:
        """Return a finding for each topic that has such keys."""
        return [
            *(self._finding(topic) for topic in sorted(self._examples)),
            *(each for topic in sorted(self._topics) for each in self._hot(topic)),
        ]

    def _hot(self, topic: str) -> Iterator[Finding]:
        keys = self._topics[topic]
        if keys.hottest is None or keys.partitions < _HOT_PARTITIONS_MIN:
            return
        hottest, key, latest = keys.hottest
        most, total = hottest.records, keys.records
        if total < _HOT_RECORDS_MIN or not _is_hot(most, total, keys.partitions):
            return
        yield Finding(
            Harm.LATENCY,
            "hot key",
            f"Key {key_text(key)} has {most} of {_records(total)} written to {topic}"
            f" ({100 * most / total:.0f} %): they all go to {topic}[{latest.partition}].",
            (latest.number,),
            Subject("key", key_text(key), topic),
            topic,
            evidence=("More partitions do not spread the records of one key.",),
        )

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
        agreeing_of = self._topics[topic].agreeing if topic in self._topics else {}
        for client in dict.fromkeys((first.who, second.who)):
            agree, keys = agreeing_of.get(client, ([], set[bytes]()))
            if len(agree) == 1 and len(keys) >= _PARTITIONER_KEYS_MIN:
                (name,) = agree
                text += f" {client} places keys as {name} does, {PARTITIONERS[name][1]}."
        numbers = first.number, second.number
        about = Subject("key", key_text(key), topic)
        return Finding(Harm.DATA, "key on two partitions", text, numbers, about, topic)
