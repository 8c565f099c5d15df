"""Merging of counts: what parts have counted, together.

    counts of a part, … ─ merge ─▶ counts of all

Numbers are added, sets united, and dictionaries merged by key; of two tuples the less is kept, for
they begin with a time or a rank. An attribute of a class that merges otherwise says how beside its
meaning: `attrs.field(metadata=by(max))`.

Invariant: the sum of parts does not depend on their order, nor on how they were divided.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable
from typing import Any, TypeVar

import attrs

Value = TypeVar("Value")
Rule = Callable[[Any, Any], Any]
_RULE = "merge"


def merge(one: Value, other: Value | None) -> Value:
    """Return the sum of two counts, of which None has none: `one` is changed, and may have parts of
    the other."""
    return _sum(one, other)


def _sum(one: Any, other: Any) -> Any:
    if one is None or other is None:
        return other if one is None else one
    match one:
        case int() | float():
            return one + other
        case tuple():
            return min(one, other)
        case set() | frozenset():
            return one | other
        case dict():
            return by_key(_sum)(one, other)
        case _:
            for each in attrs.fields(type(one)):
                own, its = getattr(one, each.name), getattr(other, each.name)
                rule = _sum if None in (own, its) else each.metadata.get(_RULE, _sum)
                setattr(one, each.name, rule(own, its))
            return one


def by(rule: Rule) -> dict[str, Rule]:
    """Return the metadata of an attribute that merges by a rule."""
    return {_RULE: rule}


def by_key(rule: Rule) -> Rule:
    """Return the rule by which dictionaries are merged whose values merge by a rule."""

    def merged(one: dict[Any, Any], other: dict[Any, Any]) -> dict[Any, Any]:
        for key, value in other.items():
            one[key] = rule(one[key], value) if key in one else value
        return one

    return merged


def kept(one: Value, _: Value) -> Value:
    """The rule of what is the same in all parts."""
    return one


Spans = list[tuple[int, int]]
"""Spans in order, the end of each excluded; none joins the next."""


def joined(spans: Spans, more: Spans) -> Spans:
    """Return spans with more of them."""
    for start, end in more:
        first = bisect.bisect_left(spans, start, key=lambda each: each[1])
        last = bisect.bisect_right(spans, end, key=lambda each: each[0])
        for begun, ended in spans[first:last]:
            start, end = min(start, begun), max(end, ended)
        spans[first:last] = [(start, end)]
    return spans


def contains(spans: Spans, at: int) -> bool:
    """Return whether one of the spans has this number."""
    index = bisect.bisect_right(spans, at, key=lambda each: each[0]) - 1
    return index >= 0 and at < spans[index][1]
