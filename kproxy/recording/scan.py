"""Walks the records of one recording file, in order, and checks everything on the way.

    RecordingSource ─▶ RecordingHead ─▶ Chunk, Chunk, … ─▶ DataEnd, summary, footer

Three things can be wrong with a file, and they are kept apart:

* it is **torn**: it stops before its end, because its writer was killed or still writes. What is
  there is right; `Scan.torn` says where it stops.
* it is **damaged**: bytes inside are not what was written. RecordingError.
* it is not a recording. RecordingError.

The bytes are not trusted: see `source`; and decompression stops at the size that was declared.

Files that kproxy wrote itself ("native": the library says so) have one legal layout (`layout`), so
that one flipped bit anywhere is noticed. Files that other MCAP tools wrote from recordings are read
by the rules of MCAP: CRCs where they are given, unknown records skipped; but messages outside of
chunks are refused, because nothing would tell a wrong one before the end of the file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping

import attrs
from zlib_ng.zlib_ng import crc32

from kproxy.recording.ending import Index
from kproxy.recording.files import RecordingError
from kproxy.recording.head import LAYOUTS, TOPICS, RecordingHead
from kproxy.recording.info import Chunk, Info
from kproxy.recording.layout import FORMAT_VERSION
from kproxy.recording.mcap import (
    CHUNK,
    CHUNK_BYTES_MAX,
    CHUNK_FIXED,
    DATA_END,
    FOOTER,
    FOOTER_BYTES,
    HEADER,
    MAGIC,
    MESSAGE,
    RECORD,
    decompress,
)
from kproxy.recording.source import RecordingSource, Torn

_COMPRESSION_NAME_BYTES_MAX = 32
_BEHIND_THE_HEAD = {bytes([opcode]) for opcode in (CHUNK, MESSAGE, DATA_END, FOOTER)}


@attrs.define(eq=False)
class Scan:
    """One pass over one open file.

    `damaged` gets the error of a damaged chunk whose end is known, and the chunk is left out;
    without it the error is raised. After `chunks` ended, `torn` is None for a complete file.
    """

    source: RecordingSource
    damaged: Callable[[RecordingError], None] | None = None
    topics: Mapping[str, int] = attrs.field(factory=lambda: TOPICS, kw_only=True)
    """The channels that are read, by their topics: those of this format version …"""
    version: int = attrs.field(default=FORMAT_VERSION, kw_only=True)
    head: RecordingHead = attrs.field(init=False)
    index: Index | None = None
    """The index of a native file so far; the caller adds the chunks, and then the summary is
    compared with it. None: the summary is not compared."""
    torn: str | None = None
    _crc_known: bool = attrs.field(default=True, init=False)
    _ended: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self.head = RecordingHead(self.source, self.topics, self.version)

    @property
    def info(self) -> Info:
        """The information in its head."""
        return self.head.info

    @property
    def offset(self) -> int:
        """The offset up to which the file was read and is right."""
        return self.source.offset

    @property
    def _native(self) -> bool:
        return self.info.native

    def chunks(self) -> Iterator[Chunk]:
        """Yield the chunks.

        Where a file breaks off, this ends; called again, it goes on there with what has been
        written since. The file may be read elsewhere in between.

        Raises: RecordingError, for a file that is damaged or not a recording.
        """
        while not self._ended:
            chunk, torn = self._step()
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
            _, torn = self._step()

    def _head_read(self) -> bool:
        if not self.offset:
            return False
        self.source.file.seek(self.offset)
        return self.source.file.read(1) in _BEHIND_THE_HEAD or (
            self.info.native and bool(self.info.format_version)
        )

    def _step(self) -> tuple[Chunk | None, bool]:
        """Take the next record; return it if it is a chunk, and whether the file ends before it."""
        source = self.source
        start, crc = source.offset, source.crc
        try:
            return self._next(start), False
        except Torn as torn:
            source.check_torn(str(torn))
            source.offset, source.crc = start, crc
            self.torn = str(torn)
            return None, True

    def _next(self, start: int) -> Chunk | None:
        """Take the record at an offset; return it if it is a chunk that is not left out."""
        source, self.torn = self.source, None
        source.file.seek(start)
        if not start:
            source.magic()
            return None
        opcode, length = source.record()
        if not self.info.library and opcode != HEADER:
            raise source.error(source.offset, "is not a recording: it has no MCAP header")
        if opcode == CHUNK:
            chunk = self._chunk(length)
            source.offset = source.file.tell() if chunk is None else chunk.end
            return chunk
        if opcode == DATA_END:
            self._data_end(length)
            self._ended = True
        elif opcode == FOOTER and not self._native:
            self._ended = True  # legal without a data end, and nothing is left to check
        else:
            self._other(opcode, length)
            source.offset = source.file.tell()
        return None

    def again(self, chunk: Chunk) -> Chunk:
        """Read a chunk again that was passed over, or whose records were let go.

        Raises: RecordingError.
        """
        source = self.source
        offset, crc = source.offset, source.crc
        source.offset = chunk.offset
        source.file.seek(chunk.offset + RECORD.size)
        try:
            read = self._chunk(chunk.end - chunk.offset - RECORD.size)
        except Torn:
            raise source.damage(chunk.offset, "a chunk is not there any more") from None
        finally:
            source.offset, source.crc = offset, crc
        if read is None:
            raise self.source.damage(chunk.offset, "a chunk was left out")
        return read

    def skip_to(self, offset: int) -> None:
        """Go on at a record that lies further on; the checksums of the whole are not checked any
        more."""
        self.source.offset = offset
        self._crc_known, self.index = False, None

    def _other(self, opcode: int, length: int) -> None:
        """Take a record of the data section that is neither chunk nor message."""
        in_head = opcode in LAYOUTS and not self.info.format_version
        if self._native and not in_head:
            raise self.source.damage(self.offset, f"a record of kind {opcode} does not belong here")
        if opcode == MESSAGE:
            what = (
                "has a message outside of chunks, where it has no checksum: rewrite it with chunks"
            )
            raise self.source.error(self.offset, what)
        self.head.take(opcode, length)
        if self._native and self.info.format_version:  # it was the last of its head
            start, own = self.offset, RECORD.size + length
            repeated = bytes(self.head.schema_records), bytes(self.head.channel_records)
            self.index = Index(*repeated, start, own, start + own, self.source.crc)

    # ------------------------------------------------------------ chunks

    def _chunk(self, length: int) -> Chunk | None:
        """Read a chunk; None if it is damaged and left out."""
        source, what = self.source, "a chunk"
        if self._native and not self.info.format_version:
            raise source.damage(source.offset, "its head is not complete")
        fixed = source.read(CHUNK_FIXED.size + 4, what)
        start_ns, end_ns, size, crc = CHUNK_FIXED.unpack_from(fixed)
        name_bytes = int.from_bytes(fixed[-4:], "little")
        if name_bytes > _COMPRESSION_NAME_BYTES_MAX:
            raise source.damage(source.offset, "the name of a chunk's compression is too long")
        name = source.read(name_bytes + 8, what)
        data_bytes = int.from_bytes(name[-8:], "little")
        beyond = length - len(fixed) - len(name) - data_bytes
        if beyond < 0 or (beyond and self._native):
            raise source.damage(source.offset, "the lengths of a chunk contradict each other")
        if data_bytes > CHUNK_BYTES_MAX or size > CHUNK_BYTES_MAX:
            limit = (
                f"kproxy reads {CHUNK_BYTES_MAX >> 20} MiB: rewrite the file with smaller chunks"
            )
            raise source.error(source.offset, f"a chunk has {max(data_bytes, size)} bytes, {limit}")
        end = source.offset + RECORD.size + length
        source.fits(end, what)
        compression = name[:-8].decode("ascii", "replace")
        source.add_crc(fixed + name)
        data = source.read(data_bytes, what)
        try:
            records = self._records(compression, data, size, crc)
        except RecordingError as error:
            if self.damaged is None:
                raise
            self.damaged(error)
            source.file.seek(end)
            self._crc_known, self.index = False, None
            return None
        source.pass_over(beyond, what)
        return Chunk(source.offset, end, start_ns, end_ns, compression, data_bytes, size, records)

    def _records(self, compression: str, data: bytes, size: int, crc: int) -> bytes | bytearray:
        """Decompress a chunk's records and check their CRC."""
        try:
            records = decompress(compression, data, size)
        except ValueError as error:
            raise self.source.damage(self.offset, f"a chunk does not decompress: {error}") from None
        if crc32(records) != crc and (crc or self._native):
            raise self.source.damage(self.offset, "the checksum of a chunk does not match")
        self.source.add_crc(data)
        return records

    # ------------------------------------------------------------ the end

    def _data_end(self, length: int) -> None:
        """Check everything from the DataEnd record on."""
        if self._native and not self.info.format_version:
            raise self.source.damage(self.offset, "its head is not complete")
        if self.index is not None:
            self._native_end(length, self.index.ending())
        else:
            self._foreign_end(length)

    def _native_end(self, length: int, expected: bytes) -> None:
        """Compare the rest of the file with the end that it must have."""
        source = self.source
        head = RECORD.pack(DATA_END, length)
        actual = head + source.file.read(len(expected) - len(head))
        rest = source.file.read(1)
        if not expected.startswith(actual):
            alike = len(os.path.commonprefix([actual, expected]))  # noqa: RUF071 (bytes)
            source.offset = source.offset + alike
            raise source.damage(
                source.offset, "the summary at its end does not match what it holds"
            )
        source.offset = source.offset + len(actual)
        if rest:
            raise source.damage(source.offset, "there are bytes behind its end")
        if len(actual) < len(expected):
            raise Torn("ends in the middle of its summary")

    def _pass_over_summary(self) -> None:
        """Read up to the footer at once: the CRC there says what is wrong, and an entry for each
        chunk takes as long as a chunk."""
        source = self.source
        at = source.file.tell()
        whole = self._native and source.has_end()
        source.file.seek(at)
        if whole:
            source.pass_over(source.size() - FOOTER_BYTES - len(MAGIC) - at, "its summary")

    def _foreign_end(self, length: int) -> None:
        """Check data_section_crc and summary_crc where they are given."""
        source = self.source
        data_crc = source.crc
        start = source.file.tell() - RECORD.size
        content = source.content(length, "its data end")
        stored = int.from_bytes(content[:4], "little")
        if stored and stored != data_crc and self._crc_known:
            raise source.damage(start, "the checksum of its data does not match")
        source.crc = 0  # of the summary
        self._pass_over_summary()
        opcode = before = 0
        while opcode != FOOTER:
            before = source.crc
            source.offset = source.file.tell()
            opcode, length = source.record()
            source.fits(source.file.tell() + length, "its summary")
            if opcode != FOOTER:
                source.pass_over(length, "its summary")
        content = source.content(length, "its footer")
        stored = int.from_bytes(content[16:20], "little")
        head = RECORD.pack(opcode, length) + content[:16]
        if stored and stored != crc32(head, before):
            raise source.damage(source.offset, "the checksum of its summary does not match")
        if source.read(len(MAGIC), "its last bytes") != MAGIC:
            raise source.damage(source.offset, "its last bytes are wrong")
