"""Writes one recording file.

    write(entries) ─▶ Encoder ─▶ chunks ─▶ compress or not ─┬─ little: one pwritev ──▶ the OS
                                                             └─ much: past its cache ─▶ the disk

Invariants: after `write` returned, all of its entries are with the operating system (they survive
the death of the process); after it raised, none of them is in the file and the next `write` goes
on where the file was whole: every byte is written at an offset that the writer keeps itself.

Pieces of frames are copied once at most: small ones are joined, much is staged (`direct`).

Compression is decided per chunk: frames are stored if at least half of their bytes are in frames of
16 KiB and more (batches, mostly compressed by their producer), else compressed with zstd level 1.
So at most as many bytes as are worth it are compressed in vain. The other way, a chunk per run of
small or big frames, was measured: it costs 30 to 40 % more CPU where big frames prevail and saves
at most 11 % of the bytes there.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from zlib_ng.zlib_ng import crc32, crc32_combine

from kproxy.exchange.entries import Buffer, Entry, Note, coalesce
from kproxy.recording.batch_index import FILE_BYTES_MIN, ChunkFacts, IndexNotes
from kproxy.recording.direct import BUFFERS_MAX, Direct
from kproxy.recording.encoding import ChunkRecords, Encoder, Wall, as_it_is
from kproxy.recording.ending import Index
from kproxy.recording.files import lock, uncache, write_all
from kproxy.recording.info import Chunk
from kproxy.recording.layout import (
    LIBRARY_PREFIX,
    PROFILE,
    channel_records,
    metadata_entries,
    schema_records,
)
from kproxy.recording.mcap import (
    CHUNK,
    CHUNK_HEADS,
    HEADER,
    MAGIC,
    METADATA,
    RECORD,
    compress,
    record,
    string,
    string_map,
)

_PENDING_BYTES_MAX = 4 * 1024 * 1024
_FULL = (errno.ENOSPC, errno.EDQUOT)
_UNCACHE_BYTES = 8 * 1024 * 1024  # how much of a file is written between two calls of uncache


class Writer:
    """One recording file being written.

    `path` must not exist. `start_ns` is the start of the recording, `schema_id` identifies the
    table of messages (`kproxy/wire/protocol/messages.txt`) that its frames are to be decoded with,
    `library_version` is kproxy's. `compression` is "adaptive" or "none" (for files kept in git).
    `metadata` is further text for the file. `encoder` is that of the file before, of one that goes
    on with a recording. `make_room` is called when the disk is full, with the size that it
    does not take; if it returns True, that is tried once more.

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
        encoder: Encoder | None = None,
        make_room: Callable[[int], bool] = lambda size_bytes: False,
    ):
        head, index = _head(schema_id, start_ns, library_version, metadata or {})
        self._start(Path(path), index, compression, encoder or Encoder())
        self._make_room = make_room
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
    def resume(cls, path: Path, fd: int, index: Index, sequence: int) -> Writer:
        """Return a writer that continues a file behind the part that `index` covers; it takes over
        `fd`. `sequence` is the number of the next chunk. Whoever knows what the chunks hold sets
        `notes`."""
        writer = cls.__new__(cls)
        writer._start(path, index, "none", Encoder(sequence))
        writer._fd = fd
        writer.notes = None
        writer._make_room = lambda size_bytes: False
        writer._direct = Direct(fd)
        os.ftruncate(fd, index.size)
        return writer

    def _start(self, path: Path, index: Index, compression: str, encoder: Encoder) -> None:
        self.path = path
        self._index = index
        self.encoder = encoder
        self.notes: IndexNotes | None = IndexNotes()
        """What its chunks hold; None if that is not known of all."""
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

    def write(self, entries: Iterable[Entry], wall: Wall = as_it_is) -> None:
        """Append entries; `wall` moves the times of frames to the system's clock.

        Raises: OSError, when the file cannot take them (disk full …): then none of them is in it.
        """
        if self._closed:
            raise ValueError(f"{self.path} is closed")
        index = self._index
        start = at = index.size
        crc = index.crc
        buffers: list[Buffer] = []
        done: list[tuple[Chunk, int, ChunkRecords]] = []
        sequence = self.encoder.sequence
        with self._all_or_nothing(sequence):
            for records in self.encoder.chunks(entries, wall):
                chunk, crc, staged = self._chunk(records, at, crc, buffers)
                at = chunk.end
                records.parts = []
                done.append((chunk, crc, records))
                # A long backlog need not be held twice.
                if staged is not None or at - start >= _PENDING_BYTES_MAX:
                    self._put(buffers, start, staged)
                    start = at
                    buffers = []
            self._put(buffers, start)
        for chunk, crc, records in done:
            index.add(chunk, records.messages, crc)
            if self.notes is not None:
                facts = ChunkFacts.of(records.seen, records.notes)
                self.notes.add(records.sequence, facts, chunk)
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
            self._note_chunks()
            with self._all_or_nothing():
                self._put([self._index.ending()], self._index.size)
        finally:
            self.abandon()

    def _note_chunks(self) -> None:
        """Write down what the chunks hold, if the file is large, and has room for it."""
        index, notes = self._index, self.notes
        if notes is None or index.size < FILE_BYTES_MIN:
            return
        note: Note | None = notes.note(index.end_ns, index.size, index.crc)
        if note is not None:
            with contextlib.suppress(OSError):  # without it, the file is read as before
                self.write([note])

    def abandon(self) -> None:
        """Close the file as it is, without a summary."""
        if not self._closed:
            self._closed = True
            self._direct.close()
            os.close(self._fd)

    def _chunk(
        self, records: ChunkRecords, at: int, crc: int, buffers: list[Buffer]
    ) -> tuple[Chunk, int, memoryview | None]:
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
            compressed = compress(parts[0])
            if len(compressed) < records.size:
                compression, parts, compressed_bytes = "zstd", [compressed], len(compressed)
                stored_crc = crc32(compressed)
        layout = CHUNK_HEADS[compression]
        start_ns, end_ns = min(records.times_ns), max(records.times_ns)
        head = layout.pack(
            CHUNK,
            layout.size - RECORD.size + compressed_bytes,
            start_ns,
            end_ns,
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
        end = at + len(head) + compressed_bytes
        written = Chunk(at, end, start_ns, end_ns, compression, compressed_bytes, records.size)
        return written, crc, staged

    @contextlib.contextmanager
    def _all_or_nothing(self, sequence: int | None = None) -> Iterator[None]:
        """If anything in here fails, cut the file off behind the last good chunk; `sequence` is the
        number of the first that is written in here."""
        if self._untidy:
            os.ftruncate(self._fd, self._index.size)
            self._untidy = False
        try:
            yield
        except Exception:  # also one that nobody foresaw
            if sequence is not None:
                self.encoder.lose(sequence)
            try:
                os.ftruncate(self._fd, self._index.size)
            except OSError:
                self._untidy = True
            raise

    def _put(self, buffers: list[Buffer], at: int, staged: memoryview | None = None) -> None:
        """Write buffers at an offset, and behind them what is staged; once more if there was no
        room for them, and is now.

        Raises: OSError.
        """
        try:
            self._put_once(buffers, at, staged)
        except OSError as error:
            size = sum(map(len, buffers)) + len(staged or b"")
            if error.errno not in _FULL or not self._make_room(size):
                raise
            self._put_once(buffers, at, staged)

    def _put_once(self, buffers: list[Buffer], at: int, staged: memoryview | None) -> None:
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


def _head(
    schema_id: str,
    start_ns: int,
    library_version: str,
    metadata: dict[str, str],
) -> tuple[bytes, Index]:
    """Return a file's bytes up to the first chunk, and the index of such a file."""
    library = LIBRARY_PREFIX + library_version
    repeated = schema_records(), channel_records(schema_id)
    header = record(HEADER, string(PROFILE) + string(library))
    before = b"".join((MAGIC, header, *repeated))
    entries = metadata_entries(schema_id, start_ns, metadata) | {"head_crc32": "0" * 8}
    own = record(METADATA, string(PROFILE) + string_map(entries))
    head = (before + own)[:-8]
    head += f"{crc32(head):08x}".encode()
    return head, Index(*repeated, len(before), len(own), len(head), crc32(head))
