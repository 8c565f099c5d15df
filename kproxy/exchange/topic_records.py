"""The records of an exchange: read out of its batches, each with where it stands.

    Produce request ─┐
    its response ────┼─▶ read ─▶ TopicRecord …      offsets of what was produced: the response's
    Fetch response ──┘

A record comes as it travelled: a Fetch also holds records before the offset that was asked for, if
their batch does, and those of aborted transactions. Control batches hold no records. What cannot be
read hides no records before it or after it: it comes beside them, with the reason (`Unreadable`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import attrs

from kproxy.exchange.body_facts import BodyFacts, Records
from kproxy.exchange.entities import TopicPartition
from kproxy.units import format_bytes
from kproxy.wire.payloads.decoding import decode
from kproxy.wire.payloads.json_paths import objects_of
from kproxy.wire.payloads.meaning import DATA_BYTES_MAX, Decoded, Undecoded
from kproxy.wire.payloads.plain import own_text
from kproxy.wire.payloads.schemas import Schemas
from kproxy.wire.protocol import records
from kproxy.wire.protocol.compression import DECOMPRESSED_BYTES_MAX, RECORDS_MAX, Allowance
from kproxy.wire.protocol.record_batch import Batch, read_header, read_heads, rows_at

_RATIO = 64
"""A whole exchange may decompress to this many times its size, if that is more than the minimum."""


@attrs.define  # frozen, it would be made in four times the time
class TopicRecord:
    """A record that was produced or fetched."""

    topic: str
    """The topic's name; its id as Kafka prints it, if the name is not known."""
    partition: int
    offset: int | None
    """None for a produced record whose response is missing, is an error, or does not say."""
    timestamp: int
    """Milliseconds since 1970; −1 where there is none (the oldest format)."""
    key: bytes | None
    value: bytes | None
    """None for a tombstone."""
    headers: tuple[tuple[str, bytes | None], ...]
    produced: bool
    """True if a client sent it; False if a broker sent it to a consumer."""
    aborted: bool = False
    """True if its transaction is known to be aborted: consumers with isolation.level=read_committed
    drop it (brokers do not say for others)."""
    schemas: Schemas | None = attrs.field(default=None, eq=False, repr=False)
    """The schemas that its recording tells; None where nobody asks what records mean."""

    @property
    def decoded(self) -> Any:
        """What the value means: by its schema or a decoder; else JSON, if it is an object or an
        array; else a text, if it is UTF-8; else the bytes. None for a tombstone."""
        return self._plain("value", self.value)

    @property
    def decoded_key(self) -> Any:
        """What the key means, as `decoded` has it."""
        return self._plain("key", self.key)

    def _plain(self, part: str, data: bytes | None) -> Any:
        found = self.meaning(part)
        return found.value if isinstance(found, Decoded) else own_text(data)

    def meaning(self, part: str) -> Decoded | Undecoded | None:
        """Return what the `key` or the `value` means by its schema; None if it names none."""
        schemas = Schemas() if self.schemas is None else self.schemas
        return decode(part, self.topic, self.key, self.value, self.headers, schemas)

    def plain(self, part: str) -> Any:
        """Return the `key` or the `value` as plain values of JSON: decoded, or the object or array
        that it is by itself; None if it is neither."""
        match self.meaning(part):
            case Decoded(value, _):
                return value
            case Undecoded():
                return None
            case None:
                data = self.key if part == "key" else self.value
                small = data is not None and len(data) <= DATA_BYTES_MAX
                return objects_of(data) if small else None


@attrs.frozen
class Unreadable:
    """Bytes that were produced or fetched, and cannot be read as records."""

    topic: str
    partition: int
    offset: int | None
    """The offset of the first record that cannot be read, as far as it is known."""
    produced: bool
    reason: str
    data: bytes = attrs.field(repr=False)
    """The batch, header included; or all that is left, from the first byte on that is no batch."""

    @property
    def damage(self) -> str:
        """The size and the reason: `61 B that cannot be read (batch length 0)`."""
        return f"{format_bytes(len(self.data))} that cannot be read ({self.reason})"

    @property
    def text(self) -> str:
        """The place, the size and the reason: `orders[0]@3: 61 B that cannot be read (…)`."""
        at = "" if self.offset is None else f"@{self.offset}"
        return f"{self.topic}[{self.partition}]{at}: {self.damage}"


class TopicRecords(list[TopicRecord]):
    """The records of an exchange that can be read."""

    unreadable: Sequence[Unreadable] = ()
    """What cannot be read of the batches, in order."""


class CarriedBatches(NamedTuple):
    """The batches of one partition that an exchange carries, unread."""

    where: TopicPartition
    data: bytes
    produced: bool
    base_offset: int | None
    """The offset that the response gives to produced batches; None if it gives none, and for
    fetched batches."""
    aborted: Sequence[Any]
    """The aborted_transactions of a Fetch response's partition."""


def read(facts: BodyFacts, schemas: Schemas, allowance: Allowance | None = None) -> TopicRecords:
    """Return the records in the bodies of an exchange; `schemas` are those of its recording."""
    found = carried_batches(facts)
    allowance = allowance or allowance_of(found)
    read = TopicRecords()
    unreadable: list[Unreadable] = []
    for each in found:
        read.extend(read_batches(each, allowance, schemas, unreadable.append))
    read.unreadable = unreadable
    return read


def carried_batches(facts: BodyFacts) -> list[CarriedBatches]:
    """Return the batches in the bodies of an exchange, each with the offset that it got."""
    if not facts.records:
        return []
    offsets = base_offsets(facts)
    return [
        CarriedBatches(
            each.where,
            each.data,
            each.produced,
            offsets.get(each.where) if each.produced else None,
            each.aborted,
        )
        for each in facts.records
    ]


