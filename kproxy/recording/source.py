"""One file that is read from its beginning: its bytes, their CRC, and where it ends too early.

::

    file ─▶ record() ─▶ opcode, length ─▶ read · content · pass_over      each adds to `crc`

Invariants: the bytes are not trusted: a length is compared with what remains of the file and with a
limit before anything of that size is allocated. A file that has fewer bytes than it says is torn,
unless it has a proper end: then a length is wrong.
"""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

import attrs
from zlib_ng.zlib_ng import crc32

from kproxy.recording.files import RecordingError, file_bytes
from kproxy.recording.mcap import (
    DATA_END,
    FOOTER,
    FOOTER_BYTES,
    FOOTER_FIELDS,
    MAGIC,
    RECORD,
    RECORD_BYTES_MAX,
)
from kproxy.recording.uri import Uri

_BLOCK_BYTES = 1024 * 1024


class Torn(Exception):
    """The file ends inside the record that is being read."""


@attrs.define(eq=False)
class RecordingSource:
    """The bytes of one open file, and the progress of reading them."""

    path: Path | Uri
    file: BinaryIO
    """Replaced by a new handle of the same file after `close`."""
    offset: int = 0
    """The offset of the record that is being read; the file is right up to there."""
    crc: int = 0
    """The CRC of the file up to the last byte that was read."""
    _known_size: int = attrs.field(default=0, init=False)

    def add_crc(self, data: bytes | bytearray | memoryview) -> None:
        """Add bytes to the CRC that `read` has returned."""
        self.crc = crc32(data, self.crc)

    def error(self, offset: int | None, what: str) -> RecordingError:
        """Return the error for a problem at an offset of this file."""
        return RecordingError(self.path, offset, what)

    def damage(self, offset: int, what: str) -> RecordingError:
        """Return the error for bytes of this file that are not what was written."""
        return self.error(offset, f"is damaged: {what}")

    # ------------------------------------------------------------ bytes

    def size(self, least: int = -1) -> int:
        """Return the size of the file; the last known size will do, if it is at least `least`."""
        if not 0 <= least <= self._known_size:
            self._known_size = file_bytes(self.file)
        return self._known_size

    def read(self, wanted: int, what: str) -> bytes:
        """Read bytes of the current record.

        Raises: Torn, when the file has fewer.
        """
        data = self.file.read(wanted)
        if len(data) < wanted:
            raise Torn(f"ends in the middle of {what}")
        return data

    def pass_over(self, length: int, what: str) -> None:
        """Read over bytes, for their CRC only."""
        while length > 0:
            data = self.read(min(length, _BLOCK_BYTES), what)
            self.crc = crc32(data, self.crc)
            length -= len(data)

    def content(self, length: int, what: str) -> bytes:
        """Read the content of a record that is small.

        Raises: Torn; RecordingError, when its length says that it is not.
        """
        if length > RECORD_BYTES_MAX:
            self.fits(self.file.tell() + length, what)
            raise self.damage(self.offset, f"{what} of {length} bytes is longer than any that is")
        data = self.read(length, what)
        self.crc = crc32(data, self.crc)
        return data

    def fits(self, end: int, what: str) -> None:
        """Check that the file has the bytes of the current record, which ends there.

        Raises: Torn.
        """
        if end > self.size(end):
            raise Torn(f"ends in the middle of {what}")

    def check_torn(self, what: str) -> None:
        """Check that a record that runs past the end of the file means that the file is torn.

        Raises: RecordingError, when the file has a proper end, so that a length must be wrong.
        """
        if self.has_end(self.offset):
            raise self.damage(self.offset, f"a record runs past the end of the file, which {what}")

    def has_end(self, start: int = 0) -> bool:
        """Return whether there is an end of a file somewhere behind an offset."""
        tail_bytes = FOOTER_BYTES + len(MAGIC)
        size = self.size()
        if size - start < tail_bytes:
            return False
        self.file.seek(size - tail_bytes)
        tail = self.file.read(tail_bytes)
        return tail.startswith(RECORD.pack(FOOTER, FOOTER_FIELDS.size)) and tail.endswith(MAGIC)

    # ------------------------------------------------------------ records

    def magic(self) -> None:
        """Read the bytes with which a file begins.

        Raises: Torn; RecordingError, when they are not ours.
        """
        start = self.file.read(len(MAGIC))
        if not start:
            raise self.error(None, "is empty: nothing was recorded into it")
        if not MAGIC.startswith(start):
            raise self.error(0, "is not a recording: it does not begin as MCAP files do")
        if len(start) < len(MAGIC):
            raise Torn("ends in its first bytes")
        self.crc = crc32(start)
        self.offset = len(MAGIC)

    def record(self) -> tuple[int, int]:
        """Read the opcode and the length of the record at `offset`."""
        head = self.file.read(RECORD.size)
        if not head:
            raise Torn("has no end record")
        if head[0] == 0:
            self._zeros(head)
        if len(head) < RECORD.size:
            raise Torn("ends in the middle of a record")
        opcode, length = RECORD.unpack(head)
        if opcode != DATA_END:  # which says the CRC of what is before it
            self.crc = crc32(head, self.crc)
        return opcode, length

    def _zeros(self, head: bytes) -> None:
        """Raise Torn for zeros at the end, as some file systems leave them after a power failure.

        Raises: Torn for these; RecordingError otherwise.
        """
        data = head
        while data:
            if data.strip(b"\0"):
                raise self.damage(self.offset, "there is a record of no known kind")
            data = self.file.read(_BLOCK_BYTES)
        raise Torn("ends in zeros")
