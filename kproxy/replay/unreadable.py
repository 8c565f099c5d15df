"""Produced bytes that kproxy cannot read as records: compared, demanded and served as they are.

::

    Batch ──contents──▶ Record …, or one UnreadableBatch

A batch is unreadable if its format is unknown, if its checksum is wrong, if one of its records
cannot be read, or if it unpacks to more than its recording may (`store`). A broker took it
as a whole, so it is one thing, at its first offset. Two are equal if their bytes are, without what
is volatile in a header: offset, length, leader epoch, checksum, timestamps, the producer's id,
epoch and sequence, and the flags for the broker's time and for a transaction.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import attrs

from kproxy.exchange.words.wording import count
from kproxy.replay.stored_batch import MAGIC_AT, MAGIC_MAX, NO_BATCH, pieces
from kproxy.wire.protocol import ProtocolError
from kproxy.wire.protocol.compression import RECORDS_MAX
from kproxy.wire.protocol.record_batch import (
    BATCH_HEADER,
    LOG_APPEND_TIME,
    MESSAGE_HEADERS,
    TRANSACTIONAL,
    Batch,
    Record,
    entries,
)

_DELETE_HORIZON = 0x40
_VOLATILE = LOG_APPEND_TIME | TRANSACTIONAL | _DELETE_HORIZON
_COMPARED = struct.Struct(">bhii")
"""Magic, attributes, last offset delta and record count."""


@attrs.frozen
class UnreadableBatch(Record):
    """A batch that cannot be read, in the place of its records; `value` is what is compared."""

    last_offset: int = -1
    size_bytes: int = 0
    damage: str = ""
    """The reason why it cannot be read."""

    @property
    def text(self) -> str:
        """Its size, and why it cannot be read."""
        return f"{count(self.size_bytes, 'byte')} that cannot be read ({self.damage})"


def damage_of(batch: Batch) -> str:
    """Return why a piece cannot be read as records; "" if it can."""
    if batch.magic == NO_BATCH:
        try:
            list(entries(batch.raw))
        except ProtocolError as error:
            return error.what
        return "they are no whole batch"
    if batch.magic > MAGIC_MAX:
        return f"unknown magic {batch.magic}"
    if not batch.crc_ok:
        return "the checksum is wrong"
    return "" if batch.damage is None else batch.damage.what


def is_refused(batch: Batch) -> bool:
    """Return whether a broker refuses a piece, as far as its head tells."""
    known = 0 <= batch.magic <= MAGIC_MAX and not batch.compression.startswith("unknown")
    return not (known and batch.crc_ok)


def contents(batch: Batch) -> Sequence[Record]:
    """Return the records of a piece; one UnreadableBatch if it cannot be read."""
    damage = damage_of(batch)
    if not damage:
        return batch.records
    unreadable = UnreadableBatch(
        batch.offset,
        batch.max_timestamp,
        value=compared(batch),
        last_offset=batch.offset + min(max(0, batch.last_offset_delta), RECORDS_MAX),
        size_bytes=len(batch.raw),
        damage=damage,
    )
    return [unreadable]


def compared(batch: Batch) -> bytes:
    """Return the bytes of a piece without what is volatile in its header."""
    raw, magic = batch.raw, batch.magic
    if not 0 <= magic <= MAGIC_MAX:
        return raw[MAGIC_AT:] if magic > MAGIC_MAX else raw
    header = BATCH_HEADER if magic == MAGIC_MAX else MESSAGE_HEADERS[magic]
    counts = batch.last_offset_delta, batch.record_count or 0
    return _COMPARED.pack(magic, batch.attributes & ~_VOLATILE, *counts) + raw[header.size :]


def comparable(data: bytes) -> bytes:
    """Return the bytes of batches without what is volatile in their headers."""
    return b"".join(map(compared, pieces(data)))
