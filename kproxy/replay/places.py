"""The places of a record, and which records belong together: those that differ in fewest places.

::

    record ─▶ places_of ─▶ {("json", "total"): 12.0, ("header", "trace"): b"…", …}
                                      │
    records now, and recorded ones ───┴─▶ pairs: the nearest first
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from kproxy.exchange.topic_records import TopicRecord
from kproxy.replay.differences import Meaning, common_prefix_length, compared
from kproxy.replay.ignore_words import word_of
from kproxy.replay.ignored import Ignored, IgnoredPart
from kproxy.replay.kinds import Kind, kind_of
from kproxy.replay.unreadable import UnreadableBatch
from kproxy.wire.payloads import json_paths
from kproxy.wire.payloads.meaning import Decoded
from kproxy.wire.payloads.schemas import Schemas
from kproxy.wire.protocol.record_batch import Record

Place = tuple[str, str]
"""The first word of an ignored part that it would be, and the name."""
Places = dict[Place, Any]

_PLACES_MAX = 10_000
_COMPARED_MAX = 200_000
"""Pairs of records that are compared."""
_ABSENT = object()


def places_in(
    record: Record | TopicRecord, topic: str, ignored: Ignored, schemas: Schemas | None
) -> Places:
    """Return the contents of a record by their places, without what is ignored."""
    if isinstance(record, UnreadableBatch):
        return {("value", ""): record.value, ("key", ""): None}
    return places_of(*compared(record, topic, ignored, schemas))


def places_of(record: Record, meanings: Mapping[str, Meaning]) -> Places:
    """Return the contents of a record, by their places."""
    found: Places = {}
    for what, json_what, data in (
        ("key", "key-json", record.key),
        ("value", "json", record.value),
    ):
        meaning = meanings[what]
        inner = meaning.value if isinstance(meaning, Decoded) else json_paths.objects_of(data)
        try:
            found.update(islice(flat(json_what, "", inner), _PLACES_MAX) if inner else ())
        except RecursionError:
            inner = None
        if not inner:
            found[what, ""] = data
    for name, content in record.headers:
        place = ("header", name)
        found[place] = (*found[place], content) if place in found else (content,)
    return {place: one[0] if place[0] == "header" and len(one) == 1 else one
            for place, one in found.items()}  # fmt: skip


def flat(what: str, path: str, value: Any) -> Iterator[tuple[Place, Any]]:
    """Yield the parts of a plain value that have none themselves, by their paths."""
    if isinstance(value, dict) and value:
        for name, each in value.items():
            yield from flat(what, json_paths.beneath(path, str(name)), each)
    elif isinstance(value, list) and value:
        for index, each in enumerate(value):
            yield from flat(what, f"{path}[{index}]", each)
    else:
        yield (what, path), value


def part_of(place: Place, kind: Kind, topic: str = "") -> IgnoredPart:
    """Return the ignored part that a place is, of whichever index of lists."""
    what, name = place
    return IgnoredPart(
        what, name if what == "header" else json_paths.of_any_index(name), kind, topic
    )


def varying_words(now: Places, then: Places, topic: str) -> list[str]:
    """Return for each place that differs the word with which it may, if it looks like an id or a
    time; else ""."""
    differing = [place for place in {**then, **now} if now.get(place) != then.get(place)]
    words: list[str] = []
    for place in differing:
        known = place in now and place in then
        kind = kind_of([[now[place]], [then[place]]]) if known else None
        words.append(word_of(part_of(place, kind, topic)) if kind is not None else "")
    return list(dict.fromkeys(words))


def distance(now: Places, then: Places) -> tuple[int, int]:
    """Return in how many places two records differ, and, of those alike, how early their values."""
    differing = sum(
        now.get(place, _ABSENT) != then.get(place, _ABSENT) for place in {**then, **now}
    )
    values = [each.get(("value", "")) for each in (now, then)]
    alike = common_prefix_length(values[0] or b"", values[1] or b"")
    return differing, -alike


def pairs(now: Sequence[Places], then: Sequence[Places]) -> dict[int, int]:
    """Return which of the recorded records each one belongs to, by their numbers: together they
    differ in few places, and those that differ in all of them belong to none. Of very many, each is
    compared with those that are about where it is."""
    reach = _COMPARED_MAX // (2 * len(now) or 1) + 1
    near: list[tuple[int, int, int, int]] = []
    for here, one in enumerate(now):
        at = here * len(then) // len(now)
        near += [
            (*distance(one, then[there]), here, there)
            for there in range(max(0, at - reach), min(len(then), at + reach))
        ]
    near.sort()
    found: dict[int, int] = {}
    taken: set[int] = set()
    for differing, alike, here, there in near:
        something = differing < len({**now[here], **then[there]}) or alike
        if something and here not in found and there not in taken:
            found[here] = there
            taken.add(there)
    return found
