"""Writes much at once past the page cache, from one aligned buffer to the disk (O_DIRECT).

    buffers ─▶ an aligned buffer ─┬ up to a block's start ─▶ page cache
                                  ├ whole blocks ──────────▶ disk
                                  └ what is left ──────────▶ page cache

Through the page cache a gigabyte costs half a second of CPU time, past it less than a tenth. But
the page cache takes a burst that the disk does not, so it stays the way for all that is small, and
for a while where the disk turns out to be slow.
"""

from __future__ import annotations

import errno
import mmap
import os
import sys
import time
from collections.abc import Iterable, Iterator

from kproxy.recording.arrow import Buffer
from kproxy.recording.files import write_all

BYTES_MIN = 256 << 10
"""Smaller writes are not worth it."""
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

    Resource handling: the descriptor stays the caller's. Once it was used, holds a buffer, and
    another descriptor of the same file until `close`.
    """

    def __init__(self, fd: int, bytes_min: int = BYTES_MIN, buffer_bytes: int = 1 << 20) -> None:
        self._fd = fd
        self._bytes_min = bytes_min
        self._buffer_bytes = buffer_bytes
        self._buffer: mmap.mmap | None = None
        self._blocks_fd: int | None = None
        self._usable = hasattr(os, "O_DIRECT")
        self._late_seconds = 0.0
        self._spared_bytes = 0

    def write(self, buffers: list[Buffer], at: int) -> tuple[list[Buffer], int]:
        """Write buffers at an offset, if that is worth it; return the buffers that remain to be
        written through the page cache, and their offset.

        Raises: OSError, when the disk does not take them.
        """
        size = sum(map(len, buffers))
        self._spared_bytes = max(0, self._spared_bytes - size)
        if not self._usable or size < self._bytes_min or self._spared_bytes:
            return buffers, at
        done = 0
        for window in self._windows(buffers, at % _BLOCK_BYTES):
            if not self._put(window, at + done):
                break
            done += len(window)
            if self._spared_bytes:
                break
        rest = memoryview(b"".join(buffers))[done:] if done < size else b""
        return ([rest] if rest else []), at + done

    def _windows(self, buffers: Iterable[Buffer], start: int) -> Iterator[memoryview]:
        """Copy buffers to a window in which the file's blocks are aligned in memory; yield each
        full window."""
        if self._buffer is None:
            self._buffer = mmap.mmap(-1, self._buffer_bytes)
        view, stop = memoryview(self._buffer), start
        for buffer in buffers:
            rest = memoryview(buffer)
            while rest:
                size = min(len(rest), len(view) - stop)
                view[stop : stop + size] = rest[:size]
                rest = rest[size:]
                stop += size
                if stop == len(view):
                    yield view[start:]
                    start = stop = 0
        if start < stop:
            yield view[start:stop]

    def _put(self, window: memoryview, at: int) -> bool:
        """Write a window; return whether that was possible."""
        head = min(-at % _BLOCK_BYTES, len(window))
        stop = len(window) - (len(window) - head) % _BLOCK_BYTES
        write_all(self._fd, window[:head], at)
        if head < stop and not self._put_blocks(window[head:stop], at + head):
            return False
        write_all(self._fd, window[stop:], at + stop)
        return True

    def close(self) -> None:
        """Close what it has opened."""
        if self._blocks_fd is not None:
            os.close(self._blocks_fd)
            self._blocks_fd = None

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
