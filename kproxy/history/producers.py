"""Idempotent producers: the batches that each partition got of them last.

    Appended ─▶ (partition, producer id) ─▶ the last batches it accepted · those it did not

A batch is known by its producer id, epoch and base sequence; brokers know the last five, and write
none of them a second time.

Invariant: memory is bounded by `_PRODUCERS_MAX` partitions of producers; those that were idle for
the longest are dropped.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import attrs

from kproxy.exchange import delivered
from kproxy.exchange.entities import TopicPartition
from kproxy.exchange.exchange import Exchange
from kproxy.exchange.topic_records import TopicRecord
from kproxy.history.log_events import writes
from kproxy.history.ref import Ref
from kproxy.history.rows import TRIED, Appended

_PRODUCERS_MAX = 3000
_ACCEPTED_MAX, _LOST_MAX = 8, 5
_SEQUENCES = 1 << 31
"""Sequence numbers begin at 0 again from here on."""


class SequencedBatch(NamedTuple):
    """A batch of an idempotent producer."""

    epoch: int
    first: int
    """The sequence number of its first record."""
    records: int
    ref: Ref
    error: str
    """Why it was not written; "" if nothing says so."""

    @property
    def last(self) -> int:
        """The sequence number of its last record."""
        return (self.first + max(1, self.records) - 1) % _SEQUENCES

    @property
    def following(self) -> int:
        """The sequence number that is due after it."""
        return (self.first + self.records) % _SEQUENCES


@attrs.define(eq=False)
class ProducerState:
    """The batches of a producer id for a partition."""

    accepted: deque[SequencedBatch] = attrs.Factory(lambda: deque(maxlen=_ACCEPTED_MAX))
    lost: deque[SequencedBatch] = attrs.Factory(lambda: deque(maxlen=_LOST_MAX))
    """Those that were refused, or not answered."""

    @property
    def is_full(self) -> bool:
        """True if earlier accepted batches may have been dropped."""
        return len(self.accepted) == _ACCEPTED_MAX

    @property
    def last(self) -> SequencedBatch | None:
        """The accepted batch with the highest sequence number."""
        return max(self.accepted, key=lambda each: each[:2], default=None)


@attrs.define(eq=False)
class ProducerStates:
    """The latest batches of all idempotent producers, in the order in which brokers took them, of a
    bounded number: those of `ReportPart.numbered` are all, and merge in any order."""

    _of: OrderedDict[tuple[TopicPartition, int], ProducerState] = attrs.field(
        factory=OrderedDict, init=False
    )

    def of(self, where: TopicPartition, producer_id: int) -> ProducerState:
        """Return those of a producer for a partition."""
        return self._of.get((where, producer_id)) or ProducerState()

    def take(self, ref: Ref, row: Appended) -> bool:
        """Take what was written to a partition; return False if the broker has it already."""
        is_new = False
        for producer_id, epoch, first, records in row.sequences:
            key = row.where, producer_id
            found = self._of.get(key)
            if found is None:
                found = self._of[key] = ProducerState()
                if len(self._of) > _PRODUCERS_MAX:
                    self._of.popitem(last=False)
            self._of.move_to_end(key)
            batch = SequencedBatch(epoch, first, records, ref, row.error)
            if row.outcome == TRIED:
                found.lost.append(batch)
            elif all(each[:2] != batch[:2] for each in found.accepted):
                found.accepted.append(batch)
                is_new = True
        return is_new

    def sent_before(self, row: Appended) -> int:
        """Return how many batches of a write were sent before, whatever came of that."""
        known = 0
        for producer_id, epoch, first, *_ in row.sequences:
            batches = self.of(row.where, producer_id)
            sent = (each[:2] for each in (*batches.accepted, *batches.lost))
            known += (epoch, first) in sent
        return known


def produced(exchanges: Iterable[Exchange], topic: str | None = None) -> Iterator[TopicRecord]:
    """Yield the records that were produced, of one topic or of all: a broker took them, or none was
    to answer. What producers sent again, and the broker knew by its numbers, is no more records."""
    batches = ProducerStates()
    for exchange in exchanges:
        ref, taken = Ref.of(exchange), set[TopicPartition]()
        for row in writes(exchange):
            is_new = batches.take(ref, row) or not row.sequences
            if row.outcome != TRIED and is_new and topic in (None, row.where.topic):
                taken.add(row.where)
        yield from delivered.records_in(exchange, taken)
