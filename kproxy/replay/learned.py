"""What varies between runs of one app: learned from recordings of them, kept in one of them.

::

    a Behaviour of each run ─▶ records that belong together ─▶ places that differ ─▶ their kinds
                           └─▶ facts that differ ─────────────▶ aspects ──┐              │
    Learned ◀─────────────────────────────────────────────────────────────┴──────────────┘
       ├─▶ the note "learned" of a recording: a replay takes its words as those of the user
       └─▶ text, which a person reads and edits

A place that varies and whose contents are of no kind may be data: it is asked about, and not
ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs

from kproxy.exchange.entries import EVENTS, Note
from kproxy.exchange.topic_records import TopicRecord
from kproxy.history.behaviour import Behaviour
from kproxy.history.transactions import COMMITTED
from kproxy.replay.compared import differences
from kproxy.replay.differences import short
from kproxy.replay.ignore_words import parse, with_words
from kproxy.replay.ignored import Ignored, IgnoredPart
from kproxy.replay.kinds import Kind, kind_of, plain
from kproxy.replay.places import Place, Places, pairs, part_of, places_of
from kproxy.wire.protocol.record_batch import Record

EVENT = "learned"
_ASKED = "may be data: remove the `?` if it may differ"
_LINE = re.compile(r"(\?\s*)?(\S.*?)(?:\s{2,}#\s?(.*))?")


@attrs.frozen
class LearnedPart:
    """A part that varies."""

    word: str
    """A word of `ignored`."""
    example: str = ""
    is_asked: bool = False
    """True for one that may be data, and is not ignored before a person says so."""


@attrs.frozen
class Learned:
    """What varies between runs."""

    parts: tuple[LearnedPart, ...] = ()

    @property
    def words(self) -> list[str]:
        """The words of what may vary."""
        return [each.word for each in self.parts if not each.is_asked]

    @property
    def asked(self) -> list[LearnedPart]:
        """What may be data."""
        return [each for each in self.parts if each.is_asked]

    def body(self) -> dict[str, Any]:
        """Return the body of the note."""
        return {"event": EVENT, "varies": [attrs.asdict(each) for each in self.parts]}

    def lines(self) -> Iterator[str]:
        """Yield it as text, a part in a line."""
        wide = max((len(each.word) + 2 * each.is_asked for each in self.parts), default=0)
        for each in self.parts:
            word = f"{'? ' * each.is_asked}{each.word}"
            example = f"{each.example}: {_ASKED}" if each.is_asked else each.example
            yield f"{word:{wide}}  # {example}".rstrip(" #")

    def edited(self, text: str) -> Learned:
        """Return what is in a text that was made of it.

        Raises:
            ValueError: a line has no word; the message says which.
        """
        known = {each.word: each.example for each in self.parts}
        parts: list[LearnedPart] = []
        for number, line in enumerate(text.splitlines(), 1):
            found = _LINE.fullmatch(line.strip())
            if found is None or line.lstrip().startswith("#"):
                continue
            asked, word, example = found.groups()
            try:
                parse([word])
            except ValueError as error:
                raise ValueError(f"line {number}: {error}") from None
            parts.append(LearnedPart(word, known.get(word, example or ""), asked is not None))
        return Learned(tuple(parts))


def learned_of(note: Note) -> Learned | None:
    """Return what a note of a recording says that varies, if it is that note."""
    if note.channel != EVENTS or note.body.get("event") != EVENT:
        return None
    parts = [each for each in _list(note.body, "varies") if isinstance(each, dict)]
    return Learned(
        tuple(
            LearnedPart(each["word"], str(each.get("example", "")), bool(each.get("is_asked")))
            for each in parts
            if isinstance(each.get("word"), str)
        )
    )


def own_words(note: Note) -> list[str]:
    """Return the words for what a recording's own settings ignore, if a note has them."""
    is_setting = note.channel == EVENTS and note.body.get("event") == "ignored"
    return [each for each in _list(note.body, "ignore") if isinstance(each, str) and is_setting]


