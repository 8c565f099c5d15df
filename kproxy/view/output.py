"""Text to a terminal, a pipe or a file, from a thread of its own: writing never waits.

::

    event loop, recorder ─ put ─▶ at most BYTES_MAX of text ─▶ thread ─▶ os.write
                                     └ full: dropped, counted

A terminal takes nothing while its user has pressed Ctrl-S or its ssh hangs, and neither does a pipe
that nobody reads. Only the thread waits then. What arrives meanwhile is kept up to a limit; what is
over it is dropped, and the number of dropped lines is written as soon as something can be.

Invariants: `put` never blocks and never raises what a terminal raises. The thread does not keep the
program alive, so a write that never returns does not keep it from ending.
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
"""Text that waits for the thread, in characters (of which most are one byte)."""
FINISH_SECONDS = 1.0
"""How long the end of the program waits for a terminal."""
_TICK_SECONDS = 1.0


class Output:
    """Writes text to a stream, in order, without holding up who puts it.

    Resource handling: owns a thread from the first text on; `finish` ends it, unless a write is
    stuck, which the program's end does not wait for.
    """

    def __init__(
        self,
        stream: TextIO,
        prefix: str = "",
        tick: Callable[[], str] | None = None,
        failed: Callable[[OSError], None] | None = None,
    ) -> None:
        """Write to `stream`.

        `prefix` begins the line that says how many lines were dropped. `tick` is called about once
        a second, from the thread, and returns text to write or "". `failed` is told, once and from
        the thread, that the stream takes no text.
        """
        self.stream = stream
        self._prefix = prefix
        self._tick = tick
        self._failed = failed
        self._texts: deque[str] = deque()
        self._size = 0
        self._dropped = 0
        """Lines, since the number was last written."""
        self._changed = threading.Condition()
        self._closing = False
        self._thread: threading.Thread | None = None

    def put(self, text: str) -> bool:
        """Write some lines, line ends included, soon; return whether there was room for them."""
        with self._changed:
            room = not self._closing and self._size + len(text) <= BYTES_MAX
            if room:
                notice = self._notice()
                self._texts.append(notice + text)
                self._size += len(notice) + len(text)
            else:
                self._dropped += text.count("\n")
            if self._thread is None and not self._closing:
                self._thread = threading.Thread(target=self._run, name="kproxy-output", daemon=True)
                self._thread.start()
            self._changed.notify()
            return room

    def finish(self, seconds: float = FINISH_SECONDS) -> None:
        """Wait until all is written, but no longer than this; what is put afterwards is dropped."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(seconds)

    def _notice(self) -> str:
        """Say how many lines were dropped, once."""
        dropped, self._dropped = self._dropped, 0
        if not dropped:
            return ""
        lines = "1 line" if dropped == 1 else f"{dropped} lines"
        return f"{self._prefix}… {lines} not shown: the terminal is too slow\n"

    def _run(self) -> None:
        while (text := self._take()) is not None:
            try:
                self._write(text)
            except (OSError, ValueError) as error:
                # A terminal that has gone is no reason to stop.
                if self._failed is not None and isinstance(error, OSError):
                    failed, self._failed = self._failed, None
                    failed(error)

    def _take(self) -> str | None:
        """Wait for text, or for the next tick; None when there is nothing more to come."""
        with self._changed:
            timeout = None if self._tick is None else _TICK_SECONDS
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
