"""Counts of `kproxy stats` that come from bodies: what errors amount to, records, their producers.

BodyFacts ─▶ failure_of, count_records      records are counted from the heads of their batches
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence

from kproxy.exchange import topic_records
from kproxy.exchange.body_facts import Records
from kproxy.exchange.entities import TopicPartition
from kproxy.exchange.meanings import ERROR, RECORDS, THROTTLE, TOPIC

COUNTED = frozenset({ERROR, TOPIC, THROTTLE, RECORDS})
"""The kinds of fields to look for in bodies."""

ProducerSequence = tuple[int, TopicPartition, int]
"""A batch of an idempotent producer: producer id and epoch, partition, base sequence."""
RecordsByTopic = dict[str, list[int]]
"""Topic → number of records, bytes of their batches."""


class Failure(enum.Enum):
    """What the errors of an exchange amount to."""

    __hash__ = object.__hash__  # an enum's own is slow, and this is looked up for every exchange

    NONE = enum.auto()
    ROUTINE = enum.auto()
    """They are all routine of the protocol."""
    ERROR = enum.auto()


def failure_of(errors: Sequence[str], routine: bool) -> Failure:
    """Return what the errors of an exchange amount to, which are all routine or not."""
    if not errors:
        return Failure.NONE
    return Failure.ROUTINE if routine else Failure.ERROR


def count_records(
    found: Iterable[Records], by_topic: RecordsByTopic, sequences: list[ProducerSequence]
) -> None:
    """Count the records in the bodies of an exchange; add the batches of idempotent producers, to
    find retries."""
    for each in found:
        count, sent = topic_records.batch_heads(each)
        counted = by_topic.get(each.topic)
        if counted is None:
            counted = by_topic[each.topic] = [0, 0]
        counted[0] += count or 0
        counted[1] += each.stop - each.start
        for producer_id, producer_epoch, sequence in sent:
            producer = producer_id << 16 | producer_epoch & 0xFFFF
            sequences.append((producer, each.where, sequence))
