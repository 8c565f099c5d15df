"""Which exchanges a rule means: patterns for names, sets and ranges of numbers.

Invariants: a pattern is compiled once, when its rule is loaded. What a request leaves open (all
topics) is `MAYBE`, and its response decides.
"""

from __future__ import annotations

import enum
import functools
import re
from collections.abc import Callable
from typing import Any

import attrs

from kproxy.exchange.entities import TopicNames
from kproxy.exchange.filter.values import Glob
from kproxy.proxy.faults.items import Item, Keys
from kproxy.proxy.faults.values import each

Accepts = Callable[[Any], bool]


class Match(enum.IntEnum):
    """Whether a rule means something."""

    NO = 0
    MAYBE = 1
    YES = 2


@attrs.frozen
class Matcher:
    """What a rule says of the items of a request."""

    terms: tuple[tuple[str, Accepts], ...]
    """(key, what it accepts), for the keys of the rule that look into bodies."""

    @functools.cached_property
    def keys(self) -> frozenset[str]:
        """The keys that the rule has."""
        return frozenset(key for key, _ in self.terms)

    def match(self, item: Item, topic_names: TopicNames) -> Match:
        """Whether the rule means an item."""
        found = Match.YES
        for key, accepts in self.terms:
            value = item.keys.get(key)
            if value is None and key == "topic":
                value = _topic_name(item.keys, topic_names)
            if value is None:
                if not item.open:
                    return Match.NO
                found = Match.MAYBE
            elif not accepts(value):
                return Match.NO
        return found

    def means(self, keys: Keys, topic_names: TopicNames) -> bool:
        """Whether the rule means an element of a response with these keys, so far as they say."""
        return self.match(Item(keys, open=True), topic_names) is not Match.NO


def _topic_name(keys: Keys, topic_names: TopicNames) -> str | None:
    topic_id = keys.get("topic_id")
    return None if topic_id is None else topic_names.name(topic_id)


def names(value: Any) -> Accepts:
    """Accept a name, one of several, or globs of such (`orders-*`).

    Raises:
        ValueError: it is none of these; the text says what would be.
    """
    exact: set[str] = set()
    globs: list[Glob] = []
    for one in each(value):
        if isinstance(one, bool) or not isinstance(one, str | int):
            raise ValueError(
                f"{one!r} is not a name, a pattern such as orders-*, or a list of such"
            )
        typed = tuple(str(one).split("*"))
        if len(typed) > 1:
            globs.append(Glob(typed))
        else:
            exact.add(str(one))
    if not globs:
        return frozenset(exact).__contains__
    return lambda name: name in exact or any(glob.matches(name) for glob in globs)


def item_names(value: Any) -> Accepts:
    """Accept names, of which none is empty: nothing in a request is called that.

    Raises:
        ValueError: it is none of these; the text says what would be.
    """
    if "" in each(value):
        raise ValueError("an empty name names nothing")
    return names(value)


_RANGE = re.compile(r"(-?\d+)?\.\.(-?\d+)?")


def numbers(value: Any, most: int, least: int = 0) -> Accepts:
    """Accept a number from `least` to `most`, one of several, or ranges (`3..7`, `7..`, `..3`).

    Raises:
        ValueError: it is none of these; the text says what would be.
    """
    single: set[int] = set()
    ranges: list[tuple[int, int]] = []
    for one in each(value):
        found = _RANGE.fullmatch(one) if isinstance(one, str) else None
        if found is not None and one != "..":
            low = _within(int(found[1] or least), least, most)
            high = _within(int(found[2] or most), least, most)
            if low > high:
                raise ValueError(f"{one!r} is an empty range; the smaller number is first")
            ranges.append((low, high))
        elif isinstance(one, int) and not isinstance(one, bool):
            single.add(_within(one, least, most))
        else:
            raise ValueError(f"{one!r} is not a number, a range such as 3..7, or a list of such")
    if not ranges:
        return frozenset(single).__contains__
    return lambda number: number in single or any(low <= number <= high for low, high in ranges)


def _within(number: int, least: int, most: int) -> int:
    if not least <= number <= most:
        raise ValueError(f"{number} is not from {least} to {most}")
    return number
