"""The work that threads do for the page, for as long as somebody asks for it.

::

    filter ─▶ Searches ─ batch by batch ─▶ MatchingExchanges, at any time: so many by now
    key    ─▶ Results ─ as a whole ───▶ "not yet" … the answer

The last few of each are kept. A search or a result that nobody asks for any more makes room for
others; such a result is not even finished.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import attrs
import trio

from kproxy.defects import defect
from kproxy.exchange.filter import Filter, FilterError, parse
from kproxy.levels import Logger
from kproxy.look.page.findings import GrowingFindings
from kproxy.look.page.found import MatchingExchanges
from kproxy.net.control import Answer, RequestRefused, json_answer, refusal
from kproxy.recording import RecordingError
from kproxy.recording.following import Follow

T = TypeVar("T")
Found = TypeVar("Found", MatchingExchanges, GrowingFindings)
OnProgress = Callable[[int], None]
"""Takes the bytes read so far; it raises what ends the work."""
FILTERS_KEPT = 8
RESULTS_KEPT = 16
RESULTS_AT_ONCE = 2
SEARCHES_AT_ONCE = 2
ASKED_SECONDS = 15.0
"""A page that is open asks again before that."""
LATER_SECONDS = 1.0
"""What a page shows at the same time it asks for within that."""


@attrs.define(eq=False)
class Search(Generic[Found]):
    """A pass over the recordings: for one filter, or for findings."""

    found: Found
    size_bytes: int
    """The size of the recordings when it began."""
    asked: float = attrs.field(factory=time.monotonic)
    """The last time that somebody asked for it, in seconds of the monotonic clock."""
    error: str | None = None

    def stands(self, size_bytes: int) -> bool:
        """Return whether it need not begin again, as one that failed does when the recordings have
        another size."""
        return self.error is None or self.size_bytes == size_bytes


@attrs.define(eq=False)
class Searches:
    """The searches in recordings, by the text of their filter."""

    paths: Sequence[Path | str]
    nursery: trio.Nursery
    log: Logger
    _by_filter: OrderedDict[str, Search[MatchingExchanges]] = attrs.Factory(OrderedDict)
    _findings: Search[GrowingFindings] | None = None
    """None until somebody asks."""
    _threads: trio.CapacityLimiter = attrs.Factory(lambda: trio.CapacityLimiter(2 * FILTERS_KEPT))
    """A search of a recording that grows has its own for as long as somebody asks for it …"""
    _turns: threading.Semaphore = attrs.Factory(lambda: threading.Semaphore(SEARCHES_AT_ONCE))
    """… but only so many read at the same time."""

    @property
    def files(self) -> Sequence[Path | str]:
        """The recordings, with the files that continued them since.

        Raises: RequestRefused, if there are none.
        """
        if not self.paths:
            raise RequestRefused(410, "kproxy records nothing here: there is nothing to show")
        files = (search.found.files for search in self._by_filter.values())
        return list(max(files, key=len, default=())) or self.paths

    def size_bytes(self) -> int:
        """Return the size of the recordings now.

        Raises: RequestRefused, if there are none.
        """
        found = 0
        for path in self.files:
            with contextlib.suppress(OSError):
                found += os.stat(path).st_size
        return found

    def find(self, text: str) -> Search[MatchingExchanges]:
        """Return the search for a filter; begin it, if it is new.

        Raises: RequestRefused.
        """
        size_bytes, search = self.size_bytes(), self._by_filter.get(text)
        if search is None or not search.stands(size_bytes):
            found = MatchingExchanges(self._there(), parsed_filter(text), self._follow())
            if text not in self._by_filter and len(self._by_filter) == FILTERS_KEPT:
                self._forget_one()
            search = self._by_filter[text] = Search(found, size_bytes)
            gives_way = partial(self._gives_way, search)
            self.nursery.start_soon(self._look, search, partial(found.read, self._turns, gives_way))
        self._by_filter.move_to_end(text)
        search.asked = time.monotonic()
        return search

    def _forget_one(self) -> None:
        """End the oldest search that nobody asks for; one that is done will be made again."""
        searches = self._by_filter.items()
        old = next((key for key, each in searches if each.found.done or not _is_asked(each)), None)
        if old is None:
            what = f"{FILTERS_KEPT} other filters are looked for: close a page, and ask again"
            raise RequestRefused(503, what)
        self._by_filter.pop(old).found.stop()

    def findings(self) -> Search[GrowingFindings]:
        """Return the search for findings; begin it, if nobody has.

        Raises: RequestRefused.
        """
        size_bytes, search = self.size_bytes(), self._findings
        if search is None or not search.stands(size_bytes):
            folders = self.paths if all(map(os.path.isdir, self.paths)) else ()
            given = self._is_searching, self._follow(), folders
            found = GrowingFindings(self._there(), *given)
            search = self._findings = Search(found, size_bytes)
            may_read = partial(self._may_read, search)
            self.nursery.start_soon(self._look, search, partial(found.read, may_read))
        search.asked = time.monotonic()
        return search

    def share_read(self, found: MatchingExchanges) -> float:
        """Return which part of the recordings a search has read."""
        return min(0.99, found.read_bytes / max(1, self.size_bytes()))

    def _is_searching(self) -> bool:
        """Return whether somebody waits for a search: one that was up to date shows what there is,
        however much is written now."""
        asked = [each.found for each in [*self._by_filter.values()] if _is_asked(each)]
        return any(found.is_behind and not found.grows for found in asked)

    def _gives_way(self, search: Search[Any]) -> bool:
        """Return whether somebody waits for a search that was asked for later than this one."""
        later = search.asked + LATER_SECONDS
        asked = (each for each in [*self._by_filter.values()] if _is_asked(each))
        return any(each.asked > later and each.found.is_behind for each in asked)

    def _may_read(self, search: Search[Any]) -> bool:
        return _is_asked(search) and not self._gives_way(search)

    def _follow(self) -> Follow:
        """Return how far to follow: files may continue a recording that was seen to grow."""
        grows = any(each.found.grows for each in self._by_filter.values())
        return Follow.ALWAYS if grows else Follow.WHILE_WRITTEN

    def _there(self) -> Sequence[Path | str]:
        """Return the files without those that were removed; all of them, if all were."""
        return [path for path in self.files if os.path.exists(path)] or self.paths

    async def _look(self, search: Search[Any], look: Callable[[], None]) -> None:
        """Look for exchanges or findings, as long as somebody wants to know."""
        try:
            await trio.to_thread.run_sync(look, abandon_on_cancel=True, limiter=self._threads)
        except (RecordingError, OSError) as error:
            search.error = str(error)
        except Exception as error:
            search.error = _log_defect(self.log, "the search", error)


@attrs.define(eq=False)
class _WholeAnswer:
    """An answer that a thread makes as a whole."""

    size_bytes: int
    """The size of the recordings when it began: it is made again when they have grown."""
    answer: Answer | None = None
    """None until it is made."""
    taken: bool = False
    """True once somebody has got the answer."""
    asked: float = attrs.field(factory=time.monotonic)
    """The last time that somebody asked for it."""


class _Unasked(Exception):
    """Nobody asks for a result any more."""


@attrs.frozen(eq=False)
class Results:
    """The answers that take a pass over the recordings, by what they are of."""

    size_bytes: Callable[[], int]
    """Returns the size of the recordings now."""
    nursery: trio.Nursery
    log: Logger
    _by_key: OrderedDict[tuple[str, ...], _WholeAnswer] = attrs.Factory(OrderedDict)
    _threads: trio.CapacityLimiter = attrs.Factory(lambda: trio.CapacityLimiter(RESULTS_AT_ONCE))

    def answer(self, key: tuple[str, ...], make: Callable[[OnProgress], Any]) -> Answer:
        """Return what a thread has made, or that it is not done; begin with it, if it is new.

        Raises: RequestRefused, if there is too much to do.
        """
        result = self._by_key.get(key)
        if result is None or (result.taken and result.size_bytes != self.size_bytes()):
            if result is None:
                self._make_room()
            result = self._by_key[key] = _WholeAnswer(self.size_bytes())
            self.nursery.start_soon(self._make, key, result, make)
        self._by_key.move_to_end(key)
        result.asked = time.monotonic()
        result.taken = result.answer is not None
        return result.answer or json_answer({"done": False})

    def _make_room(self) -> None:
        """Forget the oldest result that is done, or that nobody asks for."""
        if len(self._by_key) < RESULTS_KEPT:
            return
        results = self._by_key.items()
        old = next((key for key, each in results if each.answer or not _is_asked(each)), None)
        if old is None:
            what = f"kproxy makes {RESULTS_KEPT} other statistics, records and stories: ask later"
            raise RequestRefused(503, what)
        del self._by_key[old]

    async def _make(
        self, key: tuple[str, ...], result: _WholeAnswer, make: Callable[[OnProgress], Any]
    ) -> None:
        def check(done_bytes: int = 0) -> None:
            if not _is_asked(result):
                raise _Unasked

        def run() -> Any:
            check()  # others may have been first for long
            return make(check)

        try:
            made = await in_thread(run, self._threads)
            result.answer = json_answer({"done": True, **made})
        except _Unasked:
            if self._by_key.get(key) is result:
                del self._by_key[key]
        except RequestRefused as error:
            result.answer = error.answer
        except Exception as error:
            result.answer = refusal(500, _log_defect(self.log, key[0], error))


async def in_thread(work: Callable[[], T], limiter: trio.CapacityLimiter) -> T:
    """Return what a thread makes.

    Raises: RequestRefused, if a recording cannot be read; what else `work` raises.
    """
    try:
        return await trio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=limiter)
    except (RecordingError, OSError) as error:
        raise RequestRefused(410, str(error)) from None


def parsed_filter(text: str) -> Filter | None:
    """Return the filter that a text means; None for all exchanges.

    Raises: RequestRefused, which names the column of a mistake.
    """
    try:
        return parse(text) if text.strip() else None
    except FilterError as error:
        raise RequestRefused(422, str(error), key=str(error.column)) from None


def _is_asked(what: Search[Any] | _WholeAnswer) -> bool:
    return time.monotonic() - what.asked < ASKED_SECONDS


def _log_defect(log: Logger, what: str, error: Exception) -> str:
    text = f"{what} failed {defect(error)}"
    log(text)
    return text
