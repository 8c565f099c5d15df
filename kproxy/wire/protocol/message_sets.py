"""Write message sets of magic 0 and 1: the formats of clients before Kafka 0.11.

`record_batch` reads them. A compressed set is one wrapper message, whose value is the set.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable

from kproxy.wire.protocol.compression import CODECS, compress
from kproxy.wire.protocol.record_batch import LOG_APPEND_TIME, Record

_INT64 = (1 << 64) - 1
"""Times and offsets of damaged records may exceed it: they wrap, as in Java."""


def encode_message_set(
    records: Iterable[Record],
    *,
    magic: int,
    compression: str = "none",
    log_append_time: int | None = None,
) -> bytes:
    """Write records as a message set of magic 0 or 1; compressed, as one wrapper message.

    Headers, and in magic 0 timestamps, have no place there and are lost.
    """
    records = list(records)
    codec = CODECS.index(compression)
    stamp = LOG_APPEND_TIME if log_append_time is not None and magic else 0
    plain = bytearray()
    for record in records:
        # Inside a wrapper of magic 1 offsets count from the first message (KIP-31).
        relative = magic == 1 and codec
        offset = record.offset - records[0].offset if relative else record.offset
        time = record.timestamp if log_append_time is None else log_append_time
        plain += message_bytes(offset, magic, stamp, time, record.key, record.value)
    if not codec or not records:
        return bytes(plain)
    times = [record.timestamp for record in records]
    value = compress(compression, bytes(plain), lz4_checksum_broken=magic == 0)
    time = max(times) if log_append_time is None else log_append_time
    return message_bytes(records[-1].offset, magic, codec | stamp, time, None, value)


def message_bytes(
    offset: int,
    magic: int,
    attributes: int,
    timestamp: int,
    key: bytes | None,
    value: bytes | None,
) -> bytes:
    """Write one message of magic 0 or 1, with its checksum."""
    checked = bytearray(struct.pack(">bb", magic, attributes))
    if magic:
        checked += (timestamp & _INT64).to_bytes(8, "big")
    for data in (key, value):
        checked += struct.pack(">i", -1 if data is None else len(data))
        checked += data or b""
    return struct.pack(">QiI", offset & _INT64, len(checked) + 4, zlib.crc32(checked)) + checked
