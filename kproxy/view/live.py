"""The exchanges as they pass, for a person who watches.

::

    recorder ─ batches of entries ─▶ Live ─ lines ─▶ a thread that writes ─▶ terminal

Nothing here may hold up the proxy: pairing costs little, no more exchanges are looked into than a
person could follow (`PER_SECOND_MAX`, after a burst of `BURST_MAX`), and a terminal that is stopped
or slow loses lines. What is not shown is counted.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import TextIO

import attrs

from kproxy.exchange.entries import Frame, Note
from kproxy.exchange.exchange import Exchange, Pairing
from kproxy.view import show
from kproxy.view.text import ExchangeText, learn, text_of
from kproxy.view.wording import Names, joined

BURST_MAX = 200
PER_SECOND_MAX = 200

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
        self._allowance = float(BURST_MAX)
        self._time_ns = 0
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
                if self._allowed(entry):
                    lines += self._folding.feed(exchange)
                else:
                    self._folding.skip(exchange)
                    unseen += 1
        if unseen:
            lines.append(f"… and {unseen} more")
        self._put(lines)

    def _allowed(self, entry: Frame | Note) -> bool:
        """Whether there is time to look at one more exchange, by the time of its last entry."""
        passed_seconds = max(0, entry.time_ns - self._time_ns) / 1e9
        self._time_ns = max(entry.time_ns, self._time_ns)
        self._allowance = min(BURST_MAX, self._allowance + passed_seconds * PER_SECOND_MAX)
        if self._allowance < 1:
            return False
        self._allowance -= 1
        return True

    def finish(self) -> None:
        """Show what is left, wait a moment until it is written, and end."""
        lines = self._folding.flush()
        for exchange in self._pairing.finish():
            lines += self._folding.feed(exchange)
        self._put([*lines, *self._folding.flush()], _FINISH_SECONDS)
        if self._thread is not None:
            with contextlib.suppress(queue.Full):
                self._blocks.put(None, timeout=_FINISH_SECONDS)
                self._thread.join(_FINISH_SECONDS)
            self._thread = None

    def _put(self, lines: list[str], wait_seconds: float = 0) -> None:
        """Hand lines to the thread, if it has room for them within this time."""
        text = [f"… {self._dropped} lines not shown: the terminal is too slow"][: self._dropped]
        text += lines
        if not text:
            return
        try:
            self._blocks.put("\n".join(text) + "\n", wait_seconds > 0, wait_seconds or None)
            self._dropped = 0
        except queue.Full:
            self._dropped += len(lines)
        if self._thread is None:
            self._thread = threading.Thread(target=self._write, name="kproxy-live", daemon=True)
            self._thread.start()

    def _write(self) -> None:
        while (block := self._blocks.get()) is not None:
            # A terminal that has gone is no reason to stop the proxy.
            with contextlib.suppress(OSError, ValueError):
                self._write_block(block)

    def _write_block(self, block: str) -> None:
        try:
            descriptor = self._out.fileno()
        except OSError:
            self._out.write(block)
            return
        # Past the stream's buffer, whose lock would be held at exit if the terminal is stopped.
        data = block.encode(self._out.encoding or "utf-8", "backslashreplace")
        while data:
            data = data[os.write(descriptor, data) :]


@attrs.define(eq=False)
class Folding:
    """Exchanges as lines with the noise folded, for watching them as they pass.

    The first of a row of empty Fetches and Heartbeats is a line of its own; those that follow are
    counted, and the count becomes a line (`Fetch ×37 empty`) before the next exchange in which
    something happens, or after ten seconds.
    """

    colour: bool = False
    width: int | None = None
    """Columns of the terminal; None: lines are not cut."""
    _names: Names = attrs.field(factory=Names, init=False)
    _counts: dict[str, int] = attrs.field(factory=dict[str, int], init=False)
    _last: tuple[Exchange, ExchangeText] | None = attrs.field(default=None, init=False)
    _since: datetime | None = attrs.field(default=None, init=False)
    """Since when there has been nothing but noise; None if the last exchange was none."""

    def feed(self, exchange: Exchange) -> list[str]:
        """Take the next exchange and return the lines that are due."""
        text = text_of(exchange, self._names)
        if text.noise is None:
            lines = self.flush()
            self._since = None
            return [*lines, self._line(exchange, text)]
        if self._since is None:
            self._since = exchange.time
            return [self._line(exchange, text)]
        what = f"{exchange.api} ×%d {text.noise}".rstrip()
        self._counts[what] = self._counts.get(what, 0) + 1
        self._last = (exchange, text)
        if exchange.time - self._since < _FOLDED_FOR:
            return []
        self._since = exchange.time
        return self.flush()

    def flush(self) -> list[str]:
        """Return the line of what is folded now, if anything is."""
        if self._last is None:
            return []
        exchange, text = self._last
        counts, self._counts, self._last = self._counts, {}, None
        if sum(counts.values()) == 1:
            return [self._line(exchange, text)]
        folded = joined(*(what % number for what, number in counts.items()))
        clock = f"{exchange.time:%H:%M:%S}.{exchange.time.microsecond // 1000:03}"
        indent = " " * (show.CONNECTION_WIDTH + 15)
        return [show.rendered([("dim", f"{clock} {indent}{folded}")], self.colour)]

    def skip(self, exchange: Exchange) -> None:
        """Take an exchange that is not to be shown: only learn from it."""
        learn(exchange, self._names)

    def _line(self, exchange: Exchange, text: ExchangeText) -> str:
        return show.line_of(exchange, text, self.colour, self.width)
