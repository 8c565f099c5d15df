"""The progress bar of a command, on a terminal, shown after two seconds.

    kproxy stats: ━━━━━━━━━━━━──────────── 48 %, 12 s left

It is one line on stderr that is overwritten, and erased at the end; nothing is shown unless stderr
is a terminal.
"""

from __future__ import annotations

import os
import stat
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TextIO

from kproxy.exchange.words.wording import age
from kproxy.recording import RecordingError, recordings
from kproxy.recording.paths import size_of

AFTER_SECONDS = 2.0
_EVERY_SECONDS = 0.1
_BAR_WIDTH = 24
_ERASE = "\r\x1b[K"


class Progress:
    """A progress bar for a command that has so much to do: bytes to read, requests to send.

    Resource handling: a context; its end erases the bar.
    """

    def __init__(
        self,
        name: str,
        total: int,
        err: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name = name
        self._total = total
        self._err = sys.stderr if err is None else err
        self._clock = clock
        self._began = clock()
        self._due = self._began + AFTER_SECONDS
        self._shown = False
        self._enabled = total > 0 and self._err.isatty()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *exception: object) -> None:
        self.finish()

    def update(self, done: int, more: str = "") -> None:
        """Show that so much has been done, and what more there is to say."""
        if not self._enabled or (now := self._clock()) < self._due:
            return
        self._due = now + _EVERY_SECONDS
        part = min(1.0, done / self._total)
        filled = round(part * _BAR_WIDTH)
        bar = "━" * filled + "─" * (_BAR_WIDTH - filled)
        left_ms = (now - self._began) * (1 - part) / part * 1000 if part else 0
        left = f", {age(left_ms)} left" if left_ms >= 1000 else ""
        more = f"; {more}" if more else ""
        self._write(f"{_ERASE}kproxy {self._name}: {bar} {part:.0%}{left}{more}")
        self._shown = True

    def finish(self) -> None:
        """Erase the bar."""
        if self._shown:
            self._shown = False
            self._write(_ERASE)

    def _write(self, text: str) -> None:
        try:
            self._err.write(text)
            self._err.flush()
        except (OSError, UnicodeEncodeError):
            self._enabled = False


def reading(name: str, paths: Sequence[Path | str], times: int = 1) -> Progress:
    """Return a progress bar for a command that reads recordings, each `times` times."""
    try:
        total_bytes = size_of(recordings(paths))
    except (OSError, RecordingError):
        total_bytes = 0  # the command that reads them reports the error
    return Progress(name, total_bytes * times)


def is_file(out: TextIO) -> bool:
    """Return whether output goes to a file: then a bar on the terminal disturbs nothing."""
    try:
        return stat.S_ISREG(os.fstat(out.fileno()).st_mode)
    except (OSError, ValueError):
        return False
