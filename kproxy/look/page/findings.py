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
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs

from kproxy.look.page import shown
from kproxy.look.report.findings import findings
from kproxy.look.report.light import ReportReading
from kproxy.recording.following import Follow

POLL_SECONDS = 0.25
FRESH_SECONDS = 1.0
"""Findings are made anew so often at most …"""
_APART = 10
"""… and this many times as long apart as they take to make: the pass waits meanwhile."""
BATCH_SECONDS = 0.02
"""The pass reads for so long, and then makes room for others."""
_YIELDED = 9
"""While somebody searches, the pass rests so many times as long as it reads."""


def found_by(reading: ReportReading, folders: Sequence[Path | str] = ()) -> list[dict[str, Any]]:
    """Return the findings in what was read so far, as JSON; commands name folders with it."""
    found = findings(reading.data())
    return [shown.finding(each, folders or reading.paths, reading.names) for each in found]


@attrs.frozen
class _FoundSoFar:
    """Findings as JSON, and what they were made of."""

    exchanges: int = 0
    steps: int = 0
    """What the pass had counted."""
    due: float = -math.inf
    """When they are made anew, in seconds of the monotonic clock."""
    findings: list[dict[str, Any]] = attrs.Factory(list)


@attrs.define(eq=False)
class GrowingFindings:
    """The findings in recordings; `read` is the pass, for a thread of its own."""

    paths: Sequence[Path | str]
    is_busy: Callable[[], bool]
    """Returns whether somebody waits for a search."""
    follow: Follow = Follow.WHILE_WRITTEN
    folders: Sequence[Path | str] = ()
    """What the user gave, if it has what follows, too."""
    done: bool = attrs.field(default=False, init=False)
    caught_up: bool = attrs.field(default=False, init=False)
    """True while there is no more to read for now."""
    _steps: int = attrs.field(default=0, init=False)
    """The batches of the recordings that were read, and then the end."""
    _reading: ReportReading = attrs.field(
        default=attrs.Factory(lambda own: ReportReading(own.paths, own._step, charted=False), True),
        init=False,
    )
    _lock: threading.Lock = attrs.field(factory=threading.Lock, init=False)
    """Of what was read so far."""
    _found: _FoundSoFar = attrs.field(factory=_FoundSoFar, init=False)

    def read(self, may_read: Callable[[], bool] = lambda: True) -> None:
        """Go over the recordings, and wait for more of one that grows; rest while it may not.

        Raises: RecordingError.
        """
        items = self._reading.read(self.follow)
        while not self.done:
            with self._lock:
                began = time.monotonic()
                self._read_some(items, began + BATCH_SECONDS)
                lasted = time.monotonic() - began
            time.sleep(POLL_SECONDS if self.caught_up else self.is_busy() * _YIELDED * lasted)
            while not may_read():
                time.sleep(POLL_SECONDS)

    def _read_some(self, items: Iterator[bool], until: float) -> None:
        """Take items up to a time, in seconds of the monotonic clock, or as long as there are."""
        for there_is_more in items:
            self.caught_up = not there_is_more
            if self.caught_up or time.monotonic() > until:
                return
        self._step()
        self.done = self.caught_up = True

    def _step(self, read_bytes: int = 0) -> None:
        self._steps += 1

    def found(self) -> tuple[int, bool, list[dict[str, Any]]]:
        """Return the findings as JSON, with the number of exchanges in which they are, and whether
        these are all that there are for now."""
        with self._lock:
            exchanges, steps = self._reading.part.counts.total.count, self._steps
            began = time.monotonic()
            is_due = exchanges > 0 and began > self._found.due
            if steps != self._found.steps and (is_due or self.caught_up):
                made = found_by(self._reading, self.folders)
                ended = time.monotonic()
                due = ended + max(FRESH_SECONDS, _APART * (ended - began))
                self._found = _FoundSoFar(exchanges, steps, due, made)
            return self._found.exchanges, self.caught_up, self._found.findings
