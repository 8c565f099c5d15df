"""Text to a terminal, a pipe or a file, written by a thread: callers never wait.

::

    event loop, recorder ─ put ─▶ at most BYTES_MAX of text ─▶ thread ─▶ os.write
                                     └ full: dropped, counted

A terminal accepts no text while its user has pressed Ctrl-S or its ssh hangs, nor does a pipe that
nobody reads. Only the thread waits then. Text is kept up to a limit; over it, text is dropped, and
the number of dropped lines is written as soon as the stream accepts text again.

Invariants: `put` never blocks and never raises errors of the stream. The thread does not keep the
program alive, so the program ends even if a write never returns.
"""

from __future__ import annotations

import io
import os
import select
import threading
from collections import deque
from collections.abc import Callable
from typing import TextIO

BYTES_MAX = 1 << 20
"""Limit for text that waits for the thread, in characters (most are one byte)."""
FINISH_SECONDS = 1.0
"""Longest time that the end of the program waits for a terminal."""


class TextOutput:
    """Writes text to a stream, in order, without delaying the caller.

    Resource handling: owns a thread from the first text on; `finish` ends it, unless a write is
    stuck; the end of the program does not wait for that.
    """

    def __init__(
        self,
        stream: TextIO,
        line: Callable[[str], str] = str,
        tick: Callable[[], str] | None = None,
        on_failure: Callable[[OSError], None] | None = None,
        tick_seconds: float = 1.0,
    ) -> None:
        """Write to `stream`.

        `line` completes the line that says how many lines were dropped. `tick` is called each
        `tick_seconds`, from the thread, and returns text to write or "". `on_failure` is called
        once, from the thread, with the first error of the stream.
        """
        self.stream = stream
        self._line = line
        self._tick, self._tick_seconds = tick, tick_seconds
        self._on_failure = on_failure
        self._texts: deque[str] = deque()
        self._size = 0
        self._dropped = 0
        """Dropped lines that no notice has reported yet."""
        self._changed = threading.Condition()
        self._closing = False
        self._thread: threading.Thread | None = None

    def put(self, text: str, count: int | None = None) -> bool:
        """Have the thread write lines (with line ends); return whether there was room for them. If
        not, they count as `count` lines: one may stand for many."""
        with self._changed:
            room = not self._closing and self._size + len(text) <= BYTES_MAX
            if room:
                notice = self._notice()
                self._texts.append(notice + text)
                self._size += len(notice) + len(text)
            else:
                self._dropped += text.count("\n") if count is None else count
            if self._thread is None and not self._closing:
                self._thread = threading.Thread(target=self._run, name="kproxy-output", daemon=True)
                self._thread.start()
            self._changed.notify()
            return room

    def finish(self, seconds: float = FINISH_SECONDS) -> None:
        """Wait until all is written, but no longer than this; text put afterwards is dropped."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(seconds)

    def _notice(self) -> str:
        """Return a line that says how many lines were dropped since the last one, or ""."""
        dropped, self._dropped = self._dropped, 0
        if not dropped:
            return ""
        lines = "1 line" if dropped == 1 else f"{dropped} lines"
        return self._line(f"… {lines} not shown: the terminal is too slow") + "\n"

    def _run(self) -> None:
        while (text := self._take()) is not None:
            try:
                self._write(text)
            except (OSError, ValueError) as error:
                # A terminal that has gone is no reason to stop.
                if self._on_failure is not None and isinstance(error, OSError):
                    on_failure, self._on_failure = self._on_failure, None
                    on_failure(error)

    def _take(self) -> str | None:
        """Wait for text, or for the next tick; return None at the end."""
        with self._changed:
            timeout = None if self._tick is None else self._tick_seconds
            if not (self._texts or self._closing):
                self._changed.wait(timeout)
            text = "".join(self._texts)
            self._texts.clear()
            self._size = 0
            if not text:
                text = self._notice()
                if not text and self._closing:
                    return None
        return text or (self._tick() if self._tick is not None else "")

    def _write(self, text: str) -> None:
        if not text:
            return
        try:
            descriptor = self.stream.fileno()
        except io.UnsupportedOperation:
            self.stream.write(text)
            return
        # Past the stream's buffer, whose lock would be held at exit if the terminal is stopped.
        data = text.encode(self.stream.encoding or "utf-8", "backslashreplace")
        while data:
            try:
                data = data[os.write(descriptor, data) :]
            except BlockingIOError:  # whoever shares the terminal has made it so
                select.select([], [descriptor], [])
