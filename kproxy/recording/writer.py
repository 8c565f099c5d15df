"""Writes one recording file.

    append(batches) ─▶ tables ─▶ chunks ─▶ compress or not ─┬─ little: one pwritev ──▶ the OS
                                  of frames, of exchanges   └─ much: past its cache ─▶ the disk

Invariants: after `append` returned, all of its batches are with the operating system (they survive
the death of the process); after it raised, none of them is in the file and the next `append` goes
on where the file was whole: every byte is written at an offset that the writer keeps itself.

Pieces of frames are copied once at most: small ones are joined, much is staged (`direct`).

Compression is decided per chunk: frames are stored if at least half of their bytes are in frames of
16 KiB and more (batches, mostly compressed by their producer), else compressed with zstd level 1.
So at most as many bytes as are worth it are compressed in vain. The other way, a chunk per run of
small or big frames, was measured (`tests/benchmarks/recording.py`): it costs 30 to 40 % more CPU
where big frames prevail and saves at most 11 % of the bytes there. A batch that is small is one
chunk, and compressed harder: most of it are metadata of tables, which are alike.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import attrs
from zlib_ng.zlib_ng import crc32, crc32_combine

from kproxy.exchange.entries import Entry, coalesce
from kproxy.recording.arrow import Buffer
from kproxy.recording.batch import RecordingBatch
from kproxy.recording.batch_index import FILE_BYTES_MIN
from kproxy.recording.batch_messages import exchanges_message, frames_message
from kproxy.recording.batch_notes import BatchNotes
from kproxy.recording.builder import BatchBuilder
from kproxy.recording.compression import compress
from kproxy.recording.direct import BUFFERS_MAX, Direct
from kproxy.recording.ending import ChunkInfo, Index
from kproxy.recording.files import lock, uncache, write_all
from kproxy.recording.layout import (
    LIBRARY_PREFIX,
    NOTES,
    OWN_SCHEMAS,
    PROFILE,
    SMALL_BATCH_BYTES,
    Channel,
    Schemas,
    channel_records,
    metadata_entries,
    note_record,
    schema_records,
)
from kproxy.recording.mcap import (
    CHUNK,
    CHUNK_HEADS,
    HEADER,
    MAGIC,
    METADATA,
    RECORD,
    message_head,
    record,
    string,
    string_map,
)

_PENDING_BYTES_MAX = 4 * 1024 * 1024
_UNCACHE_BYTES = 8 * 1024 * 1024  # how much of a file is written between two calls of uncache


@attrs.define(eq=False)
class _ChunkRecords:
    """The records of one chunk."""

    parts: list[Buffer]
    size: int
    start_ns: int
    end_ns: int
    messages: list[int]
    """The number of messages on each channel."""
    stored: bool = False
    """True if more than half of it is not worth compressing."""
    hard: bool = False
    """True if it is worth more time to compress."""
    ends: RecordingBatch | None = None
    """The batch whose last chunk it is."""


class Writer:
    """One recording file being written.

    `path` must not exist. `start_ns` is the start of the recording, `schema_id` identifies the
    table of messages (`kproxy/protocol/messages.txt`) that its frames are to be decoded with,
    `library_version` is kproxy's. `compression` is "adaptive" or "none" (for files kept in git).
    `metadata` is further text for the file. `schemas` may have columns beside ours, for values that
    other versions of kproxy recorded.

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
        schemas: Schemas = OWN_SCHEMAS,
    ):
        head, index = _head(schema_id, start_ns, library_version, metadata or {}, schemas)
        self._start(Path(path), index, compression, schemas)
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._direct = Direct(self._fd)
        lock(self._fd)
        try:
            self._put([head], 0)
        except OSError:
            os.close(self._fd)
            os.unlink(path)
            raise

    @classmethod
    def resume(cls, path: Path, fd: int, index: Index, schemas: Schemas) -> Writer:
        """Return a writer that continues a file behind the part that `index` covers; it takes over
        `fd`."""
        writer = cls.__new__(cls)
        writer._start(path, index, "none", schemas)
        writer._fd = fd
        writer.batches = None
        writer._direct = Direct(fd)
        os.ftruncate(fd, index.size)
        return writer

    def _start(self, path: Path, index: Index, compression: str, schemas: Schemas) -> None:
        self.path = path
        self._index = index
        self._schemas = schemas
        self._builder: BatchBuilder | None = None
        self.batches: BatchNotes | None = BatchNotes()
        """What its batches hold; None if that is not known of all."""
        self._closed = False
        self._uncached_bytes = index.size
        self._untidy = False  # whether a failed write left something behind the last good chunk
        if compression not in ("adaptive", "none"):
            raise ValueError(f'compression is "adaptive" or "none", not {compression!r}')
        self._compresses = compression == "adaptive"

    @property
    def bytes_written(self) -> int:
        """The size of the file so far."""
        return self._index.size

    @property
    def deleted(self) -> bool:
        """True if the file was deleted or replaced by somebody."""
        ours = os.fstat(self._fd)
        if ours.st_nlink:
            return False
        try:  # not by its links alone: there are file systems that count none
            return not os.path.samestat(ours, os.stat(self.path))
        except OSError:
            return True

    def write(self, entries: Iterable[Entry]) -> None:
        """Append entries, in batches that the writer makes; `append` takes ready ones.

        Raises: OSError, when the file cannot take them (disk full …): then none of them is in it.
        """
        if self._builder is None:
            self._builder = BatchBuilder()
        self._builder.add(entries)
        self.append(self._builder.take())

    def append(self, batches: Sequence[RecordingBatch]) -> None:
        """Append batches.

        Raises: OSError, when the file cannot take them (disk full …): then none of them is in it.
        """
        if self._closed:
            raise ValueError(f"{self.path} is closed")
        alone = len(batches) == 1
        schemas = self._schemas
        self._append(r for batch in batches for r in _chunks(batch, schemas, alone=alone))

    def append_exchanges(self, batch: RecordingBatch) -> None:
        """Append only the exchanges of a batch, and its notes: the file ends behind the frames.

        Raises: OSError.
        """
        *_, exchanges = _chunks(batch, self._schemas, small=False)
        self.batches = None  # of this one, only a part is known
        self._append([exchanges])

    def _append(self, chunks: Iterable[_ChunkRecords]) -> None:
        index = self._index
        start = at = index.size
        crc = index.crc
        buffers: list[Buffer] = []
        done: list[tuple[ChunkInfo, int, RecordingBatch | None]] = []
        with self._all_or_nothing():
            for records in chunks:
                info, crc, staged = self._chunk(records, at, crc, buffers)
                at += info.length
                done.append((info, crc, records.ends))
                # A long backlog need not be held twice.
                if staged is not None or at - start >= _PENDING_BYTES_MAX:
                    self._put(buffers, start, staged)
                    start = at
                    buffers = []
            self._put(buffers, start)
        sizes: list[int] = []
        for info, crc, batch in done:
            index.add(info, crc)
            sizes.append(info.length)
            if batch is not None and self.batches is not None:
                self.batches.add(batch, sizes, info.end_ns)
                sizes = []
        if index.size - self._uncached_bytes >= _UNCACHE_BYTES:
            self._uncached_bytes = index.size
            uncache(self._fd)

    def close(self) -> None:
        """Write the summary and close the file. Closing twice does nothing.

        Raises: OSError, when there is no room for the summary: all that was written stays readable,
        and `recover` can complete the file later.
        """
        if self._closed:
            return
        try:
            if self._builder is not None:  # nothing more will come of what is pending
                self._builder.finish()
                self.append(self._builder.take())
            self._note_batches()
            with self._all_or_nothing():
                self._put([self._index.ending()], self._index.size)
        finally:
            self.abandon()

    def _note_batches(self) -> None:
        """Write down what the batches hold, if the file is large, and has room for it."""
        index, batches = self._index, self.batches
        if batches is None or index.size < FILE_BYTES_MIN:
            return
        note = batches.note(index.end_ns, index.size, index.crc)
        if note is not None:
            rest = RecordingBatch(0)
            rest.note(note)
            with contextlib.suppress(OSError):  # without it, the file is read as before
                self.append([rest])

    def abandon(self) -> None:
        """Close the file as it is, without a summary."""
        if not self._closed:
            self._closed = True
            self._direct.close()
            os.close(self._fd)

    def _chunk(
        self, records: _ChunkRecords, at: int, crc: int, buffers: list[Buffer]
    ) -> tuple[ChunkInfo, int, memoryview | None]:
        """Append a chunk's buffers; return its index entry, the file's CRC including it, and its
        records, if they are not among the buffers, but staged."""
        parts, staged = records.parts, None
        if records.stored:
            staged = self._direct.stage(parts, records.size, at + CHUNK_HEADS[""].size)
            parts = coalesce(parts) if staged is None else [staged]
        else:
            parts = [b"".join(parts)]
        records_crc = 0
        for part in parts:
            records_crc = crc32(part, records_crc)
        compression, stored_crc = "", records_crc
        compressed_bytes = records.size
        if self._compresses and not records.stored:
            compressed = compress(parts[0], records.hard)
            if len(compressed) < records.size:
                compression, parts, compressed_bytes = "zstd", [compressed], len(compressed)
                stored_crc = crc32(compressed)
        layout = CHUNK_HEADS[compression]
        head = layout.pack(
            CHUNK,
            layout.size - RECORD.size + compressed_bytes,
            records.start_ns,
            records.end_ns,
            records.size,
            records_crc,
            len(compression),
            *([compression.encode()] if compression else []),
            compressed_bytes,
        )
        buffers.append(head)
        if staged is None:
            buffers += parts
        crc = crc32_combine(crc32(head, crc), stored_crc, compressed_bytes)
        info = ChunkInfo(
            records.start_ns,
            records.end_ns,
            at,
            len(head) + compressed_bytes,
            compression,
            compressed_bytes,
            records.size,
            tuple(records.messages),
        )
        return info, crc, staged

    @contextlib.contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """If anything in here fails, cut the file off behind the last good chunk."""
        if self._untidy:
            os.ftruncate(self._fd, self._index.size)
            self._untidy = False
        try:
            yield
        except Exception:  # also one that nobody foresaw
            try:
                os.ftruncate(self._fd, self._index.size)
            except OSError:
                self._untidy = True
            raise

    def _put(self, buffers: list[Buffer], at: int, staged: memoryview | None = None) -> None:
        """Write buffers at an offset, and behind them what is staged.

        Raises: OSError.
        """
        if staged is None:
            staged = self._direct.stage(buffers, sum(map(len, buffers)), at)
            if staged is not None:
                buffers = []
        for first in range(0, len(buffers), BUFFERS_MAX):
            batch = buffers[first : first + BUFFERS_MAX]
            size = sum(map(len, batch))
            written = os.pwritev(self._fd, batch, at)
            if written < size:
                write_all(self._fd, memoryview(b"".join(batch))[written:], at + written)
            at += size
        if staged is not None:
            self._direct.write(staged, at)


