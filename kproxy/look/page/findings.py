"""What `kproxy why` finds in recordings, as far as they have been read, for as long as they grow.

::

    recordings ─▶ ReportReading ─ goes on where it stands ─▶ … at any time: findings so far
                       └ gives way to searches; rests while nobody asks

Invariant: what was read is not read again; memory is that of a history.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs

from kproxy.look.page import shown
from kproxy.look.report.findings import findings
from kproxy.look.report.light import ReportReading

ASKED_SECONDS = 15.0
"""A page that shows findings asks again before that."""
POLL_SECONDS = 0.25
FRESH_SECONDS = 1.0
"""Findings are made anew so often at most."""
_YIELDED = 9
"""While somebody searches, the pass rests so many times as long as it reads."""


def found_by(reading: ReportReading) -> list[dict[str, Any]]:
    """Return the findings in what was read so far, as JSON."""
    found = findings(reading.data())
    return [shown.finding(each, reading.paths, reading.names) for each in found]


@attrs.define(eq=False)
class GrowingFindings:
    """The findings in recordings; `read` is the pass, for a thread of its own."""

    paths: Sequence[Path | str]
    is_busy: Callable[[], bool]
    """Returns whether somebody waits for a search."""
    follows: bool = False
    """True to look for what continues the last file even if nobody writes that any more."""
    size_bytes: int = 0
    """The size of the recordings when it began: a pass that failed begins again when they have
    another."""
    error: str | None = attrs.field(default=None, init=False)
    done: bool = attrs.field(default=False, init=False)
    caught_up: bool = attrs.field(default=False, init=False)
    """True while there is no more to read for now."""
    asked: float = attrs.field(factory=time.monotonic, init=False)
    """The last time that somebody asked."""
    _reading: ReportReading = attrs.field(init=False)
    _lock: threading.Lock = attrs.field(factory=threading.Lock, init=False)
    _began: float = attrs.field(factory=time.monotonic, init=False)
    """When the pass went on."""
    _findings: list[dict[str, Any]] = attrs.field(factory=list[dict[str, Any]], init=False)
    _count: int = attrs.field(default=0, init=False)
    """The number of exchanges in which they are."""
    _steps: int = attrs.field(default=0, init=False)
    """The batches that were read, and then the end."""
    _made_at: int = attrs.field(default=-1, init=False)
    """How many of them there were when they were made."""
    _made: float = attrs.field(default=-math.inf, init=False)
    """When they were made."""

    def __attrs_post_init__(self) -> None:
        self._reading = ReportReading(self.paths, self._step)

    def read(self) -> None:
        """Go over the recordings, and wait for more of one that grows.

        Raises: RecordingError.
        """
        with self._lock:
            for there_is_more in self._reading.read(True, not self.follows):
                self.caught_up = not there_is_more
                if self.caught_up:
                    self._pause(POLL_SECONDS)
            self._steps += 1
            self.done = self.caught_up = True

    def _step(self, read_bytes: int) -> None:
        self._steps += 1
        self._pause()

    def _pause(self, seconds: float = 0.0) -> None:
        if not seconds and self.is_busy():
            seconds = _YIELDED * (time.monotonic() - self._began)
        self._lock.release()
        time.sleep(seconds)
        while time.monotonic() - self.asked > ASKED_SECONDS:
            time.sleep(POLL_SECONDS)
        self._lock.acquire()
        self._began = time.monotonic()

    def found(self) -> tuple[int, bool, list[dict[str, Any]]]:
        """Return the findings as JSON, with the number of exchanges in which they are, and whether
        these are all that there are for now."""
        with self._lock:
            some = self._reading.part.counts.total.count > 0
            is_due = some and time.monotonic() - self._made > FRESH_SECONDS
            if self._steps != self._made_at and (is_due or self.caught_up):
                self._findings, self._made_at = found_by(self._reading), self._steps
                self._count, self._made = self._reading.part.counts.total.count, time.monotonic()
            return self._count, self.caught_up, self._findings