def base_offsets(facts: BodyFacts) -> dict[TopicPartition, int]:
    """Return the offsets that the response to a Produce gives to its batches."""
    return {each.where: each.offset for each in facts.results if each.offset >= 0}


def allowance_of(found: Iterable[CarriedBatches]) -> Allowance:
    """Return the limit for decompressing all batches of one exchange."""
    size = sum([len(each.data) for each in found])
    return Allowance(max(DECOMPRESSED_BYTES_MAX, _RATIO * size), max(RECORDS_MAX, size // 4))


def read_batches(
    found: CarriedBatches,
    allowance: Allowance,
    schemas: Schemas | None = None,
    on_unreadable: Callable[[Unreadable], None] = lambda _: None,
) -> Iterator[TopicRecord]:
    """Yield the records of one partition, and report what cannot be read."""
    (topic, partition), data, produced, base, aborted = found
    heads = read_heads(data)
    transactions = AbortedTransactions(aborted) if aborted and not produced else None
    for head in heads:
        start, end, magic, *_ = head
        is_aborted = transactions is not None and transactions.is_dropped(
            read_header(data, start, end, magic)
        )
        read, damage = rows_at(data, start, end, magic, start, allowance)
        if not head.control:
            for nth, (offset, timestamp, key, value, headers, *_) in enumerate(read):
                if produced:  # producers count from 0; message sets of old clients need not count
                    offset = None if base is None else base + nth
                yield TopicRecord(
                    topic, partition, offset, timestamp, key, value, headers, produced, is_aborted,
                    schemas,
                )  # fmt: skip
        if damage is not None:
            first = base if produced else head.offset
            at = None if first is None or magic < 2 else first + len(read)
            unread = data[start:end]
            on_unreadable(Unreadable(topic, partition, at, produced, damage.what, unread))
            whole = head.last_offset - head.offset + 1
            base = None if base is None or magic < 2 else base + max(whole, len(read))
        elif base is not None and not head.control:
            base += len(read)
    # Brokers cut the last batch of a Fetch off; a client does not.
    rest = heads[-1].end if heads else 0
    what = None if heads.damage is None else heads.damage.what
    if produced and rest < len(data):
        what = what or "the batch is cut off"
    if what is not None:
        at = base if produced else (heads[-1].last_offset + 1 if heads else None)
        on_unreadable(Unreadable(topic, partition, at, produced, what, data[rest:]))


class BatchHeads(NamedTuple):
    """The facts in the heads of batches, without decompressing any."""

    records: int | None
    """The number of records; None where old formats compress the count as well."""
    sequences: Sequence[tuple[int, int, int, int]]
    """Producer id, producer epoch, base sequence and number of records of each produced batch of an
    idempotent producer."""


def batch_heads(found: Records) -> BatchHeads:
    """Read the heads of the batches of one partition."""
    count: int | None = 0
    sequences: list[tuple[int, int, int, int]] = []
    for head in read_heads(found.data):
        if head.record_count is None:
            count = None
        elif count is not None and not head.control:
            count += max(0, head.record_count)
        producer_id, _, sequence = head.producer
        if found.produced and producer_id >= 0 and sequence >= 0:
            sequences.append((*head.producer, head.record_count or 0))
    return BatchHeads(count, sequences)


def hashed_batches(found: Records) -> Iterator[tuple[int, int] | None]:
    """Yield for each batch of one partition a hash of it, without what a broker changes, and its
    number of records; None for old formats, and for what is no whole batch."""
    data, heads = found.data, read_heads(found.data)
    for head in heads:
        if head.magic < 2:
            yield None
        else:
            count = 0 if head.control else head.record_count or 0
            yield hash(data[head.start + 16 : head.end]), count
    if heads.damage is not None or (found.produced and (heads[-1].end if heads else 0) < len(data)):
        yield None


def aborted_count(found: Records) -> int:
    """Return how many records of a Fetch are known to be of aborted transactions, by the heads of
    their batches."""
    if not found.aborted:
        return 0
    transactions = AbortedTransactions(found.aborted)
    batches = records.batches(found.data)
    return sum(each.record_count or 0 for each in batches if transactions.is_dropped(each))


_MARKER_BYTES_MAX = 1024
"""Real markers are tiny; larger batches that look like one are not decompressed."""


class AbortedTransactions:
    """The batches of one partition that consumers drop: a producer's, from the first offset of an
    aborted transaction up to its marker. `is_dropped` must be asked for each batch in turn."""

    def __init__(self, aborted: Iterable[Any]) -> None:
        """Take the aborted_transactions of a Fetch response's partition."""
        self._upcoming = sorted(aborted, key=lambda each: each.first_offset, reverse=True)
        self._aborting: set[int] = set()

    def is_dropped(self, batch: Batch) -> bool:
        """Return whether the next batch belongs to an aborted transaction."""
        while self._upcoming and self._upcoming[-1].first_offset <= batch.last_offset:
            self._aborting.add(self._upcoming.pop().producer_id)
        if batch.control:
            if batch.producer_id in self._aborting and is_abort(batch):
                self._aborting.discard(batch.producer_id)
            return False
        return batch.transactional and batch.producer_id in self._aborting


def is_abort(batch: Batch) -> bool:
    """Return whether a control batch is the marker of an aborted transaction."""
    if len(batch.raw) > _MARKER_BYTES_MAX or batch.compression != "none":
        return False
    return any(record.control_type == "ABORT" for record in batch.records)
