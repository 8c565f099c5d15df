"""The routes of the page: rows, an overview of time, one exchange, the keys of filters.

::

    GET  /rows?filter=&begin=&end=&known=&name=                    GET  /keys
    GET  /findings                     what `kproxy why` says
    GET  /overview?filter=             GET  /live                  whether a proxy runs
    GET  /exchange?name=               GET  /story?of=connection:3
    GET  /statistics?filter=           GET  /records?filter=&topic=
    GET  /lanes?filter=                GET  /   /static/NAME       the page itself

A pass over the recordings is the work of threads (`work`): of rows, each answer says how far it is;
of statistics, records and stories, whether they are there.

Invariants: no request waits for a whole pass; rows are read in portions, which wait for no other
kind; after ANSWER_SECONDS the answer says that it took too long. No exception ends the server.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

import attrs
import trio

from kproxy.exchange.filter import Filter, matching
from kproxy.exchange.filter.keys import KEYS, PATHS, QUALITIES
from kproxy.levels import Logger
from kproxy.look.lines.stats_lines import stats_of
from kproxy.look.lines.stream import Stream
from kproxy.look.page import shown
from kproxy.look.page.found import GROWS_SECONDS
from kproxy.look.page.records import records_of
from kproxy.look.page.work import OnProgress, Results, Searches, in_thread, parsed_filter
from kproxy.look.pictures.drawing import style
from kproxy.look.pictures.series import Series
from kproxy.look.pictures.subjects import pictured
from kproxy.look.why.stories import SUBJECTS, story
from kproxy.net.control import Answer, ControlCall, RequestRefused, Route, Routes, json_answer
from kproxy.printable import printable
from kproxy.recording import read
from kproxy.recording.info import Info
from kproxy.wire.protocol.schema import api_name

ROWS_MAX = 500
READS_AT_ONCE = 4
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


@attrs.frozen(eq=False)
class Pages:
    """The routes over recordings."""

    paths: Sequence[Path | str]
    nursery: trio.Nursery
    """Waits for threads."""
    log: Logger
    # Those who wait for one kind of work do not wait for another.
    _searches: Searches = attrs.field(
        default=attrs.Factory(lambda own: Searches(own.paths, own.nursery, own.log), True),
        init=False,
    )
    _results: Results = attrs.field(
        default=attrs.Factory(
            lambda own: Results(own._searches.size_bytes, own.nursery, own.log), True
        ),
        init=False,
    )
    _reads: trio.CapacityLimiter = attrs.Factory(lambda: trio.CapacityLimiter(READS_AT_ONCE))

    def routes(self) -> Routes:
        """Return the routes of the page."""
        answers = {
            "/": self.page,
            "/static/{name}": self.static,
            "/findings": self.findings,
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
            path: {"GET": Route(run, access="private", seconds=ANSWER_SECONDS)}
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
        search = self._searches.find(call.query.get("filter", ""))
        begin, end = (_integer(call, name) for name in ("begin", "end"))
        found = search.found
        if "known" in call.query:
            known = _integer(call, "known")
            with trio.move_on_after(KNOWN_SECONDS):
                while len(found) == known and not found.done and search.error is None:
                    await trio.sleep(GROWS_SECONDS)
        done, count = found.done, len(found)  # before the rows: then they are all there
        end = min(end, begin + ROWS_MAX)
        some = await in_thread(
            lambda: found.made(begin, end, shown.row, shown.lost_row), self._reads
        )
        name = call.query.get("name", "")
        place = await in_thread(lambda: found.place(name), self._reads) if name else None
        return json_answer(
            {
                "rows": some,
                "count": count,
                "done": done,
                "grows": found.grows,
                "partial": self._searches.share_read(found) if found.is_behind else None,
                "place": place,
                "notices": [*found.notices, *found.removed()],
                "error": search.error,
            }
        )

    async def overview(self, call: ControlCall) -> Answer:
        """Return how many exchanges there are over time, by API."""
        found = self._searches.find(call.query.get("filter", "")).found
        width_ms, by_slot = await in_thread(found.by_api, self._reads)
        counts = {
            slot: {api_name(key) if key >= 0 else "?": count for key, count in by_api.items()}
            for slot, by_api in by_slot.items()
        }
        return json_answer({"slot_ms": width_ms, "counts": counts})

    async def lanes(self, call: ControlCall) -> Answer:
        """Return how many exchanges connections had over time, those with most."""
        found = self._searches.find(call.query.get("filter", "")).found
        return json_answer(await in_thread(lambda: shown.lanes(found), self._reads))

    async def exchange(self, call: ControlCall) -> Answer:
        """Return one exchange in full."""
        name, files = call.query.get("name", "").removeprefix("#"), self._searches.files
        wanted = _matching("number", name)
        found = await in_thread(lambda: _first(files, wanted), self._reads)
        if found is None:
            raise RequestRefused(404, f"there is no exchange {name}")
        return json_answer(found)

    # ---- what takes time

    async def findings(self, call: ControlCall) -> Answer:
        """Return the findings so far, and by how many exchanges they are behind."""
        every = self._searches.find("").found
        search = self._searches.findings()
        found = search.found
        done = found.done  # before the findings: then they are all there
        count, is_all, made = await in_thread(found.found, self._reads)
        return json_answer(
            {
                "done": done,
                "exchanges": count,
                "behind": 0 if is_all else max(int(every.is_behind), len(every) - count),
                "findings": made,
                "error": search.error,
            }
        )

    async def statistics(self, call: ControlCall) -> Answer:
        """Return the statistics of a filter, once they are made."""
        text = call.query.get("filter", "")
        wanted, files = parsed_filter(text), self._searches.files

        def make(on_progress: OnProgress) -> Any:
            stream = Stream(files, wanted, on_progress=on_progress)
            return shown.statistics(stats_of(stream))

        return self._results.answer(("statistics", text), make)

    async def records(self, call: ControlCall) -> Answer:
        """Return the records of a topic, once they are read."""
        text, topic = call.query.get("filter", ""), call.query.get("topic", "")
        wanted = parsed_filter(text)
        if not topic:
            raise RequestRefused(422, "name a topic")
        _matching("topic", topic)
        make = partial(records_of, self._searches.files, wanted, topic)
        return self._results.answer(("records", topic, text), make)

    async def story(self, call: ControlCall) -> Answer:
        """Return the story of a subject, `connection:3`, once it is told."""
        of = call.query.get("of", "")
        key, _, value = of.partition(":")
        if key not in SUBJECTS or SUBJECTS[key].within or not value:
            raise RequestRefused(422, f"{of!r} has no story")
        if SUBJECTS[key].numbered:
            _whole_number(key, value.rpartition("#")[2])
        files = self._searches.files

        def tell(on_progress: OnProgress) -> Any:
            drawn: list[Series] = []

            def watch(head: Info) -> Series:
                drawn.append(Series.of(head, (key, value)))
                return drawn[-1]

            sentences, _ = story(files, key, value, on_progress=on_progress, watch=watch)
            found = [pictured(each, key, value) for each in drawn]
            pictures = [each.plain() for each in found if each is not None]
            return {"of": of, "sentences": list(map(printable, sentences)), "pictures": pictures}

        return self._results.answer(("story", of), tell)


def _first(files: Sequence[Path | str], wanted: Filter) -> dict[str, Any] | None:
    """Return the first exchange that matches, in full. The list says what is wrong with files."""
    return next(map(shown.whole, read(files, wanted, told=lambda note: None)), None)


def _matching(key: str, text: str) -> Filter:
    try:
        return matching(key, text)
    except ValueError as error:
        raise RequestRefused(422, str(error)) from None


def _integer(call: ControlCall, name: str) -> int:
    return _whole_number(name, call.query.get(name, ""))


def _whole_number(name: str, text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 15:
        raise RequestRefused(422, f"{name} is not a whole number: {text!r}")
    return int(text)


def _file(name: str) -> Answer:
    if name == "picture.css":
        return Answer(200, style().encode(), _STATIC[".css"], _HEADERS)
    folder = resources.files("kproxy.look.page") / "files"
    suffix = Path(name).suffix
    if name not in {each.name for each in folder.iterdir()} or suffix not in _STATIC:
        raise RequestRefused(404, f"there is no {name!r}")
    return Answer(200, (folder / name).read_bytes(), _STATIC[suffix], _HEADERS)
