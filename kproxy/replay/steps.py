"""Work in steps: a request that names a million things holds up nobody.

::

    request ─▶ decode ─▶ handler ─▶ encode ─▶ release        generators, a step per element
                              │
                              └── STEPS_MAX at a time ─▶ WorkTurns ─▶ the others ─▶ …

A handler with a loop over what the request names is a generator: it yields before each element,
and returns the response. Other requests may be handled where it yields, as brokers do, whose
threads work on several requests at once; those of the same connection wait.

Steps are counted, not timed, so that a machine stays a function of bytes and time.
"""

from __future__ import annotations

import enum
import gc
from collections import deque
from collections.abc import Callable, Generator, Iterable
from typing import Any

from kproxy.replay.timers import Timers

Steps = Generator[None, None, Any]
"""Work in steps, and its result."""

STEPS_MAX = 500
"""At most this many steps are taken before others get their turn: 1 to 4 ms."""
AT_ONCE = 4
"""So many works go on in turns; others wait until one is done. Each holds what its request has
become, which is twenty times its bytes."""
_FEW, _FREED_PER_STEP = 1000, 10
_TOPIC_NAMES = ("name", "topic_id", "topic")
"""The fields that name a topic, in requests and in the responses to them."""


class Work(enum.Enum):
    """What goes on in turns."""

    NONE = "no work: a connection waits for its turn"
    NEW = "work that begins"
    BEGUN = "work that goes on"


OnTurn = Callable[[int], object]
"""Called at its turn, with the time."""


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


def by_partition(
    topics: Iterable[Any], answer: Callable[[Any, Any], Any], result: Callable[..., Any]
) -> Steps:
    """Return a `result` for each topic, named as that is, with the answers to its partitions."""
    results = []
    for topic in topics:
        yield
        names = {each: getattr(topic, each) for each in _TOPIC_NAMES if hasattr(topic, each)}
        partitions = []
        for one in topic.partitions:
            yield
            partitions.append(answer(topic, one))
        results.append(result(**names, partitions=partitions))
    return results


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


class WorkTurns:
    """Work that goes on in turns, the longest waiting first, one turn each time the timers run.

    ::

        later ─▶ turns of connections, and AT_ONCE works ─▶ go_on ─▶ later …
        later(work=NEW) ─▶ behind, until one of the works is done ─┘

    Meanwhile Python collects no garbage in cycles: it would look at all elements of a request at
    once, for half a second, and they are in no cycle. Of a million offsets that stay behind, it
    would look at each afterwards: they count as there from the beginning.
    """

    def __init__(self, timers: Timers) -> None:
        self._timers = timers
        self._waiting: deque[tuple[OnTurn, bool]] = deque()
        """What goes on at its turn, and whether that is work."""
        self._behind: deque[OnTurn] = deque()
        """Works that have not begun."""
        self._working = 0
        """The number of works that are in `_waiting`."""
        self._is_timed = False
        self._collects = False
        """True if collection is to go on when nothing waits."""

    def later(self, go_on: OnTurn, now: int, work: Work = Work.NONE) -> None:
        """Call `go_on` at its turn; new work, when few others go on."""
        if work is Work.NEW and (self._behind or self._working >= AT_ONCE):
            self._behind.append(go_on)
        else:
            self._wait(go_on, work is not Work.NONE)
        if not self._is_timed:
            self._is_timed = True
            self._timers.at(now + 1, self._next)
        if gc.isenabled():
            gc.disable()
            self._collects = True

    def _wait(self, go_on: OnTurn, is_work: bool) -> None:
        self._working += is_work
        self._waiting.append((go_on, is_work))

    def _next(self, now: int) -> None:
        go_on, is_work = self._waiting.popleft()
        self._working -= is_work
        try:
            go_on(now)
        finally:
            while self._behind and self._working < AT_ONCE:
                self._wait(self._behind.popleft(), True)
            if self._waiting:
                self._timers.at(now + 1, self._next)
            else:
                self.end()

    def end(self) -> None:
        """Drop what waits."""
        self._waiting.clear()
        self._behind.clear()
        self._working, self._is_timed = 0, False
        if self._collects:
            if gc.get_count()[0] > gc.get_threshold()[0]:
                gc.freeze()
            gc.enable()
            self._collects = False
