"""How memory is taken and given back, for a process that serves clients.

As it comes, glibc asks the kernel for fresh pages for each buffer of 128 KiB and more and gives
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
"""So much freed memory is kept for the next frames."""
MAPPED_BYTES_MIN = 8 << 20
"""What is larger goes back to the kernel when it is freed, as before."""
GARBAGE_OBJECTS = (100_000, 5, 5)
"""How often Python looks for garbage in cycles: after so many new objects, in older ones after so
many times, in all after so many of these. Its own are (700, 10, 10)."""

# /usr/include/malloc.h
_TRIM_THRESHOLD = -1
_MMAP_THRESHOLD = -3


def keep_freed_memory() -> None:
    """Set both limits, where the C library has them; elsewhere nothing changes."""
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    if mallopt is not None:
        mallopt(_TRIM_THRESHOLD, KEPT_BYTES_MAX)
        mallopt(_MMAP_THRESHOLD, MAPPED_BYTES_MIN)


def look_for_garbage_rarely() -> None:
    """Have Python look for garbage in cycles rarely, and not in what there is already."""
    gc.freeze()
    gc.set_threshold(*GARBAGE_OBJECTS)
