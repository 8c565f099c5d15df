"""What the page asks for: rows, an overview of time, one exchange, the keys of filters.

::

    GET  /rows?filter=&begin=&end=&known=&name=                    GET  /keys
    GET  /overview?filter=             GET  /live                  whether a proxy runs
    GET  /exchange?name=               GET  /story?of=connection:3
    GET  /statistics?filter=           GET  /records?filter=&topic=
    GET  /lanes?filter=                GET  /   /static/NAME       the page itself

What takes time is done in a thread: a filter step by step, each answer saying how far it is;
statistics and stories as a whole, each answer saying whether they are there. The last few are kept.

Invariant: a request costs a bounded time: rows are read in portions, whatever a filter asks for.
"""

from __future__ import annotations

import os
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
from kproxy.net.control import Answer, ControlCall, RequestRefused, Route, Routes, json_answer
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
ROWS_MAX = 500
FILTERS_KEPT = 4
WORKS_KEPT = 16
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
    ("Cache-Control", "no-store"),
)


@attrs.define(eq=False)
class _Search:
    found: Found
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


@attrs.frozen(eq=False)
class Pages:
    """The routes over recordings."""

    paths: Sequence[Path | str]
    nursery: trio.Nursery
    """Where filters are looked for."""
    _searches: OrderedDict[str, _Search] = attrs.field(factory=OrderedDict, init=False)
    _works: OrderedDict[tuple[str, str], _Work] = attrs.field(factory=OrderedDict, init=False)
    _threads: trio.CapacityLimiter = attrs.field(
        factory=lambda: trio.CapacityLimiter(FILTERS_KEPT + 4), init=False
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
        return {path: {"GET": Route(run, private=True)} for path, run in answers.items()}

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
        slots = self._search(call.query.get("filter", "")).found.slots
        counts = {
            slot: {api_name(key) if key >= 0 else "?": count for (key,), count in by_api.items()}
            for slot, by_api in list(slots.counts.items())
        }
        return json_answer({"slot_ms": slots.width_ms, "counts": counts})

    async def lanes(self, call: ControlCall) -> Answer:
        """Return how many exchanges connections had over time, those with most."""
        found = self._search(call.query.get("filter", "")).found
        return json_answer(await self._in_thread(lambda: shown.lanes(found)))

    async def exchange(self, call: ControlCall) -> Answer:
        """Return one exchange in full."""
        name = call.query.get("name", "").removeprefix("#")
        try:
            wanted = matching("number", name)
            found = await self._in_thread(
                lambda: next(map(shown.whole, read(list(self._files), wanted)), None)
            )
        except ValueError as error:
            raise RequestRefused(422, str(error)) from None
        if found is None:
            raise RequestRefused(404, f"there is no exchange {name}")
        return json_answer(found)

    # ---- what takes time

    async def statistics(self, call: ControlCall) -> Answer:
        """Return the statistics of a filter, once they are made."""
        text = call.query.get("filter", "")
        wanted, files = _parsed(text), self._files
        return self._made(
            "statistics",
            text,
            lambda: shown.statistics(stats_of(Stream(files, wanted), processes=1)),
        )

    async def records(self, call: ControlCall) -> Answer:
        """Return the records of a topic, once they are read."""
        text, topic = call.query.get("filter", ""), call.query.get("topic", "")
        wanted = _parsed(text)
        if not topic:
            raise RequestRefused(422, "name a topic")
        make = partial(records_of, self._files, wanted, topic)
        return self._made("records", f"{topic} {text}", make)

    async def story(self, call: ControlCall) -> Answer:
        """Return the story of a subject, `connection:3`, once it is told."""
        of = call.query.get("of", "")
        key, _, value = of.partition(":")
        if key not in SUBJECTS or SUBJECTS[key].within or not value:
            raise RequestRefused(422, f"{of!r} has no story")

        files = self._files

        def tell() -> Any:
            sentences, _ = story(files, key, value)
            return {"of": of, "sentences": list(map(printable, sentences))}

        return self._made("story", of, tell)

    def _made(self, kind: str, text: str, make: Callable[[], Any]) -> Answer:
        """Return what a thread has made; begin with it, if it is new."""
        work = self._works.get((kind, text))
        if work is None or (work.taken and work.size_bytes != self._size_bytes()):
            work = self._works[kind, text] = _Work(self._size_bytes())
            self.nursery.start_soon(self._make, work, make)
            if len(self._works) > WORKS_KEPT:
                self._works.popitem(last=False)
        self._works.move_to_end((kind, text))
        work.taken = work.answer is not None
        return work.answer or json_answer({"done": False})

    async def _make(self, work: _Work, make: Callable[[], Any]) -> None:
        try:
            made = await trio.to_thread.run_sync(
                make, abandon_on_cancel=True, limiter=self._threads
            )
            work.answer = json_answer({"done": True, **made})
        except (RecordingError, OSError, ValueError) as error:
            work.answer = RequestRefused(410, str(error)).answer

    @property
    def _files(self) -> Sequence[Path | str]:
        """The recordings, with the files that continued them since."""
        files = (search.found.files for search in self._searches.values())
        return list(max(files, key=len, default=())) or self.paths

    def _size_bytes(self) -> int:
        return sum(os.stat(path).st_size for path in self._files if os.path.isfile(path))

    def _search(self, text: str) -> _Search:
        """Return the search for a filter; begin it, if it is new.

        Raises: RequestRefused.
        """
        if not self.paths:
            raise RequestRefused(410, "kproxy records nothing here: there is nothing to show")
        search = self._searches.get(text)
        if search is None:
            search = self._searches[text] = _Search(Found(self.paths, _parsed(text)))
            run = partial(trio.to_thread.run_sync, abandon_on_cancel=True, limiter=self._threads)
            self.nursery.start_soon(run, _look, search)
            if len(self._searches) > FILTERS_KEPT:
                self._searches.popitem(last=False)[1].stopped = True
        self._searches.move_to_end(text)
        return search

    async def _in_thread(self, work: Callable[[], T]) -> T:
        try:
            return await trio.to_thread.run_sync(work, limiter=self._threads)
        except (RecordingError, OSError) as error:
            raise RequestRefused(410, str(error)) from None


def _parsed(text: str) -> Filter | None:
    try:
        return parse(text) if text.strip() else None
    except FilterError as error:
        raise RequestRefused(422, str(error), key=str(error.column)) from None


def _look(search: _Search) -> None:
    """Look for the exchanges of a filter, as long as somebody wants to know."""
    try:
        for _ in search.found.read():
            if search.stopped:
                return
    except (RecordingError, OSError) as error:
        search.error = str(error)


def _integer(call: ControlCall, name: str) -> int:
    text = call.query.get(name, "")
    if not text.isascii() or not text.isdigit() or len(text) > 15:
        raise RequestRefused(422, f"{name} is not a whole number: {text!r}")
    return int(text)


def _file(name: str) -> Answer:
    folder = resources.files("kproxy.web") / "files"
    suffix = Path(name).suffix
    if name not in {each.name for each in folder.iterdir()} or suffix not in _STATIC:
        raise RequestRefused(404, f"there is no {name!r}")
    return Answer(200, (folder / name).read_bytes(), _STATIC[suffix], _HEADERS)
