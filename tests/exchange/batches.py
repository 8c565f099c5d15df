"""Record batches of magic 2, made by hand: uncompressed, with a right checksum."""

from __future__ import annotations

import struct

from crc32c import crc32c

TIMESTAMP = 1_700_000_000_000
_TRANSACTIONAL = 0x10
_CONTROL = 0x20 | _TRANSACTIONAL


def batch(records: int, offset: int = 0, value: bytes = b"v", producer_id: int = -1) -> bytes:
    """A batch of so many records with key `k`; with a producer id, of a transaction."""
    encoded = b"".join(_record(number, b"k", value) for number in range(records))
    attributes = 0 if producer_id < 0 else _TRANSACTIONAL
    return _batch(encoded, records, offset, attributes, producer_id)


def marker(commit: bool, offset: int, producer_id: int = -1) -> bytes:
    """The batch that ends a transaction."""
    key = struct.pack(">hh", 0, 1 if commit else 0)
    return _batch(_record(0, key, struct.pack(">hi", 0, 0)), 1, offset, _CONTROL, producer_id)


def _batch(encoded: bytes, count: int, offset: int, attributes: int, producer_id: int) -> bytes:
    times = TIMESTAMP, TIMESTAMP
    head = struct.pack(">hiqqqhii", attributes, count - 1, *times, producer_id, -1, -1, count)
    body = head + encoded
    length = 4 + 1 + 4 + len(body)
    return struct.pack(">qiibI", offset, length, 0, 2, crc32c(body)) + body


def _record(delta: int, key: bytes, value: bytes) -> bytes:
    content = b"\0" + _varint(0) + _varint(delta)
    content += _varint(len(key)) + key + _varint(len(value)) + value + _varint(0)
    return _varint(len(content)) + content


def _varint(number: int) -> bytes:
    unsigned = number << 1 if number >= 0 else (-number << 1) - 1
    encoded = b""
    while unsigned > 127:
        encoded += bytes([unsigned & 127 | 128])
        unsigned >>= 7
    return encoded + bytes([unsigned])
