"""The exchanges as they pass, for a person at a terminal.

::

    recorder ─ entries ─▶ pairing ─▶ bounded queue ─▶ thread: decode, word, fold ─▶ TextOutput
                             └ too many, too large, queue full: counted

The view must not delay the proxy. The event loop only pairs exchanges, by their headers. A thread
decodes them. It shares Python's lock with the event loop, so its work is limited: no more exchanges
than a person can follow (`PER_SECOND_MAX`, after a burst of `BURST_MAX`), no bodies larger than
`BODY_BYTES_MAX`, and at most `CPU_SHARE` of a core over time. Exchanges over a limit are counted.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from datetime import timedelta

import attrs

from kproxy.exchange.endings import ConnectionEnd
from kproxy.exchange.entries import LEFT_OUT, Frame, Note
from kproxy.exchange.exchange import Exchange
from kproxy.exchange.pairing import Pairing
from kproxy.look.lines.lines import Folding, LineStyle, terminal_width, wants_colour
from kproxy.look.lines.output import FINISH_SECONDS, TextOutput
from kproxy.look.lines.stream import paired
from kproxy.wire.protocol import api_key

BURST_MAX = 200
PER_SECOND_MAX = 200

BODY_BYTES_MAX = 64 << 10
"""Larger frames are not decoded, as the cost grows with their size …"""
RECORDS_BYTES_MAX = 4 << 20
"""… except those that are mostly records: only the headers of their batches are read."""
WAITING_BYTES_MAX = 16 << 20
"""Limit for frames that wait for the thread."""
CPU_SHARE = 0.1
"""Share of a core that the thread may use …"""
CPU_BURST_NS = 500_000_000
"""… after this burst: the first message of each kind compiles its decoder."""

_MOSTLY_RECORDS = frozenset(map(api_key, ("Produce", "Fetch", "ShareFetch")))
_FOLDED_FOR = timedelta(seconds=10)
"""Longest time that folded lines are held back, by the times of the exchanges."""


_Shown = Exchange | ConnectionEnd
"""An item that becomes a line."""


def _size(shown: _Shown) -> int:
    """Return the bytes of the frames that an item holds in memory."""
    if isinstance(shown, ConnectionEnd) or shown.has(LEFT_OUT):
        return 0
    return (shown.request_bytes or 0) + (shown.response_bytes or 0)


def _keeps_body(frame: Frame) -> bool:
    """Return whether a frame is small enough to be kept until its exchange is shown."""
    records = frame.api_key in _MOSTLY_RECORDS
    return frame.frame_bytes <= (RECORDS_BYTES_MAX if records else BODY_BYTES_MAX)


class Live:
    """Shows entries on a terminal while they are recorded.

    Resource handling: owns a thread from the first exchange on; `finish` ends it. The thread does
    not keep the program alive. The caller finishes the `TextOutput`.
    """

    def __init__(
        self,
        output: TextOutput,
        colour: bool | None = None,
        width: int | None = None,
        local: bool = False,
    ) -> None:
        self._output = output
        self._width = width
        self._pairing = Pairing(_keeps_body)
        colour = wants_colour(output.stream) if colour is None else colour
        self._folding = Folding(LineStyle(colour, width, local), folded_for=_FOLDED_FOR)
        self._rate = TimedBudget(BURST_MAX, PER_SECOND_MAX / 1e9)
        self._cpu_ns = TimedBudget(CPU_BURST_NS, CPU_SHARE)
        self._waiting: deque[tuple[_Shown | None, int]] = deque()
        """Items to show, each with the number of exchanges left out before it; None: only that
        number."""
        self._waiting_bytes = 0
        self._unseen = 0
        """Exchanges left out since the last one that is shown."""
        self._changed = threading.Condition()
        self._closing = False
        self._failure: Exception | None = None
        self._thread: threading.Thread | None = None

    def watch(self, entries: Iterable[Frame | Note]) -> None:
        """Show the exchanges that these entries complete.

        Never blocks, never decodes, and never raises errors of the terminal. An error in the
        thread, a defect, is raised by the next call.
        """
        if self._failure is not None:
            raise self._failure
        taken = [
            (exchange, self._allowed(entry))
            for entry in entries
            for exchange in paired([entry], self._pairing)
        ]
        if taken:
            self._put(taken)

    def _allowed(self, entry: Frame | Note) -> bool:
        """Return whether the rate limit allows one more exchange, by the time of its last entry."""
        if self._rate.left(entry.time_ns) < 1:
            return False
        self._rate.take(1)
        return True

    def finish(self, seconds: float = FINISH_SECONDS) -> None:
        """Show what is left and end; give up after so many seconds."""
        self._put([(exchange, True) for exchange in self._pairing.finish()])
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(seconds)
            self._thread = None

    def _put(self, taken: Sequence[tuple[_Shown, bool]]) -> None:
        """Hand exchanges to the thread; count those for which there is no room."""
        with self._changed:
            for exchange, shown in taken:
                size = _size(exchange)
                if not shown or self._waiting_bytes + size > WAITING_BYTES_MAX:
                    self._unseen += 1
                    continue
                self._waiting.append((exchange, self._unseen))
                self._waiting_bytes += size
                self._unseen = 0
            if self._thread is None and not self._closing:
                self._thread = threading.Thread(target=self._run, name="kproxy-live", daemon=True)
                self._thread.start()
            self._changed.notify()

    def _run(self) -> None:
        try:
            while (work := self._take()) is not None:
                self._write(*self._lines(work))
            self._write(self._folding.flush(), 0)
        except Exception as error:
            self._failure = error

    def _write(self, lines: list[str], folded: int) -> None:
        if lines:
            self._output.put("\n".join(lines) + "\n", len(lines) + folded)

    def _lines(self, waiting: list[tuple[_Shown | None, int]]) -> tuple[list[str], int]:
        """Return the lines of exchanges as long as the CPU budget lasts, and count the others: how
        many more lines they would be than the lines that stand for them."""
        self._folding.resize(self._width or terminal_width(self._output.stream))
        lines: list[str] = []
        unseen = folded = 0
        for exchange, before in waiting:
            unseen += before
            if exchange is not None and self._cpu_ns.left(time.monotonic_ns()) <= 0:
                unseen += 1
                continue
            if unseen:
                lines.append(f"… and {unseen} more")
                folded += unseen - 1
                unseen = 0
            if exchange is not None:
                started_ns = time.thread_time_ns()
                lines += self._folding.take(exchange)
                self._cpu_ns.take(time.thread_time_ns() - started_ns)
        lines += self._folding.pause()
        if unseen:
            lines.append(f"… and {unseen} more")
            folded += unseen - 1
        return lines, folded

    def _take(self) -> list[tuple[_Shown | None, int]] | None:
        """Wait for items; return None at the end."""
        with self._changed:
            while not (self._waiting or self._unseen or self._closing):
                self._changed.wait()
            if not (self._waiting or self._unseen):
                return None
            if self._unseen:
                self._waiting.append((None, self._unseen))
            waiting = list(self._waiting)
            self._waiting.clear()
            self._waiting_bytes = self._unseen = 0
            return waiting


@attrs.define(eq=False)
class TimedBudget:
    """What may be used: a burst, and so much of the time that passes."""

    burst: float
    per_ns: float
    _used: float = attrs.field(default=0.0, init=False)
    _now_ns: int | None = attrs.field(default=None, init=False)

    def left(self, now_ns: int) -> float:
        """Return what may be used now. The clock may have been set back."""
        passed_ns = 0 if self._now_ns is None else max(0, now_ns - self._now_ns)
        self._now_ns = now_ns
        self._used = max(0.0, self._used - passed_ns * self.per_ns)
        return self.burst - self._used

    def take(self, used: float) -> None:
        """Account for what was used; it may be more than was left."""
        self._used += used
