"""What the page asks for: rows, an overview of time, one exchange, the keys of filters.

::

    GET  /rows?filter=&begin=&end=&known=&name=                    GET  /keys
    GET  /overview?filter=             GET  /live                  whether a proxy runs
    GET  /exchange?name=               GET  /story?of=connection:3
    GET  /statistics?filter=           GET  /records?filter=&topic=
    GET  /lanes?filter=                GET  /   /static/NAME       the page itself

What takes time is done in threads of its own kind: a filter step by step, each answer saying how
far it is; statistics and stories as a whole, each answer saying whether they are there. The last
few are kept; a statistic or story that nobody asks for any more is not finished.

Invariants: no request waits for a whole pass; rows are read in portions, which wait for no other
kind; after ANSWER_SECONDS the answer says that it took too long. No exception ends the server.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

import attrs
import trio

from kproxy.exchange.filter import Filter, FilterError, matching, parse
from kproxy.exchange.filter.keys import KEYS, PATHS, QUALITIES
from kproxy.net.control import (
    Answer,
    ControlCall,
    RequestRefused,
    Route,
    Routes,
    json_answer,
    refusal,
)
from kproxy.net.defects import defect
from kproxy.printable import printable
from kproxy.protocol.schema import api_name
from kproxy.recording import RecordingError, read
from kproxy.view.stats_lines import stats_of
from kproxy.view.stream import Stream
from kproxy.web import shown
from kproxy.web.found import GROWS_SECONDS, Found
from kproxy.web.records import records_of
from kproxy.why.stories import SUBJECTS, story

T = TypeVar("T")
OnProgress = Callable[[int], None]
"""Takes the bytes read so far; it raises what ends the work."""
ROWS_MAX = 500
FILTERS_KEPT = 8
WORKS_KEPT = 16
WORKS_AT_ONCE = 2
READS_AT_ONCE = 4
ASKED_SECONDS = 15.0
"""A page that is open asks again before that."""
ANSWER_SECONDS = 15.0
KNOWN_SECONDS = 1.0
"""Longest wait of those who ask for more than they know."""
_NAMES_MAX = 3
_STATIC = {
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
    ".css": "text/css",
    ".html": "text/html; charset=utf-8",
}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self';"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = (
    ("Content-Security-Policy", _POLICY),
    ("Referrer-Policy", "no-referrer"),
)


@attrs.define(eq=False)
class _Search:
    found: Found
    size_bytes: int
    """Of the recordings, when it was begun: one that failed begins again when that is another."""
    asked: float = attrs.field(factory=time.monotonic)
    """When somebody last asked for it."""
    stopped: bool = False
    error: str | None = None


@attrs.define(eq=False)
class _Work:
    """What a thread makes, as a whole."""

    size_bytes: int
    """Of the recordings, when it was begun: it is made again when they have grown."""
    answer: Answer | None = None
    """None until it is made."""
    taken: bool = False
    """Whether somebody has got it."""
    asked: float = attrs.field(factory=time.monotonic)
    """When somebody last asked for it."""


class _Unasked(Exception):
    """Nobody asks for a work any more."""


@attrs.frozen(eq=False)
class Pages:
    """The routes over recordings."""

    paths: Sequence[Path | str]
    nursery: trio.Nursery
    """Where filters are looked for."""
    log: Callable[[str], None]
    _searches: OrderedDict[str, _Search] = attrs.field(factory=OrderedDict, init=False)
    _works: OrderedDict[tuple[str, ...], _Work] = attrs.field(factory=OrderedDict, init=False)
    # Those who wait for one kind of work do not wait for another.
    _search_threads: trio.CapacityLimiter = attrs.field(
        factory=lambda: trio.CapacityLimiter(2 * FILTERS_KEPT), init=False
    )
    _work_threads: trio.CapacityLimiter = attrs.field(
        factory=lambda: trio.CapacityLimiter(WORKS_AT_ONCE), init=False
    )
    _read_threads: trio.CapacityLimiter = attrs.field(
        factory=lambda: trio.CapacityLimiter(READS_AT_ONCE), init=False
    )

    def routes(self) -> Routes:
        """Return the routes of the page."""
        answers = {
            "/": self.page,
            "/static/{name}": self.static,
            "/rows": self.rows,
            "/overview": self.overview,
            "/exchange": self.exchange,
            "/keys": self.keys,
            "/statistics": self.statistics,
            "/story": self.story,
            "/records": self.records,
            "/lanes": self.lanes,
            "/live": self.live,
        }
        return {
            path: {"GET": Route(run, private=True, seconds=ANSWER_SECONDS)}
            for path, run in answers.items()
        }

    # ---- the page itself

    async def page(self, call: ControlCall) -> Answer:
        """Return the page."""
        return _file("page.html")

    async def static(self, call: ControlCall) -> Answer:
        """Return a file of the page."""
        return _file(call.words[0])

    async def keys(self, call: ControlCall) -> Answer:
        """Return the keys of the filter language, with what they mean."""
        keys = [{"key": f"{each.name}:", "help": each.help} for each in KEYS]
        keys += [{"key": each.name.removesuffix("PATH"), "help": each.help} for each in PATHS]
        qualities = [{"key": f"is:{name}", "help": q.help} for name, q in QUALITIES.items()]
        return json_answer({"keys": keys + qualities})

    async def live(self, call: ControlCall) -> Answer:
        """Say that no proxy runs here, and what is shown: its control server answers this
        otherwise."""
        names = ", ".join(Path(each).name for each in self.paths[:_NAMES_MAX])
        return json_answer({"live": False, "title": printable(names)})

    # ---- exchanges

    async def rows(self, call: ControlCall) -> Answer:
        """Return rows, and how many there are by now. Who already knows of so many gets the answer
        when there are more, or after a while; who names an exchange gets its place."""
        search = self._search(call.query.get("filter", ""))
        begin, end = (_integer(call, name) for name in ("begin", "end"))
        found = search.found
        if "known" in call.query:
            known = _integer(call, "known")
            with trio.move_on_after(KNOWN_SECONDS):
                while len(found) == known and not found.done and search.error is None:
                    await trio.sleep(GROWS_SECONDS)
        done = found.done  # before the rows: then they are all there
        end = min(end, begin + ROWS_MAX)
        some = await self._in_thread(lambda: found.made(begin, end, shown.row))
        name = call.query.get("name", "")
        place = await self._in_thread(lambda: found.place(name)) if name else None
        return json_answer(
            {
                "rows": some,
                "count": len(found),
                "done": done,
                "grows": found.grows,
                "place": place,
                "notices": found.notices,
                "error": search.error,
            }
        )

    async def overview(self, call: ControlCall) -> Answer:
        """Return how many exchanges there are over time, by API."""
        found = self._search(call.query.get("filter", "")).found
        width_ms, by_slot = await self._in_thread(found.by_api)
        counts = {
            slot: {api_name(key) if key >= 0 else "?": count for key, count in by_api.items()}
            for slot, by_api in by_slot.items()
        }
        return json_answer({"slot_ms": width_ms, "counts": counts})

    async def lanes(self, call: ControlCall) -> Answer:
        """Return how many exchanges connections had over time, those with most."""
        found = self._search(call.query.get("filter", "")).found
        return json_answer(await self._in_thread(lambda: shown.lanes(found)))

    async def exchange(self, call: ControlCall) -> Answer:
        """Return one exchange in full."""
        name, files = call.query.get("name", "").removeprefix("#"), self._files
        wanted = _matching("number", name)
        found = await self._in_thread(lambda: _first(files, wanted))
        if found is None:
            raise RequestRefused(404, f"there is no exchange {name}")
        return json_answer(found)

    # ---- what takes time

    async def statistics(self, call: ControlCall) -> Answer:
        """Return the statistics of a filter, once they are made."""
        text = call.query.get("filter", "")
        wanted, files = _parsed(text), self._files

        def make(on_progress: OnProgress) -> Any:
            stream = Stream(files, wanted, on_progress=on_progress)
            return shown.statistics(stats_of(stream, processes=1))

        return self._made(("statistics", text), make)

    async def records(self, call: ControlCall) -> Answer:
        """Return the records of a topic, once they are read."""
        text, topic = call.query.get("filter", ""), call.query.get("topic", "")
        wanted = _parsed(text)
        if not topic:
            raise RequestRefused(422, "name a topic")
        _matching("topic", topic)
        make = partial(records_of, self._files, wanted, topic)
        return self._made(("records", topic, text), make)

    async def story(self, call: ControlCall) -> Answer:
        """Return the story of a subject, `connection:3`, once it is told."""
        of = call.query.get("of", "")
        key, _, value = of.partition(":")
        if key not in SUBJECTS or SUBJECTS[key].within or not value:
            raise RequestRefused(422, f"{of!r} has no story")
        if SUBJECTS[key].numbered:
            _whole_number(key, value.rpartition("#")[2])
        files = self._files

        def tell(on_progress: OnProgress) -> Any:
            sentences, _ = story(files, key, value, on_progress=on_progress)
            return {"of": of, "sentences": list(map(printable, sentences))}

        return self._made(("story", of), tell)

    def _made(self, key: tuple[str, ...], make: Callable[[OnProgress], Any]) -> Answer:
        """Return what a thread has made; begin with it, if it is new.

        Raises: RequestRefused, if there is too much to do.
        """
        work = self._works.get(key)
        if work is None or (work.taken and work.size_bytes != self._size_bytes()):
            if work is None:
                self._make_room()
            work = self._works[key] = _Work(self._size_bytes())
            self.nursery.start_soon(self._make, key, work, make)
        self._works.move_to_end(key)
        work.asked = time.monotonic()
        work.taken = work.answer is not None
        return work.answer or json_answer({"done": False})

    def _make_room(self) -> None:
        """Forget the oldest work that is done, or that nobody asks for."""
        if len(self._works) < WORKS_KEPT:
            return
        works = self._works.items()
        old = next((key for key, each in works if each.answer or not _is_asked(each)), None)
        if old is None:
            what = f"kproxy makes {WORKS_KEPT} other statistics, records and stories: ask later"
            raise RequestRefused(503, what)
        del self._works[old]

    async def _make(
        self, key: tuple[str, ...], work: _Work, make: Callable[[OnProgress], Any]
    ) -> None:
        def check(done_bytes: int = 0) -> None:
            if not _is_asked(work):
                raise _Unasked

        def run() -> Any:
            check()  # others may have been first for long
            return make(check)

        try:
            made = await self._in_thread(run, self._work_threads)
            work.answer = json_answer({"done": True, **made})
        except _Unasked:
            if self._works.get(key) is work:
                del self._works[key]
        except RequestRefused as error:
            work.answer = error.answer
        except Exception as error:
            work.answer = refusal(500, self._defect(key[0], error))

    def _defect(self, what: str, error: Exception) -> str:
        text = f"{what} failed {defect(error)}"
        self.log(text)
        return text

    @property
    def _files(self) -> Sequence[Path | str]:
        """The recordings, with the files that continued them since.

        Raises: RequestRefused, if there are none.
        """
        if not self.paths:
            raise RequestRefused(410, "kproxy records nothing here: there is nothing to show")
        files = (search.found.files for search in self._searches.values())
        return list(max(files, key=len, default=())) or self.paths

    def _size_bytes(self) -> int:
        found = 0
        for path in self._files:
            with contextlib.suppress(OSError):
                found += os.stat(path).st_size
        return found

    def _search(self, text: str) -> _Search:
        """Return the search for a filter; begin it, if it is new.

        Raises: RequestRefused.
        """
        size_bytes, search = self._size_bytes(), self._searches.get(text)
        if search is not None and search.error is not None and search.size_bytes != size_bytes:
            search = None
        if search is None:
            found = Found(self.paths, _parsed(text))
            if text not in self._searches and len(self._searches) == FILTERS_KEPT:
                self._forget_one()
            search = self._searches[text] = _Search(found, size_bytes)
            self.nursery.start_soon(self._look, search)
        self._searches.move_to_end(text)
        search.asked = time.monotonic()
        return search

    def _forget_one(self) -> None:
        """End the oldest search that nobody asks for; one that is done will be made again."""
        searches = self._searches.items()
        old = next((key for key, each in searches if each.found.done or not _is_asked(each)), None)
        if old is None:
            what = f"{FILTERS_KEPT} other filters are looked for: close a page, and ask again"
            raise RequestRefused(503, what)
        self._searches.pop(old).stopped = True

    async def _look(self, search: _Search) -> None:
        """Look for the exchanges of a filter, as long as somebody wants to know."""

        def look() -> None:
            for _ in search.found.read():
                if search.stopped:
                    return

        try:
            await trio.to_thread.run_sync(
                look, abandon_on_cancel=True, limiter=self._search_threads
            )
        except (RecordingError, OSError) as error:
            search.error = str(error)
        except Exception as error:
            search.error = self._defect("the search", error)

    async def _in_thread(
        self, work: Callable[[], T], limiter: trio.CapacityLimiter | None = None
    ) -> T:
        limiter = limiter or self._read_threads
        try:
            return await trio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=limiter)
        except (RecordingError, OSError) as error:
            raise RequestRefused(410, str(error)) from None


def _is_asked(what: _Work | _Search) -> bool:
    return time.monotonic() - what.asked < ASKED_SECONDS


def _first(files: Sequence[Path | str], wanted: Filter) -> dict[str, Any] | None:
    """Return the first exchange that matches, in full. The list says what is wrong with files."""
    return next(map(shown.whole, read(files, wanted, told=lambda note: None)), None)


def _matching(key: str, text: str) -> Filter:
    try:
        return matching(key, text)
    except ValueError as error:
        raise RequestRefused(422, str(error)) from None


def _parsed(text: str) -> Filter | None:
    try:
        return parse(text) if text.strip() else None
    except FilterError as error:
        raise RequestRefused(422, str(error), key=str(error.column)) from None


def _integer(call: ControlCall, name: str) -> int:
    return _whole_number(name, call.query.get(name, ""))


def _whole_number(name: str, text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 15:
        raise RequestRefused(422, f"{name} is not a whole number: {text!r}")
    return int(text)


def _file(name: str) -> Answer:
    folder = resources.files("kproxy.web") / "files"
    suffix = Path(name).suffix
    if name not in {each.name for each in folder.iterdir()} or suffix not in _STATIC:
        raise RequestRefused(404, f"there is no {name!r}")
    return Answer(200, (folder / name).read_bytes(), _STATIC[suffix], _HEADERS)