def _list(body: Mapping[str, Any], name: str) -> list[Any]:
    found = body.get(name)
    return found if isinstance(found, list) else []


def learn(runs: Sequence[Behaviour]) -> Learned:
    """Return what varies between runs that do the same."""
    parts = [part for topic in sorted(runs[0].topics) for part in _of_topic(topic, runs)]
    ignored = with_words(Ignored(), (each.word for each in parts))
    told: dict[str, str] = {}
    for other in runs[1:]:
        for each in differences(other, runs[0], ignored):
            told.setdefault(each.aspect, f"{each.text}")
    parts += [LearnedPart(aspect, short(text)) for aspect, text in told.items()]
    return Learned(tuple(parts))


def _of_topic(topic: str, runs: Sequence[Behaviour]) -> Iterator[LearnedPart]:
    """Yield what varies in the records that were produced to a topic."""
    records = [
        [
            places_of(*_meant(each.record))
            for each in run.topic(topic).produced
            if each.end == COMMITTED
        ]
        for run in runs
    ]
    numbers = list(dict.fromkeys(map(len, records)))
    if len(numbers) > 1:
        shown = ", ".join(map(str, numbers))
        yield LearnedPart(IgnoredPart("records", topic=topic).word, shown, is_asked=True)
    varying: dict[IgnoredPart, tuple[Any, Any]] = {}
    for other in records[1:]:
        for one, it in _belonging(records[0], other):
            for place in {**one, **it}:
                if one.get(place) != it.get(place):
                    found = one.get(place), it.get(place)
                    varying.setdefault(part_of(place, Kind.ANY, topic), found)
    for part, (one, other) in varying.items():
        contents = [_contents(part, run) for run in records]
        kind = kind_of(contents) if all(contents) else None
        if kind is None:
            example = f"{short(_text(one))}, {short(_text(other))}"
            yield LearnedPart(part.word, example, is_asked=True)
        else:
            yield LearnedPart(attrs.evolve(part, kind=kind).word, short(_text(one)))


def _meant(record: TopicRecord) -> tuple[Record, dict[str, Any]]:
    """Return a record, and what its key and its value mean."""
    at = record.offset or 0
    bare = Record(at, record.timestamp, record.key, record.value, record.headers)
    return bare, {part: record.meaning(part) for part in ("key", "value")}


def _belonging(ones: Sequence[Places], others: Sequence[Places]) -> Iterator[tuple[Places, Places]]:
    """Yield the records of two runs that belong together: of one key, those that differ least; of
    all that are left, too, and at last in order."""
    left: list[list[Places]] = [[], []]
    by_key: dict[Any, tuple[list[Places], list[Places]]] = {}
    for side, records in enumerate((ones, others)):
        for each in records:
            by_key.setdefault(_key(each), ([], []))[side].append(each)
    for here, there in by_key.values():
        yield from _nearest(here, there, left)
    rest: list[list[Places]] = [[], []]
    yield from _nearest(left[0], left[1], rest)
    yield from zip(*rest, strict=False)


def _nearest(
    ones: list[Places], others: list[Places], left: list[list[Places]]
) -> Iterator[tuple[Places, Places]]:
    """Yield those that differ least, and put the others aside."""
    found = pairs(ones, others)
    yield from ((ones[here], others[there]) for here, there in found.items())
    left[0] += [each for number, each in enumerate(ones) if number not in found]
    taken = set(found.values())
    left[1] += [each for number, each in enumerate(others) if number not in taken]


def _key(places: Places) -> Any:
    return tuple((place, str(one)) for place, one in places.items() if place[0].startswith("key"))


def _contents(part: IgnoredPart, records: Iterable[Places]) -> list[Any]:
    """Return what the records of a run have at a part, of whichever index of lists."""

    def is_there(place: Place) -> bool:
        return part_of(place, Kind.ANY, part.topic) == part

    return [one for each in records for place, one in each.items() if is_there(place)]


def _text(content: Any) -> str:
    return "absent" if content is None else str(plain(content))
