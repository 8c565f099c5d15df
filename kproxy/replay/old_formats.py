"""Batches for old readers: Fetch v0 and v1 take message sets of magic 0, v2 and v3 of magic 1.

::

    batches of any magic ─▶ entries of the reader's magic, as many as fit   (Kafka's RecordsUtil)

A batch becomes the messages of its records, or one wrapper message with the same codec. Headers are
lost, and in magic 0 timestamps; markers of transactions are left out. What is old enough already
stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterator

from kproxy.replay.unreadable import damage_of
from kproxy.wire.protocol import ProtocolError
from kproxy.wire.protocol.message_sets import encode_message_set
from kproxy.wire.protocol.record_batch import Batch, RecordReader, entries, read_header

_MAGIC = (0, 0, 1, 1)
"""The newest magic that a version of Fetch takes; later ones take any."""


def magic_of(fetch_version: int) -> int | None:
    """Return the newest magic that the reader of a response takes; None if it takes any."""
    return _MAGIC[fetch_version] if fetch_version < len(_MAGIC) else None


def converted(
    data: bytes, magic: int, first_offset: int, reader: RecordReader
) -> Iterator[tuple[bytes, int]]:
    """Yield each entry of `data` in a format up to `magic`, without records below `first_offset`;
    and the offset behind it.

    Raises:
        ProtocolError: the records of an entry cannot be read.
    """
    for start, end, found in entries(data):
        batch = read_header(data, start, end, found, reader)
        old = batch.raw if found <= magic else _message_set(batch, magic, first_offset)
        yield old, batch.last_offset + 1


def _message_set(batch: Batch, magic: int, first_offset: int) -> bytes:
    if batch.control:
        return b""
    if damage := damage_of(batch):  # with a new checksum nobody would see it
        raise ProtocolError(damage, offset=batch.position, field="records")
    kept = [each for each in batch.records if each.offset >= first_offset]
    appended = batch.max_timestamp if batch.timestamp_type == "LogAppendTime" else None
    return encode_message_set(
        kept, magic=magic, compression=batch.compression, log_append_time=appended
    )
