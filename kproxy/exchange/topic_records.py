"""The records of an exchange: read out of its batches, each with where it stands.

    Produce request ─┐
    its response ────┼─▶ read ─▶ TopicRecord …      offsets of what was produced: the response's
    Fetch response ──┘

A record comes as it travelled: a Fetch also holds records before the offset that was asked for, if
their batch does, and those of aborted transactions. Control batches hold no records. Batches that
cannot be read are left out.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import attrs

from kproxy.exchange import entities
from kproxy.exchange.entities import TopicNames, TopicPartition
from kproxy.protocol import ProtocolError, records
from kproxy.protocol import schema as kafka
from kproxy.protocol.compression import DECOMPRESSED_BYTES_MAX, RECORDS_MAX, Allowance
from kproxy.protocol.record_batch import Batch, Record, read_records
from kproxy.protocol.schema import Field
from kproxy.protocol.select import Found, select, select_of

_RATIO = 64
"""What a whole exchange may decompress to is so many times its size, if that is more."""


@attrs.frozen
class TopicRecord:
    """A record that was produced or fetched."""

    topic: str
    """Its name; its id as Kafka prints it, if nothing told the name."""
    partition: int
    offset: int | None
    """None of a produced record whose response is missing, an error, or does not say."""
    timestamp: int
    """Milliseconds since 1970; −1 where there is none (the oldest format)."""
    key: bytes | None
    value: bytes | None
    """None is a tombstone."""
    headers: tuple[tuple[str, bytes | None], ...]
    produced: bool
    """Whether a client sent it; else a broker did, to be consumed."""
    aborted: bool = False
    """Whether it is known that its transaction was aborted: consumers that read what is committed
    (for others brokers do not say) drop it."""


def is_records(field: Field, beside: tuple[Field, ...]) -> bool:
    """Whether a field holds record batches."""
    return field.type == "records"


def is_base_offset(field: Field, beside: tuple[Field, ...]) -> bool:
    """Whether a field has the offset that produced records got."""
    return field.name == "base_offset"


@functools.cache
def apis(*directions: str) -> frozenset[int]:
    """Return the APIs that have records in their requests, or in their responses."""
    return frozenset(
        key
        for key in kafka.api_names()
        for direction in directions
        if (message := kafka.message(key, direction)) is not None
        if select(message, is_records).places
    )


class Carried(NamedTuple):
    """The batches of one partition that an exchange carries, unread."""

    where: TopicPartition
    data: bytes
    produced: bool
    base_offset: int | None
    """What the response says that produced batches got; None where it does not, and of others."""
    aborted: Sequence[Any]
    """The aborted_transactions of a Fetch response's partition."""


def read(request: Any, response: Any, names: TopicNames) -> list[TopicRecord]:
    """The records in the bodies of a request and a response; either may be None."""
    found = carried(request, response, names)
    allowance = allowance_of(found)
    return [record for each in found for record in read_carried(each, allowance)]


def carried(request: Any, response: Any, names: TopicNames) -> list[Carried]:
    """Find the batches in the bodies of a request and a response; either may be None."""
    found: list[Carried] = []
    sent = _fields(request)
    offsets = base_offsets(response, names) if sent else {}
    for each in sent:
        where = _where(each, names)
        found.append(Carried(where, each.value, True, offsets.get(where), ()))
    for each in _fields(response):
        ended = getattr(each.within[-1], "aborted_transactions", None) or ()
        found.append(Carried(_where(each, names), each.value, False, None, ended))
    return found


