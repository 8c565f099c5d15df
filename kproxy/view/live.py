"""The exchanges as they pass, for a person who watches.

::

    recorder ─ batches of entries ─▶ Live ─ lines ─▶ a thread that writes ─▶ terminal

Nothing here may hold up the proxy: pairing costs little, no more than `LINES_MAX` lines are made
of one batch, and a terminal that is stopped or slow loses lines, which are counted.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import TextIO

import attrs

from kproxy.exchange.entries import Frame, Note
from kproxy.exchange.exchange import Exchange, Pairing
from kproxy.view import show
from kproxy.view.summary import Summary, learn, summarise
from kproxy.view.wording import Names, joined

LINES_MAX = 100
"""Lines per batch; a batch is what passed in 50 ms, and nobody reads faster."""

FRAME_BYTES_MAX = 4 << 20
"""Larger frames are not kept to be looked into."""

_BLOCKS_WAITING_MAX = 64
_FINISH_SECONDS = 1.0
_FOLDED_FOR = timedelta(seconds=10)
"""How long folded lines are held back at most, by the times of the exchanges."""


class Live:
    """Shows entries on a terminal while they are recorded.

    Resource handling: owns a thread from the first lines on; `finish` ends it. The thread does not
    keep the program alive.
    """

    def __init__(self, out: TextIO, colour: bool | None = None, width: int | None = None) -> None:
        self._out = out
        self._width = width
        self._pairing = Pairing(FRAME_BYTES_MAX)
        self._folding = Folding(show.wants_colour(out) if colour is None else colour, width)
        self._blocks: queue.Queue[str | None] = queue.Queue(_BLOCKS_WAITING_MAX)
        self._dropped = 0
        self._thread: threading.Thread | None = None

    def watch(self, entries: Iterable[Frame | Note]) -> None:
        """Show what these entries complete; never blocks, never raises what a terminal raises."""
        self._folding.width = self._width or show.terminal_width(self._out)
        lines: list[str] = []
        unseen = 0
        for entry in entries:
            for exchange in self._pairing.feed(entry):
                if len(lines) < LINES_MAX:
                    lines += self._folding.feed(exchange)
                else:
                    self._folding.skip(exchange)
                    unseen += 1
        if unseen:
            lines.append(f"… and {unseen} more")
        self._put(lines)

    def finish(self) -> None:
        """Show what is left, wait a moment until it is written, and end."""
        lines = self._folding.flush()
        for exchange in self._pairing.finish():
            lines += self._folding.feed(exchange)
        self._put([*lines, *self._folding.flush()])
        if self._thread is not None:
            with contextlib.suppress(queue.Full):
                self._blocks.put(None, timeout=_FINISH_SECONDS)
                self._thread.join(_FINISH_SECONDS)
            self._thread = None

    def _put(self, lines: list[str]) -> None:
        if not lines:
            return
        if self._dropped:
            lines = [f"… {self._dropped} lines not shown: the terminal is too slow", *lines]
        try:
            self._blocks.put_nowait("\n".join(lines) + "\n")
            self._dropped = 0
        except queue.Full:
            self._dropped += len(lines) - bool(self._dropped)
        if self._thread is None:
            self._thread = threading.Thread(target=self._write, name="kproxy-live", daemon=True)
            self._thread.start()

    def _write(self) -> None:
        while (block := self._blocks.get()) is not None:
            # A terminal that has gone is no reason to stop the proxy.
            with contextlib.suppress(OSError, ValueError):
                self._out.write(block)
                self._out.flush()


@attrs.define(eq=False)
class Folding:
    """Exchanges as lines with the noise folded, for watching them as they pass.

    The first of a row of empty Fetches and Heartbeats is a line of its own; those that follow are
    counted, and the count becomes a line (`Fetch ×37 empty`) before the next exchange that says
    something, or when ten seconds of it have come together.
    """

    colour: bool = False
    width: int | None = None
    """Columns of the terminal; None: lines are not cut."""
    _names: Names = attrs.field(factory=Names, init=False)
    _counts: dict[str, int] = attrs.field(factory=dict, init=False)
    _last: tuple[Exchange, Summary] | None = attrs.field(default=None, init=False)
    _since: datetime | None = attrs.field(default=None, init=False)
    """Since when there was nothing but noise; None after an exchange that said something."""

    def feed(self, exchange: Exchange) -> list[str]:
        """Take the next exchange and return the lines that are due."""
        summary = summarise(exchange, self._names)
        if summary.noise is None:
            lines = self.flush()
            self._since = None
            return [*lines, self._line(exchange, summary)]
        if self._since is None:
            self._since = exchange.time
            return [self._line(exchange, summary)]
        what = f"{exchange.api} ×%d {summary.noise}".rstrip()
        self._counts[what] = self._counts.get(what, 0) + 1
        self._last = (exchange, summary)
        if exchange.time - self._since < _FOLDED_FOR:
            return []
        self._since = exchange.time
        return self.flush()

    def flush(self) -> list[str]:
        """Return the line of what is folded now, if anything is."""
        if self._last is None:
            return []
        exchange, summary = self._last
        counts, self._counts, self._last = self._counts, {}, None
        if sum(counts.values()) == 1:
            return [self._line(exchange, summary)]
        text = joined(*(what % number for what, number in counts.items()))
        clock = f"{exchange.time:%H:%M:%S}.{exchange.time.microsecond // 1000:03}"
        indent = " " * (show.CONNECTION_WIDTH + 15)
        return [show.rendered([("dim", f"{clock} {indent}{text}")], self.colour)]

    def skip(self, exchange: Exchange) -> None:
        """Take an exchange that is not to be shown: only learn from it."""
        learn(exchange, self._names)

    def _line(self, exchange: Exchange, summary: Summary) -> str:
        return show.worded(exchange, summary, self.colour, self.width)
