"""The words of tests and recordings for differences that are ignored (`ignored`).

::

    "records"              the record: any may be there, or none
    "partition"            its partition
    "key"                  its key, and so its partition
    "value"                its value
    "header:trace-id"      the header of this name
    "json:items[*].id"     a part of values that are JSON, or are decoded to it
    "key-json:id"          a part of keys
    "order"                an aspect (`compared`), of all topics

    "json:id:uuid"         of a kind (`kinds`): uuid, time, counter, random, unique; by default any
    "orders/json:id:uuid"  of one topic
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable

import attrs

from kproxy.replay.facts import FACTS
from kproxy.replay.ignored import Ignored, IgnoredPart
from kproxy.replay.kinds import Kind
from kproxy.wire.payloads import json_paths

_WORD = re.compile(
    r"(?:([^/:]+)/)?(key-json|json|header|key|value|partition|[a-z]+)(?::(.*))?", re.DOTALL
)
_KINDS = {each.value: each for each in Kind}
_NAMED = ("header", "json", "key-json")
_WHOLE = ("key", "value")


def parse(words: Iterable[str]) -> Ignored:
    """Parse the words for ignored parts.

    Raises:
        ValueError: a word is none of those above.
    """
    return Ignored(parts=tuple(map(_part_of, words)))


def with_words(
    ignored: Ignored, words: Iterable[str], tell: Callable[[str], object] = lambda text: None
) -> Ignored:
    """Return what is ignored, and what these words of a recording name. A word of a newer kproxy
    names nothing: `tell` gets a sentence on it."""
    known: list[IgnoredPart] = []
    for word in dict.fromkeys(words):
        try:
            known.append(_part_of(word))
        except ValueError as error:
            tell(f"not ignored: {error}")
    return attrs.evolve(ignored, parts=(*ignored.parts, *known))


def word_of(part: IgnoredPart) -> str:
    """Return the word for a part; "" if there is none, as of a header without a name."""
    return part.word if with_words(Ignored(), [part.word]).parts == (part,) else ""


def _part_of(word: str) -> IgnoredPart:
    found = _WORD.fullmatch(word)
    topic, what, rest = found.groups() if found else (None, "", None)
    name, colon, kind = (rest or "").rpartition(":")
    if what in _NAMED and rest:
        if colon and kind not in _KINDS and (near := difflib.get_close_matches(kind, _KINDS, 1)):
            what = f"{kind!r} is no kind of what varies: did you mean {near[0]!r}?"
            raise ValueError(f"{word!r} cannot be ignored: {what}")
        if not (colon and name and kind in _KINDS):
            name, kind = rest, Kind.ANY.value
        if what != "header":
            json_paths.parse(name)
        return IgnoredPart(what, name, _KINDS[kind], topic or "")
    if what in _WHOLE and (rest is None or rest in _KINDS):
        return IgnoredPart(what, "", _KINDS[rest or "any"], topic or "")
    if (what in ("partition", "records") and rest is None) or (
        what in FACTS and not (topic or rest)
    ):
        return IgnoredPart(what, topic=topic or "")
    wanted = '"partition", "key", "header:NAME" or "json:PATH"'
    raise ValueError(
        f"{word!r} cannot be ignored: give {wanted}, and its kind: {', '.join(_KINDS)}"
    )
