"""Work in steps: a request that names a million things holds up nobody.

::

    request ─▶ decode ─▶ handler ─▶ encode ─▶ release        generators, a step per element
                              │
                              └── STEPS_MAX at a time ─▶ Turns ─▶ the others ─▶ …

A handler with a loop over what the request names is a generator: it yields before each element,
and returns the response. Other requests may be handled where it yields, as brokers do, whose
threads work on several requests at once; those of the same connection wait.

Steps are counted, not timed, so that a machine stays a function of bytes and time.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable, Generator
from typing import Any

from kproxy.replay.timers import Timers

Steps = Generator[None, None, Any]
"""Work in steps, and its result."""

STEPS_MAX = 500
"""At most this many steps are taken before others get their turn: 1 to 4 ms."""


_FEW, _FREED_PER_STEP = 1000, 10


def finished(work: Steps) -> Any:
    """Take all steps at once, and return the result."""
    try:
        while True:
            next(work)
    except StopIteration as done:
        return done.value


def counted(work: Steps) -> Steps:
    """Take all steps, and return the result and their number."""
    count = 0
    try:
        while True:
            next(work)
            count += 1
            yield
    except StopIteration as done:
        return done.value, count


def release(message: Any) -> Steps:
    """Free a message that nobody else has, element by element; for a million at once, Python takes
    a fifth of a second. Its arrays of messages are empty afterwards. Those of plain values, which
    may be another's, stay as they are: they take a tenth of the time."""
    left = [message]
    while left:
        yield
        each = left.pop()
        for name in getattr(each, "__slots__", ()):
            array = getattr(each, name)
            if not isinstance(array, list) or not array or not hasattr(array[0], "__slots__"):
                continue
            if len(array) <= _FEW:  # each may hold many itself
                left += array
            while array:
                del array[-_FREED_PER_STEP:]
                yield


class Turns:
    """Work that goes on in turns, the longest waiting first, one turn each time the timers run.

    Meanwhile Python collects no garbage in cycles: it would look at all elements of a request at
    once, for half a second, and they are in no cycle. Of a million offsets that stay behind, it
    would look at each afterwards: they count as there from the beginning.
    """

    def __init__(self, timers: Timers) -> None:
        self._timers = timers
        self._waiting: deque[Callable[[int], object]] = deque()
        self._collects = False
        """True if collection is to go on when nothing waits."""

    def later(self, go_on: Callable[[int], object], now: int) -> None:
        """Call `go_on` at its turn."""
        if not self._waiting:
            self._timers.at(now + 1, self._next)
        self._waiting.append(go_on)
        if gc.isenabled():
            gc.disable()
            self._collects = True

    def _next(self, now: int) -> None:
        go_on = self._waiting.popleft()
        if self._waiting:
            self._timers.at(now + 1, self._next)
        try:
            go_on(now)
        finally:
            if not self._waiting:
                self.end()

    def end(self) -> None:
        """Drop what waits."""
        self._waiting.clear()
        if self._collects:
            if gc.get_count()[0] > gc.get_threshold()[0]:
                gc.freeze()
            gc.enable()
            self._collects = False
