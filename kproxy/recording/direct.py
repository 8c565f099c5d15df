"""Writes much at once past the page cache, from one aligned buffer to the disk (O_DIRECT).

    parts ─ stage ─▶ an aligned buffer ─▶ its CRC ─ write ─┬ up to a block's start ─▶ page cache
                                                           ├ whole blocks ──────────▶ disk
                                                           └ what is left ──────────▶ page cache

Through the page cache a gigabyte costs half a second of CPU time, past it less than a tenth. But
the page cache takes a burst that the disk does not, so it stays the way for all that is small, and
for a while where the disk turns out to be slow.

The buffer is a file in memory: so the kernel copies all parts to it in one call, without the
interpreter, and the CRC is one call, too. Part by part, the writer asked for the interpreter twice
for each frame, and took it from the proxy: a tenth of what frames of 100 KB cost.
"""

from __future__ import annotations

import errno
import mmap
import os
import sys
import time
from collections.abc import Sequence

from kproxy.exchange.entries import Buffer
from kproxy.recording.files import write_all

BUFFERS_MAX = 1024
"""Of one pwritev: IOV_MAX on Linux and macOS."""
BYTES_MIN = 256 << 10
"""Smaller writes are not worth it."""
BUFFER_BYTES = 8 << 20
"""Larger ones go through the page cache: the largest batch, of large frames, has 5.3 MiB."""
SLOW_BYTES_PER_SECOND = 500e6
LATE_SECONDS_MAX = 0.05
"""A disk is slow when it falls this far behind one that writes at this rate: more than a thread may
have waited for its turn …"""
SPARED_BYTES = 64 << 20
"""… and the next so many bytes then go through the page cache."""
_REFUSALS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Errors of a disk that would come through the page cache, too."""
_BLOCK_BYTES = 4096
"""A multiple of the block of any common disk."""


class Direct:
    """The way past the page cache for one open file, if there is one.

    Blocks are written by a descriptor of their own, which is opened once: changing the flags of the
    caller's around each write lets the interpreter go to other threads three times more.

    Resource handling: the descriptor stays the caller's. Once it was used, holds a buffer, with a
    descriptor, and another descriptor of the same file until `close`.
    """

    def __init__(
        self, fd: int, bytes_min: int = BYTES_MIN, buffer_bytes: int = BUFFER_BYTES
    ) -> None:
        self._fd = fd
        self._bytes_min = bytes_min
        self._buffer_bytes = buffer_bytes
        self._memory_fd = -1
        self._buffer: mmap.mmap | None = None
        """The file in memory, mapped."""
        self._blocks_fd: int | None = None
        self._usable = hasattr(os, "O_DIRECT") and hasattr(os, "memfd_create")
        self._late_seconds = 0.0
        self._spared_bytes = 0

    def stage(self, parts: Sequence[Buffer], size: int, at: int) -> memoryview | None:
        """Copy parts, which have this size, as they are to lie in the file from `at` on, and return
        the copy, valid until the next one; None if they are to go through the page cache."""
        self._spared_bytes = max(0, self._spared_bytes - size)
        start = at % _BLOCK_BYTES
        if not self._usable or self._spared_bytes or size < self._bytes_min:
            return None
        if size > self._buffer_bytes - start:
            return None
        try:
            copied = start
            view = memoryview(self._opened_buffer())
            for first in range(0, len(parts), BUFFERS_MAX):
                copied += os.pwritev(self._memory_fd, parts[first : first + BUFFERS_MAX], copied)
        except OSError:  # there is no memory for it
            return None
        return view[start:copied] if copied == start + size else None

    def _opened_buffer(self) -> mmap.mmap:
        if self._buffer is None:
            memory_fd = os.memfd_create("kproxy", os.MFD_CLOEXEC)
            try:
                os.ftruncate(memory_fd, self._buffer_bytes)
                self._buffer = mmap.mmap(memory_fd, self._buffer_bytes)
            except OSError:
                os.close(memory_fd)
                raise
            self._memory_fd = memory_fd
        return self._buffer

    def write(self, staged: memoryview, at: int) -> None:
        """Write what was staged for this place.

        Raises: OSError, when the disk does not take it.
        """
        head = min(-at % _BLOCK_BYTES, len(staged))
        stop = len(staged) - (len(staged) - head) % _BLOCK_BYTES
        write_all(self._fd, staged[:head], at)
        if head < stop and not self._put_blocks(staged[head:stop], at + head):
            stop = head
        write_all(self._fd, staged[stop:], at + stop)

    def close(self) -> None:
        """Close what it has opened."""
        if self._blocks_fd is not None:
            os.close(self._blocks_fd)
            self._blocks_fd = None
        if self._memory_fd >= 0:
            os.close(self._memory_fd)
            self._memory_fd, self._buffer = -1, None

    def _put_blocks(self, blocks: memoryview, at: int) -> bool:
        try:
            if self._blocks_fd is None:
                flags = os.O_WRONLY | os.O_DIRECT | os.O_CLOEXEC
                self._blocks_fd = os.open(f"/proc/self/fd/{self._fd}", flags)
            started = time.monotonic()
            write_all(self._blocks_fd, blocks, at)
            seconds = time.monotonic() - started
        except OSError as error:
            if error.errno in _REFUSALS:
                raise
            self._usable = False  # a file system without it, or with blocks of another size
            return False
        due_seconds = len(blocks) / SLOW_BYTES_PER_SECOND + sys.getswitchinterval()
        self._late_seconds = max(0.0, self._late_seconds + seconds - due_seconds)
        if self._late_seconds > LATE_SECONDS_MAX:
            self._late_seconds, self._spared_bytes = 0.0, SPARED_BYTES
        return True
