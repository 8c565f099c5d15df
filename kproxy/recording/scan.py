"""Walks the records of one recording file, in order, and checks everything on the way.

    file ─▶ head (Info) ─▶ Chunk, Chunk, … ─▶ DataEnd, summary, footer

Three things can be wrong with a file, and they are kept apart:

* it is **torn**: it stops before its end, because its writer was killed or still writes. What is
  there is right; `Scan.torn` says where it stops.
* it is **damaged**: bytes inside are not what was written. RecordingError.
* it is not a recording. RecordingError.

The bytes are not trusted: a length is compared with what remains of the file and with a limit
before anything of that size is allocated, and decompression stops at the size that was declared.

Files that kproxy wrote itself ("native": the library says so) have one legal layout (`format`), so
that one flipped bit anywhere is noticed. Files that other MCAP tools wrote from recordings are read
by the rules of MCAP: CRCs where they are given, unknown records skipped; but messages outside of
chunks are refused, because nothing would tell a wrong one before the end of the file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import attrs
from zlib_ng.zlib_ng import crc32

from kproxy.recording.compression import decompress
from kproxy.recording.ending import Index
from kproxy.recording.files import RecordingError, file_bytes
from kproxy.recording.info import Chunk, Info
from kproxy.recording.layout import FORMAT_VERSION, LIBRARY_PREFIX, PROFILE, Channel
from kproxy.recording.mcap import (
    CHANNEL,
    CHUNK,
    CHUNK_BYTES_MAX,
    CHUNK_FIXED,
    DATA_END,
    FOOTER,
    FOOTER_BYTES,
    FOOTER_FIELDS,
    HEADER,
    MAGIC,
    MESSAGE,
    METADATA,
    RECORD,
    RECORD_BYTES_MAX,
    SCHEMA,
    take_map,
    take_string,
)
from kproxy.recording.uri import Uri

_BLOCK_BYTES = 1024 * 1024
_COMPRESSION_NAME_BYTES_MAX = 32
_CHANNELS = {channel.topic: channel for channel in Channel}
_BEHIND_THE_HEAD = {bytes([opcode]) for opcode in (CHUNK, MESSAGE, DATA_END, FOOTER)}
_HEAD_LAYOUTS = {HEADER: (0, 2), SCHEMA: (2, 3), CHANNEL: (4, 3), METADATA: (0, 2)}
"""Of the records of a head: bytes of fixed size, then how many fields with a u32 length."""


class _Torn(Exception):
    """The file ends inside the record that is being read."""


@attrs.define(eq=False)
class Scan:
    """One pass over one open file.

    `damaged`: what to do about a damaged chunk whose end is known: None raises, a function is told
    and the chunk is left out. After `chunks` ended, `torn` is None for a complete file.
    """

    path: Path | Uri
    file: BinaryIO
    damaged: Callable[[RecordingError], None] | None = None
    info: Info = attrs.field(init=False)
    channels: dict[int, Channel] = attrs.field(factory=dict)
    """The file's channels that are ours, by the file's ids."""
    index: Index | None = None
    """Native files: what the chunks so far hold; whoever reads the chunks adds them, and then the
    summary is compared with it. None: the summary is not compared."""
    torn: str | None = None
    offset: int = 0
    """Up to where the file was read and is right."""
    crc: int = 0
    """Of the file up to where it was read."""
    _crc_known: bool = True
    _known_size: int = 0
    _ended: bool = False

    def __attrs_post_init__(self) -> None:
        self.info = Info(self.path)

    def chunks(self, skip: Callable[[int], bool] | None = None) -> Iterator[Chunk]:
        """Yield the chunks; `skip(size)` says whether one of that size may be passed over unread.

        Where a file ends before its end, this ends; called again, it goes on there: for what has
        been written since. The file may be read elsewhere in between.

        Raises: RecordingError, for a file that is damaged or not a recording.
        """
        while not self._ended:
            chunk, torn = self._step(skip)
            if torn:
                return
            if chunk is not None:
                yield chunk

    def read_head(self) -> None:
        """Read as far as the first chunk.

        Raises: RecordingError.
        """
        torn = False
        while not torn and not self._ended and not self._head_read():
            _, torn = self._step(None)

    def _head_read(self) -> bool:
        if not self.offset:
            return False
        self.file.seek(self.offset)
        return self.file.read(1) in _BEHIND_THE_HEAD or (
            self.info.native and bool(self.info.format_version)
        )

    def _step(self, skip: Callable[[int], bool] | None) -> tuple[Chunk | None, bool]:
        """Take the next record; return it if it is a chunk, and whether the file ends before it."""
        crc, start = self.crc, self.offset
        try:
            return self._next(start, skip), False
        except _Torn as torn:
            self._check_torn(str(torn))
            self.crc, self.offset, self.torn = crc, start, str(torn)
            return None, True

    def _next(self, start: int, skip: Callable[[int], bool] | None) -> Chunk | None:
        """Take the record at an offset; return it if it is a chunk that is not left out."""
        self.torn, chunk = None, None
        self.file.seek(start)
        if not start:
            self._magic()
            return None
        opcode, length = self._record()
        if opcode == CHUNK:
            chunk = self._chunk(length, skip)
            self.offset = self.file.tell() if chunk is None else chunk.end
            return chunk
        if opcode == DATA_END:
            self._data_end(length)
            self._ended = True
        elif opcode == FOOTER and not self._native:
            self._ended = True  # legal without a data end, and nothing is left to check
        else:
            self._other(opcode, length)
            self.offset = self.file.tell()
        return None

    def again(self, chunk: Chunk) -> Chunk:
        """Return a chunk with its records that was passed over, or whose records were let go.

        Raises: RecordingError.
        """
        crc, offset = self.crc, self.offset
        self.offset = chunk.offset
        self.file.seek(chunk.offset + RECORD.size)
        try:
            read = self._chunk(chunk.end - chunk.offset - RECORD.size, None)
        except _Torn:
            raise self.damage(chunk.offset, "a chunk is not there any more") from None
        finally:
            self.crc, self.offset = crc, offset
        if read is None:
            raise self.damage(chunk.offset, "a chunk was left out")
        return read

    def skip_to(self, offset: int) -> None:
        """Go on at a record that lies further on; the whole is not checked any more."""
        self.offset = offset
        self._crc_known, self.index = False, None

    @property
    def _native(self) -> bool:
        return self.info.native

    def error(self, offset: int | None, what: str) -> RecordingError:
        """Return the error that says that something is wrong at an offset of this file."""
        return RecordingError(self.path, offset, what)

    def damage(self, offset: int, what: str) -> RecordingError:
        """Return the error that says that bytes of this file are not what was written."""
        return self.error(offset, f"is damaged: {what}")

    # ------------------------------------------------------------ bytes

    def _size(self, least: int = -1) -> int:
        """The size of the file; as it was before, if that is at least so much."""
        if not 0 <= least <= self._known_size:
            self._known_size = file_bytes(self.file)
        return self._known_size

    def _read(self, wanted: int, what: str) -> bytes:
        """Read bytes of the current record.

        Raises: _Torn, when the file has fewer.
        """
        data = self.file.read(wanted)
        if len(data) < wanted:
            raise _Torn(f"ends in the middle of {what}")
        return data

    def _pass(self, length: int, what: str) -> None:
        """Read over bytes, for their CRC only."""
        while length > 0:
            data = self._read(min(length, _BLOCK_BYTES), what)
            self.crc = crc32(data, self.crc)
            length -= len(data)

    def _content(self, length: int, what: str) -> bytes:
        if length > RECORD_BYTES_MAX:
            self._fits(length, what)
            raise self.damage(self.offset, f"{what} of {length} bytes is longer than any that is")
        data = self._read(length, what)
        self.crc = crc32(data, self.crc)
        return data

    def _fits(self, length: int, what: str) -> None:
        """Check that a record's content of that length is in the file, from here on.

        Raises: _Torn.
        """
        end = self.file.tell() + length
        if end > self._size(end):
            raise _Torn(f"ends in the middle of {what}")

    def _check_torn(self, what: str) -> None:
        """Check that a record that runs past the end of the file means that the file is torn.

        Raises: RecordingError, when the file has a proper end, so that a length must be wrong.
        """
        if self.has_end(self.offset):
            raise self.damage(self.offset, f"a record runs past the end of the file, which {what}")

    def has_end(self, start: int = 0) -> bool:
        """Tell whether there is an end of a file somewhere behind an offset."""
        tail_bytes = FOOTER_BYTES + len(MAGIC)
        size = self._size()
        if size - start < tail_bytes:
            return False
        self.file.seek(size - tail_bytes)
        tail = self.file.read(tail_bytes)
        return tail.startswith(RECORD.pack(FOOTER, FOOTER_FIELDS.size)) and tail.endswith(MAGIC)

    # ------------------------------------------------------------ records

    def _magic(self) -> None:
        start = self.file.read(len(MAGIC))
        if not start:
            raise self.error(None, "is empty: nothing was recorded into it")
        if not MAGIC.startswith(start):
            raise self.error(0, "is not a recording: it does not begin as MCAP files do")
        if len(start) < len(MAGIC):
            raise _Torn("ends in its first bytes")
        self.crc = crc32(start)
        self.offset = len(MAGIC)

    def _record(self) -> tuple[int, int]:
        """Read the next record's opcode and length; `offset` is then where it starts."""
        self.offset = self.file.tell()
        head = self.file.read(RECORD.size)
        if not head:
            raise _Torn("has no end record")
        if head[0] == 0:
            self._zeros(head)
        if len(head) < RECORD.size:
            raise _Torn("ends in the middle of a record")
        opcode, length = RECORD.unpack(head)
        if opcode != DATA_END:  # which says the CRC of what is before it
            self.crc = crc32(head, self.crc)
        if not self.info.library and opcode != HEADER:
            raise self.error(self.offset, "is not a recording: it has no MCAP header")
        return opcode, length

    def _zeros(self, head: bytes) -> None:
        """Tell zeros at the end, as some file systems leave them after a power failure.

        Raises: _Torn for these; RecordingError otherwise.
        """
        data = head
        while data:
            if data.strip(b"\0"):
                raise self.damage(self.offset, "there is a record of no known kind")
            data = self.file.read(_BLOCK_BYTES)
        raise _Torn("ends in zeros")

    def _other(self, opcode: int, length: int) -> None:
        """Take a record of the data section that is neither chunk nor message."""
        in_head = opcode in _HEAD_LAYOUTS and not self.info.format_version
        if self._native and not in_head:
            raise self.damage(self.offset, f"a record of kind {opcode} does not belong here")
        if opcode == MESSAGE:
            what = (
                "has a message outside of chunks, where it has no checksum: rewrite it with chunks"
            )
            raise self.error(self.offset, what)
        take = {HEADER: self._header, CHANNEL: self.channel, METADATA: self._metadata}.get(opcode)
        before = self.crc
        try:
            if take is None:
                self._pass(length, "a record")
            else:
                take(self._content(length, "a record of its head"), before)
        except _Torn:
            if self._length_by_fields(opcode) not in (None, length):
                raise self.damage(self.offset, "a length in its head is wrong") from None
            raise
        except (ValueError, IndexError) as error:
            what = f"a record of its head does not decode: {error}"
            raise self.damage(self.offset, what) from None
        if self._native and self._length_by_fields(opcode) != length:
            raise self.damage(self.offset, "a length in its head is wrong")

    def _length_by_fields(self, opcode: int) -> int | None:
        """Return how long the fields of a record of the head say that it is.

        None, if they run past the end of the file or are not known: only then a record that runs
        past it means that the file is torn.
        """
        if opcode not in _HEAD_LAYOUTS:
            return None
        after = self.file.tell()
        start = self.offset + RECORD.size
        fixed_bytes, fields = _HEAD_LAYOUTS[opcode]
        end = start + fixed_bytes
        for _ in range(fields):
            self.file.seek(end)
            end += 4 + int.from_bytes(self.file.read(4), "little")
        self.file.seek(after)
        return end - start if end <= self._size() else None

    def _header(self, content: bytes, before: int) -> None:
        profile, at = take_string(content, 0)
        library, at = take_string(content, at)
        if profile != PROFILE:
            what = f"is an MCAP file, but not a Kafka recording: its profile is {profile[:40]!r}"
            raise self.error(self.offset, what)
        native = library.startswith(LIBRARY_PREFIX)
        self.info = Info(self.path, library or "unknown", native)

    def channel(self, content: bytes, before: int = 0) -> None:
        """Take a Channel record; other tools put them into chunks.

        Raises: ValueError, when it does not decode.
        """
        number = int.from_bytes(content[:2], "little")
        topic, at = take_string(content, 4)
        _, at = take_string(content, at)
        metadata, at = take_map(content, at)
        if topic in _CHANNELS:
            self.channels[number] = _CHANNELS[topic]
            self._version(metadata)

    def _metadata(self, content: bytes, before: int) -> None:
        name, at = take_string(content, 0)
        entries, at = take_map(content, at)
        if name != PROFILE:
            return
        info = self.info
        if info.native:
            if f"{crc32(content[:-8], before):08x}" != entries.pop("head_crc32", ""):
                raise ValueError("the checksum of the head does not match")
        info.metadata = entries
        info.start_ns = int(entries.get("start_ns", "0"))
        self._version(entries)
        info.format_version = int(entries.get("format_version", "0"))
        if info.native:
            length = RECORD.size + len(content)
            start = self.offset
            self.index = Index(info.schema_id, start, length, start + length, self.crc)

    def _version(self, entries: dict[str, str]) -> None:
        """Take format_version and schema_id from a channel's or the file's metadata."""
        version = int(entries.get("format_version", FORMAT_VERSION))
        if version != FORMAT_VERSION:
            advice = (
                "read it with a newer kproxy" if version > FORMAT_VERSION else "record it again"
            )
            what = f"has format version {version}, this kproxy reads {FORMAT_VERSION}: {advice}"
            raise self.error(self.offset, what)
        self.info.schema_id = entries.get("schema_id", self.info.schema_id)
        if not self.info.native:  # there, the version marks the end of the head
            self.info.format_version = version

    # ------------------------------------------------------------ chunks

    def _chunk(self, length: int, skip: Callable[[int], bool] | None) -> Chunk | None:
        """Read a chunk, or pass over it; None if it is damaged and left out."""
        what = "a chunk"
        if self._native and not self.info.format_version:
            raise self.damage(self.offset, "its head is not complete")
        fixed = self._read(CHUNK_FIXED.size + 4, what)
        start_ns, end_ns, size, crc = CHUNK_FIXED.unpack_from(fixed)
        name_bytes = int.from_bytes(fixed[-4:], "little")
        if name_bytes > _COMPRESSION_NAME_BYTES_MAX:
            raise self.damage(self.offset, "the name of a chunk's compression is too long")
        name = self._read(name_bytes + 8, what)
        data_bytes = int.from_bytes(name[-8:], "little")
        beyond = length - len(fixed) - len(name) - data_bytes
        if beyond < 0 or (beyond and self._native):
            raise self.damage(self.offset, "the lengths of a chunk contradict each other")
        if data_bytes > CHUNK_BYTES_MAX or size > CHUNK_BYTES_MAX:
            limit = (
                f"kproxy reads {CHUNK_BYTES_MAX >> 20} MiB: rewrite the file with smaller chunks"
            )
            raise self.error(self.offset, f"a chunk has {max(data_bytes, size)} bytes, {limit}")
        self._fits(data_bytes + beyond, what)
        end = self.file.tell() + data_bytes + beyond
        compression = name[:-8].decode("ascii", "replace")
        records = None
        if skip is not None and skip(size):
            self._crc_known, self.index = False, None
        else:
            self.crc = crc32(name, crc32(fixed, self.crc))
            data = self._read(data_bytes, what)
            try:
                records = self._records(compression, data, size, crc)
            except RecordingError as error:
                if self.damaged is None:
                    raise
                self.damaged(error)
                self.file.seek(end)
                self._crc_known, self.index = False, None
                return None
            self._pass(beyond, what)
        return Chunk(self.offset, end, start_ns, end_ns, compression, data_bytes, size, records)

    def _records(self, compression: str, data: bytes, size: int, crc: int) -> bytes | bytearray:
        """Decompress a chunk's records and check their CRC."""
        try:
            records = decompress(compression, data, size)
        except ValueError as error:
            raise self.damage(self.offset, f"a chunk does not decompress: {error}") from None
        if crc32(records) != crc and (crc or self._native):
            raise self.damage(self.offset, "the checksum of a chunk does not match")
        self.crc = crc32(data, self.crc)
        return records

    # ------------------------------------------------------------ the end

    def _data_end(self, length: int) -> None:
        """Check everything from the DataEnd record on."""
        if self._native and not self.info.format_version:
            raise self.damage(self.offset, "its head is not complete")
        if self.index is not None:
            self._native_end(length, self.index.ending())
        else:
            self._foreign_end(length)

    def _native_end(self, length: int, expected: bytes) -> None:
        """Compare the rest of the file with what it must be."""
        head = RECORD.pack(DATA_END, length)
        actual = head + self.file.read(len(expected) - len(head))
        rest = self.file.read(1)
        if not expected.startswith(actual):
            self.offset += len(os.path.commonprefix([actual, expected]))  # noqa: RUF071 (bytes)
            raise self.damage(self.offset, "the summary at its end does not match what it holds")
        self.offset += len(actual)
        if rest:
            raise self.damage(self.offset, "there are bytes behind its end")
        if len(actual) < len(expected):
            raise _Torn("ends in the middle of its summary")

    def _foreign_end(self, length: int) -> None:
        """Check data_section_crc and summary_crc where they are given."""
        data_crc = self.crc
        start = self.file.tell() - RECORD.size
        content = self._content(length, "its data end")
        stored = int.from_bytes(content[:4], "little")
        if stored and stored != data_crc and self._crc_known:
            raise self.damage(start, "the checksum of its data does not match")
        self.crc = before = 0
        opcode = 0
        while opcode != FOOTER:
            before = self.crc
            opcode, length = self._record()
            self._fits(length, "its summary")
            if opcode != FOOTER:
                self._pass(length, "its summary")
        content = self._content(length, "its footer")
        stored = int.from_bytes(content[16:20], "little")
        head = RECORD.pack(opcode, length) + content[:16]
        if stored and stored != crc32(head, before):
            raise self.damage(self.offset, "the checksum of its summary does not match")
        if self._read(len(MAGIC), "its last bytes") != MAGIC:
            raise self.damage(self.offset, "its last bytes are wrong")
