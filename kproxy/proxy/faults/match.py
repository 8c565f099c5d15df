"""Matching of rules: patterns for names, sets and ranges of numbers.

Invariants: a pattern is compiled once, when its rule is loaded. A request that leaves the answer
open (all topics) is a `MAYBE`, and its response decides.
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
    """The result of matching a rule."""

    NO = 0
    MAYBE = 1
    YES = 2


@attrs.frozen
class Matcher:
    """The terms of a rule about the items of a request."""

    terms: tuple[tuple[str, Accepts], ...]
    """(key, test of a value), for the keys of the rule that look into bodies."""

    @functools.cached_property
    def keys(self) -> frozenset[str]:
        """The keys that the rule has."""
        return frozenset(key for key, _ in self.terms)

    def match(self, item: Item, topic_names: TopicNames) -> Match:
        """Match the rule with an item."""
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

    def matches(self, keys: Keys, topic_names: TopicNames) -> bool:
        """Return whether the rule matches a response element; missing keys do not count."""
        return self.match(Item(keys, open=True), topic_names) is not Match.NO


def _topic_name(keys: Keys, topic_names: TopicNames) -> str | None:
    topic_id = keys.get("topic_id")
    return None if topic_id is None else topic_names.name(topic_id)


def names(value: Any) -> Accepts:
    """Return a test for a name, one of several, or globs of such (`orders-*`).

    Raises:
        ValueError: the value is none of these; the text says what is allowed.
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
    """Return a test for names, none of them empty, because no item has an empty name.

    Raises:
        ValueError: the value is none of these; the text says what is allowed.
    """
    if "" in each(value):
        raise ValueError("an empty name names nothing")
    return names(value)


_RANGE = re.compile(r"(-?\d+)?\.\.(-?\d+)?")


def numbers(value: Any, most: int, least: int = 0) -> Accepts:
    """Return a test for a number from `least` to `most`, one of several, or ranges (`3..7`, `7..`).

    Raises:
        ValueError: the value is none of these; the text says what is allowed.
    """
    single: set[int] = set()
    ranges: list[tuple[int, int]] = []
    for one in each(value):
        found = _RANGE.fullmatch(one) if isinstance(one, str) else None
        if found is not None and one != "..":
            low = _check_bounds(int(found[1] or least), least, most)
            high = _check_bounds(int(found[2] or most), least, most)
            if low > high:
                raise ValueError(f"{one!r} is an empty range; the smaller number is first")
            ranges.append((low, high))
        elif isinstance(one, int) and not isinstance(one, bool):
            single.add(_check_bounds(one, least, most))
        else:
            raise ValueError(f"{one!r} is not a number, a range such as 3..7, or a list of such")
    if not ranges:
        return frozenset(single).__contains__
    return lambda number: number in single or any(low <= number <= high for low, high in ranges)


def _check_bounds(number: int, least: int, most: int) -> int:
    if not least <= number <= most:
        raise ValueError(f"{number} is not from {least} to {most}")
    return number
