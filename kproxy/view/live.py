"""The exchanges as they pass, for a person who watches.

::

    recorder ─ entries ─▶ pairing ─▶ bounded queue ─▶ thread: decode, word, fold ─▶ Output
                             └ too many, too large, queue full: counted

Nothing here may hold up the proxy. On the event loop exchanges are only paired, by their headers.
A thread decodes them, but a thread that computes holds up the event loop, too (the two share
Python's lock), so it gets little to do: no more exchanges than a person could follow
(`PER_SECOND_MAX`, after a burst of `BURST_MAX`), no bodies larger than `BODY_BYTES_MAX`, and no
more than `CPU_SHARE` of a core over time. What is not shown is counted.
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
from kproxy.protocol import api_key
from kproxy.view.lines import Folding, terminal_width, wants_colour
from kproxy.view.output import FINISH_SECONDS, Output
from kproxy.view.stream import paired

BURST_MAX = 200
PER_SECOND_MAX = 200

BODY_BYTES_MAX = 64 << 10
"""Larger frames are not looked into, for what that costs grows with their size …"""
RECORDS_BYTES_MAX = 4 << 20
"""… except where most of a frame is records, of which only the headers of batches are read."""
WAITING_BYTES_MAX = 16 << 20
"""Frames that wait for the thread."""
CPU_SHARE = 0.1
"""How much of a core the thread may take …"""
CPU_BURST_NS = 500_000_000
"""… after so much at once: the first message of each kind has its decoder compiled."""

_MOSTLY_RECORDS = frozenset(map(api_key, ("Produce", "Fetch", "ShareFetch")))
_FOLDED_FOR = timedelta(seconds=10)
"""How long folded lines are held back at most, by the times of the exchanges."""


_Shown = Exchange | ConnectionEnd
"""What becomes a line."""


def _size(shown: _Shown) -> int:
    """How many bytes of frames it keeps."""
    if isinstance(shown, ConnectionEnd) or shown.has(LEFT_OUT):
        return 0
    return (shown.request_bytes or 0) + (shown.response_bytes or 0)


def _looked_into(frame: Frame) -> bool:
    """Whether a frame is kept until its exchange is shown."""
    records = frame.api_key in _MOSTLY_RECORDS
    return frame.frame_bytes <= (RECORDS_BYTES_MAX if records else BODY_BYTES_MAX)


class Live:
    """Shows entries on a terminal while they are recorded.

    Resource handling: owns a thread from the first exchange on; `finish` ends it. The thread does
    not keep the program alive. The `Output` is its creator's to finish.
    """

    def __init__(
        self, output: Output, colour: bool | None = None, width: int | None = None
    ) -> None:
        self._output = output
        self._width = width
        self._pairing = Pairing(_looked_into)
        colour = wants_colour(output.stream) if colour is None else colour
        self._folding = Folding(colour, width, folded_for=_FOLDED_FOR)
        self._allowance = float(BURST_MAX)
        self._time_ns = 0
        self._budget = Budget()
        self._waiting: deque[tuple[_Shown | None, int]] = deque()
        """What is to be shown, and how many exchanges before it are not; None: only that
        number."""
        self._waiting_bytes = 0
        self._unseen = 0
        """Exchanges that are not shown, since the last that is."""
        self._changed = threading.Condition()
        self._closing = False
        self._failure: Exception | None = None
        self._thread: threading.Thread | None = None

    def watch(self, entries: Iterable[Frame | Note]) -> None:
        """Show what these entries complete; never blocks, never decodes, never raises what a
        terminal raises.

        A defect in the thread is raised here, by the next call.
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
        """Whether there is time to look at one more exchange, by the time of its last entry."""
        passed_seconds = max(0, entry.time_ns - self._time_ns) / 1e9
        self._time_ns = max(entry.time_ns, self._time_ns)
        self._allowance = min(BURST_MAX, self._allowance + passed_seconds * PER_SECOND_MAX)
        if self._allowance < 1:
            return False
        self._allowance -= 1
        return True

    def finish(self, seconds: float = FINISH_SECONDS) -> None:
        """Show what is left, but give up after so long, and end."""
        self._put([(exchange, True) for exchange in self._pairing.finish()])
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(seconds)
            self._thread = None

    def _put(self, taken: Sequence[tuple[_Shown, bool]]) -> None:
        """Hand exchanges to the thread, those for which there is room."""
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
                self._write(self._lines(work))
            self._write(self._folding.flush())
        except Exception as error:
            self._failure = error

    def _write(self, lines: list[str]) -> None:
        if lines:
            self._output.put("\n".join(lines) + "\n")

    def _lines(self, waiting: list[tuple[_Shown | None, int]]) -> list[str]:
        """Word exchanges as long as there is time for it."""
        self._folding.width = self._width or terminal_width(self._output.stream)
        lines: list[str] = []
        unseen = 0
        for exchange, before in waiting:
            unseen += before
            if exchange is not None and not self._budget.left(time.monotonic_ns()):
                unseen += 1
                continue
            if unseen:
                lines.append(f"… and {unseen} more")
                unseen = 0
            if exchange is not None:
                started_ns = time.thread_time_ns()
                lines += self._folding.take(exchange)
                self._budget.take(time.thread_time_ns() - started_ns)
        return [*lines, f"… and {unseen} more"] if unseen else lines

    def _take(self) -> list[tuple[_Shown | None, int]] | None:
        """Wait for something to do; None when nothing more will come."""
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
class Budget:
    """CPU time that may be spent: a burst, and a share of the time that passes."""

    _left_ns: float = attrs.field(default=float(CPU_BURST_NS), init=False)
    _now_ns: int | None = attrs.field(default=None, init=False)

    def left(self, now_ns: int) -> bool:
        """Whether there is any left now."""
        passed_ns = 0 if self._now_ns is None else now_ns - self._now_ns
        self._now_ns = now_ns
        self._left_ns = min(CPU_BURST_NS, self._left_ns + passed_ns * CPU_SHARE)
        return self._left_ns > 0

    def take(self, spent_ns: int) -> None:
        """Account for what was spent; it may be more than was left."""
        self._left_ns -= spent_ns
