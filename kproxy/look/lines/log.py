"""The log: lines on stderr that never block the proxy, are limited in rate, and cannot be forged.

::

    any thread ─ log(text) ─▶ printable ─▶ Repeats ─▶ FORMATS ─▶ TextOutput ─▶ stderr
                                              └ "and 2,998 more like this in the last minute"

Log lines quote peers and files: this is the one place that makes them one printable line.
Lines that differ only in numbers, addresses and names are of one kind; of each kind, up to
`SHOWN_MAX` are written a minute and the others are counted.
"""

from __future__ import annotations

import datetime
import json
import re
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TextIO

import attrs

from kproxy.defects import DEFECT
from kproxy.levels import Level
from kproxy.look.lines.output import FINISH_SECONDS, TextOutput
from kproxy.printable import printable

SHOWN_MAX = 10
"""Lines of one kind that are written within `PERIOD_NS`."""
PERIOD_NS = 60_000_000_000
KINDS_MAX = 256
"""Kinds that are counted separately; all further ones are counted together."""
_LINE_LENGTH_MAX = 2_000

PREFIX = "kproxy: "

FORMATS: dict[str, Callable[[str, str], str]] = {
    "text": lambda level, line: line,
    "time": lambda level, line: f"{_now()} {level} {line}",
    "json": lambda level, line: json.dumps(
        {"time": _now(), "level": level, "message": line.removeprefix(PREFIX)}
    ),
}
"""--log-format → a line of the log from its level and text."""


def _now() -> str:
    at = datetime.datetime.now(datetime.UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


_VARIES = re.compile(r"'[^']*'|\"[^\"]*\"|[\w.:\[\]-]*\d[\w.:\[\]-]*")
"""The parts that differ between lines of one kind: quotations, and words with digits."""


@attrs.define(eq=False)
class _KindCounts:
    """Counts of the lines of one kind in the current period."""

    started_ns: int
    shown: int = 0
    held_back: int = 0
    last_held_back: str = ""


@attrs.define(eq=False)
class Repeats:
    """Decides which lines are written and counts the others; time (`now`, ns) is an argument."""

    _kinds: dict[str, _KindCounts] = attrs.field(factory=dict, init=False)

    def lines(self, text: str, now: int) -> list[str]:
        """Return the lines to write for `text`: the line, if it is not held back, and counts."""
        key = _VARIES.sub("#", text)
        kind = self._kinds.get(key)
        if kind is None and len(self._kinds) >= KINDS_MAX:
            key = ""
            kind = self._kinds.get(key)
        due = []
        if kind is not None and now - kind.started_ns >= PERIOD_NS:
            due = self._end(key, kind)
            kind = None
        if kind is None:
            kind = self._kinds[key] = _KindCounts(now)
        if kind.shown < SHOWN_MAX:
            kind.shown += 1
            return [*due, text]
        kind.held_back += 1
        kind.last_held_back = text
        return due

    def due(self, now: int) -> list[str]:
        """Return the counts of the periods that have ended."""
        ended = [
            (key, kind) for key, kind in self._kinds.items() if now - kind.started_ns >= PERIOD_NS
        ]
        return [line for key, kind in ended for line in self._end(key, kind)]

    def finish(self) -> list[str]:
        """Return all counts, at the end of the log."""
        return [line for key, kind in list(self._kinds.items()) for line in self._end(key, kind)]

    def _end(self, key: str, kind: _KindCounts) -> list[str]:
        del self._kinds[key]
        if not kind.held_back:
            return []
        more = f"and {kind.held_back:,} more like this in the last minute"
        return [f"{more}: {kind.last_held_back}"]


class LineLog:
    """Writes log lines to a stream; `log(text)` from any thread, never blocks.

    Resource handling: a context that ends with all lines written, or after a short time.
    """

    def __init__(
        self,
        stream: TextIO,
        clock: Callable[[], int] = time.monotonic_ns,
        tick_seconds: float = 1.0,
        log_format: str = "text",
    ) -> None:
        self._format = FORMATS[log_format]
        self._repeats = defaultdict[Level, Repeats](Repeats)
        self._clock = clock
        self._lock = threading.Lock()
        self._output = TextOutput(stream, self._dropped, self._tick, tick_seconds=tick_seconds)

    def __call__(self, text: str, level: Level = "info", /) -> None:
        """Log one line."""
        with self._lock:
            line = printable(text[:_LINE_LENGTH_MAX])
            lines = self._repeats[level].lines(line, self._clock())
        self.write(*lines, prefix=PREFIX, level=level)

    def write(self, *lines: str, prefix: str = "", level: Level = "info") -> None:
        """Write lines without a limit, made printable. One without another level that tells of a
        defect is an error."""
        if lines:
            self._output.put(self._text(lines, prefix, level))

    def _text(self, lines: Sequence[str], prefix: str, level: Level) -> str:
        levels = ("error" if level == "info" and DEFECT in line else level for line in lines)
        shown = zip(levels, lines, strict=True)
        return "".join(f"{self._format(at, prefix + printable(line))}\n" for at, line in shown)

    def _dropped(self, text: str) -> str:
        return self._format("warning", PREFIX + text)

    def __enter__(self) -> LineLog:
        return self

    def __exit__(self, *exception: object) -> None:
        self.finish()

    def finish(self, seconds: float = FINISH_SECONDS) -> None:
        """Write what is left; give up after so many seconds."""
        if text := self._counts(Repeats.finish):
            self._output.put(text)
        self._output.finish(seconds)

    def _tick(self) -> str:
        return self._counts(lambda repeats: repeats.due(self._clock()))

    def _counts(self, of: Callable[[Repeats], list[str]]) -> str:
        with self._lock:
            found = [(of(repeats), level) for level, repeats in self._repeats.items()]
        return "".join(self._text(lines, PREFIX, level) for lines, level in found)
