"""The end of a recording file, behind its last chunk: DataEnd, summary, footer.

`Index` is what a writer must remember of a file in order to finish it, kept packed: 73 to 77
bytes per chunk, the very bytes of the ChunkIndex record. `recover` collects the same from a file
whose writer was killed, so that both finish a file in the same way.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

import attrs
from zlib_ng.zlib_ng import crc32

from kproxy.recording.info import Chunk
from kproxy.recording.layout import PROFILE, Channel
from kproxy.recording.mcap import (
    CHANNEL,
    CHUNK_INDEX,
    DATA_END,
    FOOTER,
    FOOTER_FIELDS,
    MAGIC,
    METADATA_INDEX,
    RECORD,
    SCHEMA,
    STATISTICS,
    SUMMARY_OFFSET,
    record,
    string,
)

_CHUNK_INDEX = struct.Struct("<BQQQQQIQI")
_CHUNK_SIZES = struct.Struct("<QQ")
_STATISTICS = struct.Struct("<QHIIIIQQ")


@attrs.define(eq=False)
class Index:
    """The content of a file's summary, and the CRC of all its bytes up to the end of its data."""

    schema_records: bytes
    """The Schema records of the head, which the summary repeats."""
    channel_records: bytes
    metadata_offset: int
    metadata_bytes: int
    size: int
    """The size of the file so far: the offset of the next chunk."""
    crc: int
    """The CRC-32 of these bytes."""
    chunks: int = 0
    messages: list[int] = attrs.field(factory=lambda: [0] * len(Channel))
    """The number of messages on each channel."""
    start_ns: int = 0
    end_ns: int = 0
    records: bytearray = attrs.field(factory=bytearray)
    """ChunkIndex records, one behind the other."""

    def add(self, chunk: Chunk, messages: Iterable[int], crc: int) -> None:
        """Count a chunk that is in the file, with so many messages on each channel; `crc` includes
        it. Its ChunkIndex record has no message indexes."""
        name, size = chunk.compression.encode(), chunk.end - chunk.offset
        length = _CHUNK_INDEX.size - RECORD.size + len(name) + _CHUNK_SIZES.size
        self.records += _CHUNK_INDEX.pack(
            CHUNK_INDEX, length, chunk.start_ns, chunk.end_ns, chunk.offset, size, 0, 0, len(name)
        )
        self.records += name
        self.records += _CHUNK_SIZES.pack(chunk.compressed_bytes, chunk.uncompressed_bytes)
        if not self.chunks or chunk.start_ns < self.start_ns:
            self.start_ns = chunk.start_ns
        self.end_ns = max(self.end_ns, chunk.end_ns)
        self.chunks += 1
        for place, count in enumerate(messages):
            self.messages[place] += count
        self.size = chunk.end
        self.crc = crc

    def ending(self) -> bytes:
        """Return the end of the file, from DataEnd to the final magic."""
        data_end = record(DATA_END, struct.pack("<I", self.crc))
        summary_start = self.size + len(data_end)
        groups = [
            (SCHEMA, self.schema_records),
            (CHANNEL, self.channel_records),
            (STATISTICS, self._statistics()),
            (CHUNK_INDEX, bytes(self.records)),
            (METADATA_INDEX, self._metadata_index()),
        ]
        at = summary_start
        offsets = b""
        for opcode, records in groups:
            if records:
                offsets += record(SUMMARY_OFFSET, struct.pack("<BQQ", opcode, at, len(records)))
                at += len(records)
        summary = b"".join(records for _, records in groups) + offsets
        footer = RECORD.pack(FOOTER, FOOTER_FIELDS.size) + struct.pack("<QQ", summary_start, at)
        crc = crc32(footer, crc32(summary))
        return b"".join((data_end, summary, footer, struct.pack("<I", crc), MAGIC))

    def _statistics(self) -> bytes:
        counts = b"".join(
            struct.pack("<HQ", channel, count)
            for channel, count in zip(Channel, self.messages, strict=True)
        )
        fixed = _STATISTICS.pack(
            sum(self.messages),
            len(Channel),
            len(Channel),
            0,
            1,
            self.chunks,
            self.start_ns,
            self.end_ns,
        )
        return record(STATISTICS, fixed + struct.pack("<I", len(counts)) + counts)

    def _metadata_index(self) -> bytes:
        place = struct.pack("<QQ", self.metadata_offset, self.metadata_bytes)
        return record(METADATA_INDEX, place + string(PROFILE))
