"""The batches of a `records` field, as a broker stores them: at an offset, with its time, magic 2.

::

    a `records` field ──pieces──▶ Batch … ──placed, stamp, to_magic_2──▶ the bytes of a log

Bytes at the end of a field that are no whole batch are a piece, too. Brokers store none of them. A
batch of a magic that kproxy does not know is one piece with all that follows it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import attrs

from kproxy.wire.protocol import ProtocolError, records
from kproxy.wire.protocol.record_batch import (
    ENTRY_OVERHEAD,
    LOG_APPEND_TIME,
    Batch,
    RecordReader,
    entries,
    read_alone,
    read_header,
)

NO_BATCH = -1
"""The magic of a piece that is no batch."""
MAGIC_AT, MAGIC_MAX = 16, 2
_ATTRIBUTES_AT, _MAX_TIMESTAMP_AT = 21, 35


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
        head = data[position : position + MAGIC_AT + 1]
        size = ENTRY_OVERHEAD + int.from_bytes(head[8:12], "big", signed=True)
        is_whole = MAGIC_AT < size <= len(data) - position
        is_unknown = is_whole and head[MAGIC_AT] > MAGIC_MAX
        yield position, len(data), head[MAGIC_AT] if is_unknown else NO_BATCH


def pieces(data: bytes, reader: RecordReader = read_alone) -> Iterator[Batch]:
    """Yield what `spans` finds."""
    for start, end, magic in spans(data):
        yield head(data, start, end, magic, reader)


def head(data: bytes, start: int, end: int, magic: int, reader: RecordReader = read_alone) -> Batch:
    """Read the head of a piece; of one that is no batch of a known magic, its offset at most."""
    if 0 <= magic <= MAGIC_MAX:
        return read_header(data, start, end, magic, reader)
    offset = -1 if magic == NO_BATCH else int.from_bytes(data[start : start + 8], "big")
    return Batch(data[start:end], start, offset, magic, 0, 0, record_count=None)


def first_offset(batch: Batch) -> int:
    """Return the first offset of a batch; of a wrapper message that cannot be read, its own."""
    try:
        return batch.base_offset
    except ProtocolError:
        return batch.offset


def placed(batch: Batch, offset: int, leader_epoch: int) -> bytes:
    """Return a batch at an offset, as a broker stores it."""
    if batch.magic == MAGIC_MAX and batch.last_offset_delta >= 0:
        return records.rebase(batch.raw, offset, partition_leader_epoch=leader_epoch)
    return offset.to_bytes(8, "big", signed=True) + batch.raw[8:]


def stamp(batch: bytearray, timestamp: int) -> None:
    """Set the broker's timestamp in a batch, and its checksum, as brokers do."""
    from crc32c import crc32c

    batch[_ATTRIBUTES_AT + 1] |= LOG_APPEND_TIME
    struct.pack_into(">q", batch, _MAX_TIMESTAMP_AT, timestamp)
    crc = crc32c(memoryview(batch)[_ATTRIBUTES_AT:])
    batch[_ATTRIBUTES_AT - 4 : _ATTRIBUTES_AT] = crc.to_bytes(4, "big")


def to_magic_2(batch: Batch, base_offset: int) -> bytes:
    """Return a message set of an old format that can be read as the batch that a broker makes of
    it, with the same codec, at another offset."""
    by = base_offset - batch.base_offset
    moved = [attrs.evolve(each, offset=each.offset + by) for each in batch.records]
    return records.encode_batch(moved, base_offset=base_offset, compression=batch.compression)
