"""Writes much at once past the page cache, straight from memory to the disk (O_DIRECT).

    buffers ─▶ an aligned buffer ─┬ up to a block's start ─▶ page cache
                                  ├ whole blocks ──────────▶ disk
                                  └ what is left ──────────▶ page cache

Through the page cache a gigabyte costs half a second of CPU time, past it less than a tenth. But
the page cache takes a burst that the disk does not, so it stays the way for all that is small, and
for the rest of a file as soon as the disk turns out to be slow.
"""

from __future__ import annotations

import errno
import mmap
import os
import time
from collections.abc import Iterable, Iterator

from kproxy.recording.files import write_all

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None

BYTES_MIN = 256 << 10
"""Less than this is not worth it."""
SLOW_BYTES_PER_SECOND = 500e6
LATE_SECONDS_MAX = 0.05
"""A disk is slow when it is so far behind one that writes at this rate."""
_BUFFER_BYTES = 1 << 20
_BLOCK_BYTES = 4096
"""A multiple of the block of any common disk."""

Buffer = bytes | bytearray | memoryview


class Direct:
    """The way past the page cache for one open file: until it turns out that there is none, or that
    the disk is slow.

    Resource handling: the descriptor stays the caller's. Holds a megabyte once it was used.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._buffer: mmap.mmap | None = None
        self._usable = fcntl is not None and hasattr(os, "O_DIRECT")
        self._late_seconds = 0.0

    def write(self, buffers: list[Buffer], at: int) -> tuple[list[Buffer], int]:
        """Write buffers at an offset, if that is worth it; return those that remain, because this
        is not the way for them, and their offset.

        Raises: OSError, when the disk does not take them.
        """
        if not self._usable or sum(map(len, buffers)) < BYTES_MIN:
            return buffers, at
        done = 0
        for window in self._windows(buffers, at % _BLOCK_BYTES):
            if not self._put(window, at + done):
                break
            done += len(window)
            if not self._usable:
                break
        rest = memoryview(b"".join(buffers))[done:] if not self._usable else b""
        return ([rest] if rest else []), at + done

    def _windows(self, buffers: Iterable[Buffer], start: int) -> Iterator[memoryview]:
        """Copy buffers to where blocks of the file are aligned in memory, as far as there is room;
        yield what has come together, and go on."""
        if self._buffer is None:
            self._buffer = mmap.mmap(-1, _BUFFER_BYTES)
        view, stop = memoryview(self._buffer), start
        for buffer in buffers:
            rest = memoryview(buffer)
            while len(rest):
                size = min(len(rest), _BUFFER_BYTES - stop)
                view[stop : stop + size] = rest[:size]
                rest = rest[size:]
                stop += size
                if stop == _BUFFER_BYTES:
                    yield view[start:]
                    start = stop = 0
        if start < stop:
            yield view[start:stop]

    def _put(self, window: memoryview, at: int) -> bool:
        """Write a window; returns whether that was possible."""
        head = min(-at % _BLOCK_BYTES, len(window))
        stop = len(window) - (len(window) - head) % _BLOCK_BYTES
        write_all(self._fd, window[:head], at)
        if head < stop and not self._put_blocks(window[head:stop], at + head):
            return False
        write_all(self._fd, window[stop:], at + stop)
        return True

    def _put_blocks(self, blocks: memoryview, at: int) -> bool:
        started = time.monotonic()
        flags = fcntl.fcntl(self._fd, fcntl.F_GETFL)
        try:
            fcntl.fcntl(self._fd, fcntl.F_SETFL, flags | os.O_DIRECT)
            try:
                write_all(self._fd, blocks, at)
            finally:
                fcntl.fcntl(self._fd, fcntl.F_SETFL, flags)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            self._usable = False  # a file system without it, or with blocks of another size
            return False
        late_seconds = time.monotonic() - started - len(blocks) / SLOW_BYTES_PER_SECOND
        self._late_seconds = max(0.0, self._late_seconds + late_seconds)
        self._usable = self._late_seconds <= LATE_SECONDS_MAX
        return True
