"""Settings of the memory allocator and of garbage collection, for a process that serves clients.

By default, glibc asks the kernel for fresh pages for each buffer of 128 KiB and more and gives
them back right after: with frames of 100 KB to 1 MB that is half of what a proxy costs.

Python looks at all objects for garbage in cycles each time their number has grown by a quarter,
and at the youngest after every 700. Frames wait for the recorder by the thousand and are in no
cycle: that takes a tenth of all CPU time of a proxy, and of a replaying broker a third of that for
a request with many items.
"""

from __future__ import annotations

import ctypes
import gc
import sys

KEPT_BYTES_MAX = 64 << 20
"""The freed memory that is kept for the next frames."""
MAPPED_BYTES_MIN = 8 << 20
"""Larger buffers go back to the kernel when they are freed, as by default."""
GARBAGE_OBJECTS = (100_000, 5, 5)
"""The thresholds of Python's garbage collection in cycles: new objects until it collects the young
generation, such collections until the next older one, and those until the oldest. Python's own are
(700, 10, 10)."""

# /usr/include/malloc.h
_TRIM_THRESHOLD = -1
_MMAP_THRESHOLD = -3


def keep_freed_memory() -> None:
    """Set both limits, if the C library has them."""
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    if mallopt is not None:
        mallopt(_TRIM_THRESHOLD, KEPT_BYTES_MAX)
        mallopt(_MMAP_THRESHOLD, MAPPED_BYTES_MIN)


def collect_garbage_rarely() -> None:
    """Have Python collect garbage in cycles rarely, and never among the present objects."""
    gc.freeze()
    gc.set_threshold(*GARBAGE_OBJECTS)