def _chunks(
    batch: RecordingBatch, schemas: Schemas, small: bool = True, alone: bool = False
) -> Iterator[_ChunkRecords]:
    """Yield the chunks of a batch: one of frames, and one of exchanges and notes; a small batch is
    one chunk.

    A small one that is written `alone` is compressed harder: there is time for it.
    """
    sequence = batch.number & 0xFFFFFFFF
    tables: list[_ChunkRecords] = []
    for channel, (parts, size) in (
        (Channel.FRAMES, frames_message(batch, schemas.frames)),
        (Channel.EXCHANGES, exchanges_message(batch, schemas.exchanges)),
    ):
        head = message_head(channel, sequence, batch.end_ns, batch.start_ns, size)
        counts = [int(each is channel) for each in Channel]
        size += len(head)
        tables.append(_ChunkRecords([head, *parts], size, batch.end_ns, batch.end_ns, counts))
    frames, exchanges = tables
    for note in batch.notes:
        record = note_record(note, sequence)
        exchanges.parts.append(record)
        exchanges.size += len(record)
        exchanges.start_ns = min(exchanges.start_ns, note.time_ns)
        exchanges.messages[NOTES[note.channel] - 1] += 1
    if small and frames.size + exchanges.size < SMALL_BATCH_BYTES:
        parts, counts = frames.parts + exchanges.parts, exchanges.messages
        counts[0] += 1
        size = frames.size + exchanges.size
        times = exchanges.start_ns, exchanges.end_ns
        yield _ChunkRecords(parts, size, *times, counts, hard=alone, ends=batch)
        return
    # Beside frames that are stored, a few rows are not worth the trouble either.
    exchanges.ends = batch
    frames.stored = exchanges.stored = batch.stored_bytes * 2 >= frames.size
    yield frames
    yield exchanges


def _head(
    schema_id: str,
    start_ns: int,
    library_version: str,
    metadata: dict[str, str],
    schemas: Schemas,
) -> tuple[bytes, Index]:
    """Return a file's bytes up to the first chunk, and the index of such a file."""
    library = LIBRARY_PREFIX + library_version
    repeated = schema_records(schemas), channel_records(schema_id)
    header = record(HEADER, string(PROFILE) + string(library))
    before = b"".join((MAGIC, header, *repeated))
    entries = metadata_entries(schema_id, start_ns, metadata) | {"head_crc32": "0" * 8}
    own = record(METADATA, string(PROFILE) + string_map(entries))
    head = (before + own)[:-8]
    head += f"{crc32(head):08x}".encode()
    return head, Index(*repeated, len(before), len(own), len(head), crc32(head))
