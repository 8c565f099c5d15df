"""Counts of `kproxy stats` that come from bodies: errors, topics, records, throttling.

BodyFacts ─▶ count_bodies ─▶ BodyCounts      records are counted from the heads of their batches
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from kproxy.exchange import topic_records
from kproxy.exchange.body_facts import BodyFacts, DecodedFacts
from kproxy.exchange.entities import TopicPartition
from kproxy.exchange.meanings import ERROR, RECORDS, THROTTLE, TOPIC

COUNTED = frozenset({ERROR, TOPIC, THROTTLE, RECORDS})
"""The kinds of fields to look for in bodies."""

ProducerSequence = tuple[int, TopicPartition, int]
"""A batch of an idempotent producer: producer id and epoch, partition, base sequence."""


class Failure(enum.Enum):
    """What the errors of an exchange amount to."""

    NONE = enum.auto()
    ROUTINE = enum.auto()
    """They are all routine of the protocol."""
    ERROR = enum.auto()


class BodyCounts(NamedTuple):
    """The counts from the bodies of one exchange."""

    errors: tuple[str, ...] = ()
    routine: bool = False
    """True if it has errors, all of them routine."""
    topics: tuple[str, ...] = ()
    throttled: bool = False
    records: tuple[tuple[str, int, int], ...] = ()
    """Topic, number of records, bytes of their batches."""
    sequences: tuple[ProducerSequence, ...] = ()
    """The batches of idempotent producers, to find retries."""

    @property
    def failure(self) -> Failure:
        """What its errors amount to."""
        if not self.errors:
            return Failure.NONE
        return Failure.ROUTINE if self.routine else Failure.ERROR


NOTHING = BodyCounts()


def count_bodies(facts: BodyFacts | DecodedFacts, routine: bool) -> BodyCounts:
    """Return the counts from the bodies of an exchange, whose errors may all be routine."""
    errors, topics = tuple(facts.errors), tuple(facts.topics)
    if not facts.records:
        return BodyCounts(errors, routine, topics, facts.throttled)
    counted: list[tuple[str, int, int]] = []
    sequences: list[ProducerSequence] = []
    for each in facts.records:
        count, sent = topic_records.batch_heads(each)
        counted.append((each.topic, count or 0, each.stop - each.start))
        for producer_id, producer_epoch, sequence in sent:
            producer = producer_id << 16 | producer_epoch & 0xFFFF
            sequences.append((producer, each.where, sequence))
    return BodyCounts(errors, routine, topics, facts.throttled, tuple(counted), tuple(sequences))
