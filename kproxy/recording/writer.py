"""Writes one recording file.

    write(entries) ─▶ pack into chunks ─▶ compress or not ─┬─ little: one pwritev ──▶ the OS
                        data chunk, header chunk,          └─ much: past its cache ─▶ the disk
                        data chunk, header chunk …

Invariants: after `write` returned, all of its entries are with the operating system (they survive
the death of the process); after it raised, none of them is in the file and the next `write` goes
on where the file was whole: every byte is written at an offset that the writer keeps itself.

Small frames are joined; the pieces of big ones are copied once at most (`direct`).

Compression is decided per chunk: it is stored if at least half of its bytes are in frames of 16 KiB
and more (batches, mostly compressed by their producer), else compressed with zstd level 1. So at
most as many bytes as are worth it are compressed in vain. The other way, a chunk per run of small
or big frames, was measured (`tests/benchmarks/recording.py`): it costs 30 to 40 % more CPU where
big frames prevail and saves at most 11 % of the bytes there.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from zlib_ng.zlib_ng import crc32, crc32_combine

from kproxy.exchange.entries import Entry, coalesced
from kproxy.recording.compression import compressor
from kproxy.recording.direct import Direct
from kproxy.recording.files import Buffer, lock, uncache, write_all
from kproxy.recording.format import (
    CHUNK,
    CHUNK_HEADS,
    HEADER,
    HEADERS,
    LIBRARY_PREFIX,
    MAGIC,
    METADATA,
    PROFILE,
    RECORD,
    channel_records,
    metadata_entries,
    record,
    schema_records,
    string,
    string_map,
)
from kproxy.recording.pack import Packed, header_chunk, packed_chunks
from kproxy.recording.summary import ChunkInfo, Contents

_BUFFERS_MAX = 1024  # of one pwritev: IOV_MAX on Linux and macOS
_PENDING_BYTES_MAX = 4 * 1024 * 1024
_UNCACHE_BYTES = 8 * 1024 * 1024  # how much of a file is written between two calls of uncache


class Writer:
    """One recording file being written.

    `path` must not exist. `start_ns` is when the recording starts, `schema_id` identifies the table
    of messages (`kproxy/protocol/messages.txt`) by which its frames are to be decoded,
    `library_version` is kproxy's. `compression` is "adaptive" or "none" (for files kept in git).
    `metadata` is further text that the file shall carry.

    Calls may come from any thread, one at a time.

    Resource handling: holds a file descriptor until `close`.

    Raises: FileExistsError, when the path is taken; OSError, when it cannot be created; ValueError,
    for an unknown compression or metadata that the format reserves.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        start_ns: int,
        schema_id: str,
        library_version: str,
        compression: str = "adaptive",
        metadata: dict[str, str] | None = None,
    ):
        head, contents = _head(schema_id, start_ns, library_version, metadata or {})
        self._start(Path(path), contents, compression)
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        self._direct = Direct(self._fd)
        lock(self._fd)
        try:
            self._put([head], 0)
        except OSError:
            os.close(self._fd)
            os.unlink(path)
            raise

    @classmethod
    def resume(cls, path: Path, fd: int, contents: Contents) -> Writer:
        """Return a writer that goes on behind `contents` of a file; takes over `fd`."""
        writer = cls.__new__(cls)
        writer._start(path, contents, "none")
        writer._fd = fd
        writer._direct = Direct(fd)
        os.ftruncate(fd, contents.size)
        return writer

    def _start(self, path: Path, contents: Contents, compression: str) -> None:
        self.path = path
        self._contents = contents
        self._closed = False
        self._uncached_bytes = contents.size
        self._untidy = False  # whether a failed write left something behind the last good chunk
        if compression == "adaptive":
            self._compress = compressor()
        elif compression == "none":
            self._compress = None
        else:
            raise ValueError(f'compression is "adaptive" or "none", not {compression!r}')

    @property
    def bytes_written(self) -> int:
        """The size of the file so far."""
        return self._contents.size

    @property
    def deleted(self) -> bool:
        """Whether the file is not to be found any more: somebody has deleted or replaced it."""
        ours = os.fstat(self._fd)
        if ours.st_nlink:
            return False
        try:  # not by its links alone: there are file systems that count none
            return not os.path.samestat(ours, os.stat(self.path))
        except OSError:
            return True

    def write(self, entries: Sequence[Entry]) -> None:
        """Append entries, in whole chunks.

        Raises: OSError, when the file cannot take them (disk full …): then none of them is in it.
        """
        if self._closed:
            raise ValueError(f"{self.path} is closed")
        contents = self._contents
        start = at = contents.size
        crc = contents.crc
        frames, tables, connections, events = contents.messages
        buffers: list[Buffer] = []
        done: list[tuple[ChunkInfo, int]] = []
        for packed in packed_chunks(iter(entries), frames + connections + events):
            table = header_chunk(packed, tables + len(done) // 2)
            for chunk in (packed, table):
                info, crc = self._chunk(chunk, at, crc, buffers)
                at += info.length
                done.append((info, crc))
            if at - start >= _PENDING_BYTES_MAX:  # a long backlog need not be held twice
                self._put(buffers, start)
                start = at
                buffers.clear()
        self._put(buffers, start)
        for info, crc in done:
            contents.add(info, crc)
        if contents.size - self._uncached_bytes >= _UNCACHE_BYTES:
            self._uncached_bytes = contents.size
            uncache(self._fd)

    def write_table(self, rows: list[bytes], time_ns: int) -> None:
        """Append only the header chunk of a data chunk that lacks it (when resuming a file).

        Raises: OSError.
        """
        buffers: list[Buffer] = []
        contents = self._contents
        table = header_chunk(Packed(rows=rows, end_ns=time_ns), contents.messages[HEADERS - 1])
        info, crc = self._chunk(table, contents.size, contents.crc, buffers)
        self._put(buffers, contents.size)
        contents.add(info, crc)

    def close(self) -> None:
        """Write the summary and close the file. Closing twice does nothing.

        Raises: OSError, when there is no room for the summary: all that was written stays readable,
        and `recover` can complete the file later.
        """
        if self._closed:
            return
        self._closed = True
        try:
            self._put([self._contents.ending()], self._contents.size)
        finally:
            os.close(self._fd)

    def abandon(self) -> None:
        """Close the file as it is, without a summary."""
        if not self._closed:
            self._closed = True
            os.close(self._fd)

    def _chunk(
        self, packed: Packed, at: int, crc: int, buffers: list[Buffer]
    ) -> tuple[ChunkInfo, int]:
        """Append a chunk's buffers; return its index entry, and the file's CRC including it."""
        parts = coalesced(packed.parts) if packed.stored_bytes else [b"".join(packed.parts)]
        records_crc = 0
        for part in parts:
            records_crc = crc32(part, records_crc)
        compression, stored_crc = "", records_crc
        compressed_bytes = packed.size
        if self._compress and packed.compressible:
            compressed = self._compress(parts[0] if len(parts) == 1 else b"".join(parts))
            if len(compressed) < packed.size:
                compression, parts, compressed_bytes = "zstd", [compressed], len(compressed)
                stored_crc = crc32(compressed)
        layout = CHUNK_HEADS[compression]
        head = layout.pack(
            CHUNK,
            layout.size - RECORD.size + compressed_bytes,
            packed.start_ns,
            packed.end_ns,
            packed.size,
            records_crc,
            len(compression),
            *([compression.encode()] if compression else []),
            compressed_bytes,
        )
        buffers.append(head)
        buffers += parts
        crc = crc32_combine(crc32(head, crc), stored_crc, compressed_bytes)
        info = ChunkInfo(
            packed.start_ns,
            packed.end_ns,
            at,
            len(head) + compressed_bytes,
            compression,
            compressed_bytes,
            packed.size,
            packed.messages,
        )
        return info, crc

    def _put(self, buffers: list[Buffer], at: int) -> None:
        """Write buffers at an offset; if they do not fit, cut off all behind the last good chunk.

        Raises: OSError.
        """
        if self._untidy:
            os.ftruncate(self._fd, self._contents.size)
            self._untidy = False
        try:
            buffers, at = self._direct.write(buffers, at)
            for first in range(0, len(buffers), _BUFFERS_MAX):
                batch = buffers[first : first + _BUFFERS_MAX]
                size = sum(map(len, batch))
                written = os.pwritev(self._fd, batch, at)
                if written < size:
                    write_all(self._fd, memoryview(b"".join(batch))[written:], at + written)
                at += size
        except OSError:
            try:
                os.ftruncate(self._fd, self._contents.size)
            except OSError:
                self._untidy = True
            raise


def _head(
    schema_id: str, start_ns: int, library_version: str, metadata: dict[str, str]
) -> tuple[bytes, Contents]:
    """Return a file's bytes up to the first chunk, and the contents of such a file."""
    library = LIBRARY_PREFIX + library_version
    before = b"".join(
        (
            MAGIC,
            record(HEADER, string(PROFILE) + string(library)),
            schema_records(),
            channel_records(schema_id),
        )
    )
    entries = metadata_entries(schema_id, start_ns, metadata) | {"head_crc32": "0" * 8}
    own = record(METADATA, string(PROFILE) + string_map(entries))
    head = (before + own)[:-8]
    head += f"{crc32(head):08x}".encode()
    return head, Contents(schema_id, len(before), len(own), len(head), crc32(head))
