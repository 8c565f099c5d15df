"""Produced bytes that kproxy cannot read as records: compared, demanded and served as they are.

::

    a `records` field ──pieces──▶ Batch … ──contents──▶ Record …, or one Unread

A batch is unread if its format is unknown, if its checksum is wrong, if one of its records cannot
be read, or if it unpacks to more than its recording may (`batch_reader`). A broker took it as a
whole, so it is one thing, at its first offset. Two are equal if their bytes are, without what is
volatile in a header: offset, length, leader epoch, checksum, timestamps, the producer's id, epoch
and sequence, and the flags for the broker's time and for a transaction.

Bytes at the end of a field that are no whole batch are a piece, too. Brokers store none of them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

import attrs

from kproxy.exchange.words.wording import count
from kproxy.protocol import ProtocolError, records
from kproxy.protocol.compression import RECORDS_MAX
from kproxy.protocol.record_batch import (
    BATCH_HEADER,
    ENTRY_OVERHEAD,
    LOG_APPEND_TIME,
    MESSAGE_HEADERS,
    TRANSACTIONAL,
    Batch,
    Record,
    RecordReader,
    entries,
    read_alone,
    read_header,
)

NO_BATCH = -1
"""The magic of a piece that is no batch."""
_MAGIC_AT, _MAGIC_MAX = 16, 2
_ATTRIBUTES_AT, _MAX_TIMESTAMP_AT = 21, 35
_DELETE_HORIZON = 0x40
_VOLATILE = LOG_APPEND_TIME | TRANSACTIONAL | _DELETE_HORIZON
_COMPARED = struct.Struct(">bhii")
"""Magic, attributes, last offset delta and record count."""


@attrs.frozen
class Unread(Record):
    """A batch that cannot be read, in the place of its records; `value` is what is compared."""

    last_offset: int = -1
    size_bytes: int = 0
    damage: str = ""
    """The reason why it cannot be read."""

    @property
    def text(self) -> str:
        """Its size, and why it cannot be read."""
        return f"{count(self.size_bytes, 'byte')} that cannot be read ({self.damage})"


def spans(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield start, end and magic of each batch of a `records` field; of what comes after them, from
    a magic that kproxy does not know on, or NO_BATCH."""
    position = 0
    try:
        for start, end, magic in entries(data):
            yield start, end, magic
            position = end
    except ProtocolError:
        pass
    if position < len(data):
        head = data[position : position + _MAGIC_AT + 1]
        size = ENTRY_OVERHEAD + int.from_bytes(head[8:12], "big", signed=True)
        is_whole = _MAGIC_AT < size <= len(data) - position
        is_unknown = is_whole and head[_MAGIC_AT] > _MAGIC_MAX
        yield position, len(data), head[_MAGIC_AT] if is_unknown else NO_BATCH


def pieces(data: bytes, reader: RecordReader = read_alone) -> Iterator[Batch]:
    """Yield what `spans` finds."""
    for start, end, magic in spans(data):
        yield head(data, start, end, magic, reader)


def head(data: bytes, start: int, end: int, magic: int, reader: RecordReader = read_alone) -> Batch:
    """Read the head of a piece; of one that is no batch of a known magic, its offset at most."""
    if 0 <= magic <= _MAGIC_MAX:
        return read_header(data, start, end, magic, reader)
    offset = -1 if magic == NO_BATCH else int.from_bytes(data[start : start + 8], "big")
    return Batch(data[start:end], start, offset, magic, 0, 0, record_count=None)


def damage_of(batch: Batch) -> str:
    """Return why a piece cannot be read as records; "" if it can."""
    if batch.magic == NO_BATCH:
        try:
            list(entries(batch.raw))
        except ProtocolError as error:
            return error.what
        return "they are no whole batch"
    if batch.magic > _MAGIC_MAX:
        return f"unknown magic {batch.magic}"
    if not batch.crc_ok:
        return "the checksum is wrong"
    return "" if batch.damage is None else batch.damage.what


def is_refused(batch: Batch) -> bool:
    """Return whether a broker refuses a piece, as far as its head tells."""
    known = 0 <= batch.magic <= _MAGIC_MAX and not batch.compression.startswith("unknown")
    return not (known and batch.crc_ok)


def contents(batch: Batch) -> Sequence[Record]:
    """Return the records of a piece; one Unread if it cannot be read."""
    damage = damage_of(batch)
    if not damage:
        return batch.records
    unread = Unread(
        batch.offset,
        batch.max_timestamp,
        value=compared(batch),
        last_offset=batch.offset + min(max(0, batch.last_offset_delta), RECORDS_MAX),
        size_bytes=len(batch.raw),
        damage=damage,
    )
    return [unread]


def compared(batch: Batch) -> bytes:
    """Return the bytes of a piece without what is volatile in its header."""
    raw, magic = batch.raw, batch.magic
    if not 0 <= magic <= _MAGIC_MAX:
        return raw[_MAGIC_AT:] if magic > _MAGIC_MAX else raw
    header = BATCH_HEADER if magic == _MAGIC_MAX else MESSAGE_HEADERS[magic]
    counts = batch.last_offset_delta, batch.record_count or 0
    return _COMPARED.pack(magic, batch.attributes & ~_VOLATILE, *counts) + raw[header.size :]


def first_offset(batch: Batch) -> int:
    """Return the first offset of a batch; of a wrapper message that cannot be read, its own."""
    try:
        return batch.base_offset
    except ProtocolError:
        return batch.offset


def placed(batch: Batch, offset: int, leader_epoch: int) -> bytes:
    """Return a batch at an offset, as a broker stores it."""
    if batch.magic == _MAGIC_MAX and batch.last_offset_delta >= 0:
        return records.rebase(batch.raw, offset, partition_leader_epoch=leader_epoch)
    return offset.to_bytes(8, "big", signed=True) + batch.raw[8:]


def stamp(batch: bytearray, timestamp: int) -> None:
    """Set the broker's timestamp in a batch, and its checksum, as brokers do."""
    from crc32c import crc32c

    batch[_ATTRIBUTES_AT + 1] |= LOG_APPEND_TIME
    struct.pack_into(">q", batch, _MAX_TIMESTAMP_AT, timestamp)
    crc = crc32c(memoryview(batch)[_ATTRIBUTES_AT:])
    batch[_ATTRIBUTES_AT - 4 : _ATTRIBUTES_AT] = crc.to_bytes(4, "big")
