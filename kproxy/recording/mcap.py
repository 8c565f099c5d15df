"""The container: MCAP, as far as recordings need it (https://mcap.dev/spec).

A file is a magic, records, and the magic again; a record is `opcode u8, length u64, content`. All
is little-endian. Messages stand in chunks, which are compressed and have a CRC each::

    magic
    Header · Schema … · Channel … · Metadata        the head
    Chunk [Message …] · Chunk [Message …] · …       the data
    DataEnd · Schema … · Channel … · Statistics · ChunkIndex … · MetadataIndex
        · SummaryOffset … · Footer
    magic

What the messages of a recording are is the business of `layout`. A few hundred compressed bytes can
claim to be gigabytes: `decompress` writes nothing beyond the declared size, which its caller has
checked.
"""

from __future__ import annotations

import struct

MAGIC = b"\x89MCAP0\r\n"

# MCAP opcodes
HEADER = 0x01
FOOTER = 0x02
SCHEMA = 0x03
CHANNEL = 0x04
MESSAGE = 0x05
CHUNK = 0x06
CHUNK_INDEX = 0x08
STATISTICS = 0x0B
METADATA = 0x0C
METADATA_INDEX = 0x0D
SUMMARY_OFFSET = 0x0E
DATA_END = 0x0F

# ---------------------------------------------------------------- MCAP records as structs

RECORD = struct.Struct("<BQ")
MESSAGE_HEAD = struct.Struct("<BQHIQQ")
"""opcode, length, channel, sequence, log_time, publish_time"""
MESSAGE_FIXED_BYTES = MESSAGE_HEAD.size - RECORD.size
"""The content of a message record without its data."""

CHUNK_FIXED = struct.Struct("<QQQI")
"""message_start_time, message_end_time, uncompressed_size, uncompressed_crc"""
CHUNK_HEADS = {
    "": struct.Struct("<BQQQQIIQ"),
    "zstd": struct.Struct("<BQQQQII4sQ"),
}
"""A chunk record up to its records, by compression."""
DATA_END_BYTES = RECORD.size + 4
FOOTER_FIELDS = struct.Struct("<QQI")
FOOTER_BYTES = RECORD.size + FOOTER_FIELDS.size

# ---------------------------------------------------------------- limits

CHUNK_BYTES_MAX = 64 * 1024 * 1024
"""The largest chunk, compressed or not, that is read. Other tools write 4 MiB or less."""
RECORD_BYTES_MAX = 16 * 1024 * 1024
"""The largest other record that is read."""


# ---------------------------------------------------------------- small records


def string(text: str) -> bytes:
    """Return MCAP's encoding of a string: u32 length, UTF-8."""
    data = text.encode()
    return len(data).to_bytes(4, "little") + data


def string_map(entries: dict[str, str]) -> bytes:
    """Return MCAP's encoding of a map of strings: u32 length in bytes, then the pairs."""
    data = b"".join(string(key) + string(value) for key, value in entries.items())
    return len(data).to_bytes(4, "little") + data


def record(opcode: int, content: bytes) -> bytes:
    """Return a record: opcode, length, content."""
    return RECORD.pack(opcode, len(content)) + content


def take_string(data: bytes, at: int) -> tuple[str, int]:
    """Read a string; return it and its end.

    Raises: ValueError, when it is cut or not UTF-8.
    """
    start = at + 4
    end = start + int.from_bytes(data[at:start], "little")
    if end > len(data) or start > len(data):
        raise ValueError("a string runs past the end of its record")
    return data[start:end].decode(), end


def take_map(data: bytes, at: int) -> tuple[dict[str, str], int]:
    """Read a map of strings; return it and its end.

    Raises: ValueError, when it is cut or not UTF-8.
    """
    start = at + 4
    end = start + int.from_bytes(data[at:start], "little")
    if end > len(data) or start > len(data):
        raise ValueError("a map runs past the end of its record")
    entries = {}
    at = start
    while at < end:
        key, at = take_string(data, at)
        entries[key], at = take_string(data, at)
    if at != end:
        raise ValueError("a map's last entry runs past its end")
    return entries, end


def schema_record(number: int, name: str, encoding: str, data: bytes) -> bytes:
    """Return a Schema record."""
    content = number.to_bytes(2, "little") + string(name) + string(encoding)
    return record(SCHEMA, content + len(data).to_bytes(4, "little") + data)


def channel_record(
    number: int, schema: int, topic: str, encoding: str, metadata: dict[str, str]
) -> bytes:
    """Return a Channel record."""
    content = struct.pack("<HH", number, schema) + string(topic) + string(encoding)
    return record(CHANNEL, content + string_map(metadata))


def message_head(channel: int, sequence: int, log_ns: int, publish_ns: int, size: int) -> bytes:
    """Return a message record up to its data, which has `size` bytes."""
    length = MESSAGE_FIXED_BYTES + size
    return MESSAGE_HEAD.pack(MESSAGE, length, channel, sequence, log_ns, publish_ns)


_ZSTD_LEVEL = 1
"""Higher levels cost several times as much on the byte path and save little …"""
_ZSTD_LEVEL_HARD = 19
_HARD_BYTES_MAX = 4 << 10
"""… but there is time where little is to be written: it saves a quarter, for half a millisecond."""


def compress(data: bytes | memoryview, hard: bool = False) -> bytes:
    """Return data as "zstd"; `hard` compresses small data better, in more time."""
    import cramjam  # 8 ms, and only needed where something is compressed

    level = _ZSTD_LEVEL_HARD if hard and len(data) <= _HARD_BYTES_MAX else _ZSTD_LEVEL
    return bytes(cramjam.zstd.compress(data, level=level))


def decompress(compression: str, data: bytes, size: int) -> bytes | bytearray:
    """Return the `size` bytes that were compressed as MCAP names it: "", "zstd" or "lz4".

    Raises: ValueError, when they are more or fewer, do not decompress, or for another name.
    """
    if compression not in ("", "zstd", "lz4"):
        raise ValueError(f"compression {compression!r} is not known")
    if not size:
        return b""
    records, found = data, len(data)
    if compression:
        import cramjam

        records = bytearray(size)
        codec = cramjam.zstd if compression == "zstd" else cramjam.lz4
        try:
            found = codec.decompress_into(data, records)
        except cramjam.DecompressionError as error:
            raise ValueError(f"it does not decompress to {size} bytes: {error}") from None
    if found != size:
        raise ValueError(f"it holds {found} bytes instead of {size}")
    return records