def allowance_of(found: Iterable[Carried]) -> Allowance:
    """What all that one exchange carries may be decompressed to."""
    size = sum([len(each.data) for each in found])
    return Allowance(max(DECOMPRESSED_BYTES_MAX, _RATIO * size), max(RECORDS_MAX, size // 4))


def read_carried(found: Carried, allowance: Allowance) -> Iterator[TopicRecord]:
    """Read the records of one partition."""
    if found.produced:
        return _produced(found.data, found.where, found.base_offset, allowance)
    return _fetched(found.data, found.where, found.aborted, allowance)


@attrs.frozen
class TopicRecords:
    """What the heads of the batches tell of the records of one partition."""

    where: TopicPartition
    count: int | None
    """Records; None where old formats keep their count inside of what is compressed."""
    bytes: int
    """Of the batches, as they travelled."""
    data: bytes = attrs.field(repr=False)


def heads(request: Any, response: Any, names: TopicNames) -> Iterator[TopicRecords]:
    """Yield what the bodies of a request and a response carry, without decompressing any of it."""
    for body in (request, response):
        for each in _fields(body):
            count = records.summary(each.value).records
            yield TopicRecords(_where(each, names), count, len(each.value), each.value)


def _fields(body: Any) -> list[Found]:
    if body is None:
        return []
    found = select_of(type(body), is_records).found(body)
    return [each for each in found if each.value]


def _where(found: Found, names: TopicNames) -> TopicPartition:
    partition = entities.partition_of(found.within[-1])
    return TopicPartition(entities.topic_of(found.within, names), partition)


def base_offsets(response: Any, names: TopicNames) -> dict[TopicPartition, int]:
    """The offsets that a Produce response says its batches got."""
    if response is None:
        return {}
    found = select_of(type(response), is_base_offset).found(response)
    return {_where(each, names): each.value for each in found if each.value >= 0}


def _produced(
    data: bytes, where: TopicPartition, base_offset: int | None, allowance: Allowance
) -> Iterator[TopicRecord]:
    count = 0
    for batch, records_in in _read(data, allowance):
        if batch.control:
            continue
        for record in records_in:
            # Producers count offsets from 0; message sets of old clients need not count at all.
            offset = None if base_offset is None else base_offset + count
            count += 1
            yield _topic_record(record, where, offset, produced=True)


def _fetched(
    data: bytes, where: TopicPartition, aborted: Iterable[Any], allowance: Allowance
) -> Iterator[TopicRecord]:
    transactions = AbortedTransactions(aborted)
    for batch, records_in in _read(data, allowance):
        gone = transactions.dropped(batch)
        if batch.control:
            continue
        for record in records_in:
            yield _topic_record(record, where, record.offset, produced=False, aborted=gone)


_MARKER_BYTES_MAX = 1024
"""A real marker is tiny; what is made to look like one is not worth decompressing."""


class AbortedTransactions:
    """Which batches of one partition consumers drop: a producer's, from the first offset of an
    aborted transaction up to its marker. It is asked for each batch in turn."""

    def __init__(self, aborted: Iterable[Any]) -> None:
        """`aborted` are the aborted_transactions of a Fetch response's partition."""
        self._waiting = sorted(aborted, key=lambda each: each.first_offset, reverse=True)
        self._aborting: set[int] = set()

    def dropped(self, batch: Batch) -> bool:
        """Whether the records of the next batch are of an aborted transaction."""
        while self._waiting and self._waiting[-1].first_offset <= batch.last_offset:
            self._aborting.add(self._waiting.pop().producer_id)
        if batch.control:
            if batch.producer_id in self._aborting and is_abort(batch):
                self._aborting.discard(batch.producer_id)
            return False
        return batch.transactional and batch.producer_id in self._aborting


def is_abort(batch: Batch) -> bool:
    """Whether a control batch is the marker of an aborted transaction."""
    if len(batch.raw) > _MARKER_BYTES_MAX or batch.compression != "none":
        return False
    try:
        return any(record.control_type == "ABORT" for record in batch.records)
    except ProtocolError:
        return False


def _read(data: bytes, allowance: Allowance) -> Iterator[tuple[Batch, list[Record]]]:
    """The batches that can be read."""
    try:
        batches = records.batches(data)
    except ProtocolError:
        return
    for batch in batches:
        try:
            yield batch, read_records(batch, allowance)
        except ProtocolError:
            continue


def _topic_record(
    record: Record,
    where: TopicPartition,
    offset: int | None,
    *,
    produced: bool,
    aborted: bool = False,
) -> TopicRecord:
    return TopicRecord(
        *where,
        offset,
        record.timestamp,
        record.key,
        record.value,
        record.headers,
        produced,
        aborted,
    )
