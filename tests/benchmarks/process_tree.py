"""What a process and all below it use: memory, CPU time, bytes from disks; from /proc.

Memory is the sum of proportional set sizes: what processes share is counted once. Of a process that
has ended, what the last sample saw counts.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

import attrs

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_SAMPLE_SECONDS = 0.3


@attrs.frozen
class Used:
    """What a process tree used in a span of time."""

    cpu_seconds: float
    disk_bytes: int
    """Bytes that were read from disks, not from the page cache."""
    peak_bytes: int
    """The largest memory that a sample saw."""


@attrs.define(eq=False)
class ProcessTree:
    """Samples a process and all below it, until `close`."""

    pid: int
    _seen: dict[int, tuple[int, int]] = attrs.field(factory=dict[int, tuple[int, int]])
    """CPU ticks and bytes from disks of each process, at last."""
    _before: tuple[int, int] = (0, 0)
    _peak_bytes: int = 0
    _lock: threading.Lock = attrs.field(factory=threading.Lock)
    _done: threading.Event = attrs.field(factory=threading.Event)
    _thread: threading.Thread = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def used(self) -> Used:
        """Return what was used since this was called the last time."""
        with self._lock:
            self._sample()
            ticks, size = (sum(some) for some in zip(*self._seen.values(), strict=True))
            before, peak = self._before, self._peak_bytes
            self._before, self._peak_bytes = (ticks, size), 0
        return Used((ticks - before[0]) / _TICKS_PER_SECOND, size - before[1], peak)

    def close(self) -> None:
        """Stop sampling."""
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(_SAMPLE_SECONDS):
            with self._lock:
                self._sample()

    def _sample(self) -> None:
        for pid in pids(self.pid):
            try:
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                lines = Path(f"/proc/{pid}/io").read_text().splitlines()
            except OSError:
                continue
            size = next(int(each.split()[1]) for each in lines if each.startswith("read_bytes"))
            self._seen[pid] = int(fields[11]) + int(fields[12]), size
        self._peak_bytes = max(self._peak_bytes, tree_bytes(self.pid))


def pids(pid: int) -> list[int]:
    """Return a process and all below it."""
    below: dict[int, list[int]] = {}
    for each in os.listdir("/proc"):
        if each.isdecimal():
            try:
                stat = Path(f"/proc/{each}/stat").read_text()
            except OSError:
                continue
            below.setdefault(int(stat.rpartition(")")[2].split()[1]), []).append(int(each))
    found = [pid]
    for each in found:  # which grows meanwhile
        found += below.get(each, [])
    return found


def tree_bytes(pid: int) -> int:
    """Return the memory of a process and of all below it."""
    total = 0
    for each in pids(pid):
        try:
            text = Path(f"/proc/{each}/smaps_rollup").read_text()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in text.splitlines() if line[:4] == "Pss:")
    return total << 10
