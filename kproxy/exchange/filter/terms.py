"""The parts of a filter: terms, and their combinations.

Every part answers `matches`, of an Exchange or an ArrivingRequest, and writes itself so that it
reads back the same.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs

from kproxy.exchange.endings import ConnectionEnd
from kproxy.exchange.filter.keys import OF_ENDS, Key, Need, key_named
from kproxy.exchange.filter.values import Value
from kproxy.exchange.meanings import Meaning, apis_with


@attrs.frozen(slots=False)
class Term:
    """A term: `key:value,value`, of which one must match, or `is:quality`, which has no values."""

    name: str
    values: tuple[Value, ...]
    column: int = attrs.field(default=1, eq=False)

    def __str__(self) -> str:
        return self.name if self.is_quality else f"{self.name}:{','.join(map(str, self.values))}"

    @functools.cached_property
    def key(self) -> Key:
        """The key of its name."""
        found = key_named(self.name)
        assert found is not None, self.name
        return found

    @property
    def is_quality(self) -> bool:
        """True of `is:quality`."""
        return not self.values

    @property
    def need(self) -> Need:
        """The part of an exchange that must be known to evaluate the term."""
        return self.key.need

    @property
    def meaning(self) -> Meaning | None:
        """The meaning of the body fields that it asks for."""
        return self.key.meaning

    def matches(self, subject: Any) -> bool:
        """Return whether the subject has the quality, or one of its values matches one of the
        term's."""
        key = self.key
        if key.meaning is not None and subject.api_key not in apis_with(key.meaning):
            return False  # without a look into its bodies
        if self.is_quality:
            return bool(key.read(subject))
        for found in key.read(subject):
            for value in self.values:
                if value.matches(found):
                    return True
        return False


@attrs.frozen
class Not:
    """A negation: `not part`."""

    part: Node

    def __str__(self) -> str:
        return f"not ({self.part})" if isinstance(self.part, Combination) else f"not {self.part}"

    def matches(self, subject: Any) -> bool:
        """Return whether the part does not match."""
        return not self.part.matches(subject)


@attrs.frozen(slots=False)
class Combination:
    """Parts that must all match, or, with `one`, of which one must."""

    parts: tuple[Node, ...]
    one: bool

    def __str__(self) -> str:
        if self.one:
            return " or ".join(map(str, self.parts))
        return " ".join(f"({p})" if isinstance(p, Combination) else str(p) for p in self.parts)

    @functools.cached_property
    def _cheap_first(self) -> list[Node]:
        return sorted(self.parts, key=_cost)

    def matches(self, subject: Any) -> bool:
        """Return whether the parts match; those that open no body are tried first."""
        for part in self._cheap_first:
            if part.matches(subject) == self.one:
                return self.one
        return not self.one


Node = Term | Not | Combination
"""Any part of a filter."""

_COSTS = {Need.CONNECTION: 0, Need.HEADER: 0, Need.ROW: 0, Need.REQUEST: 2, Need.RESPONSE: 1}


def terms_of(node: Node) -> Iterator[Term]:
    """Yield the terms of a node, from left to right."""
    match node:
        case Not(part):
            yield from terms_of(part)
        case Combination(parts):
            for part in parts:
                yield from terms_of(part)
        case _:
            yield node


def matches_end(node: Node, end: ConnectionEnd) -> bool:
    """Return whether the end of a connection matches; terms about what it does not have do not."""
    match node:
        case Not(part):
            return not matches_end(part, end)
        case Combination(parts, one):
            matching = (matches_end(part, end) for part in parts)
            return any(matching) if one else all(matching)
        case _:
            return node.name in OF_ENDS and node.matches(end)


def _cost(node: Node) -> int:
    return max((_COSTS[term.need] for term in terms_of(node)), default=0)


def resolved(node: Node, resolve: Callable[[Value], Value]) -> Node:
    """Return the same node with each value replaced by what `resolve` makes of it."""
    match node:
        case Not(part):
            return Not(resolved(part, resolve))
        case Combination(parts, one):
            return Combination(tuple(resolved(part, resolve) for part in parts), one)
        case Term(values=values):
            return attrs.evolve(node, values=tuple(map(resolve, values)))


def grouped(parts: Sequence[Node], one: bool) -> Node:
    """Combine parts as the parser would: a single part stays as it is, and groups of the same kind
    are flattened."""
    flat: list[Node] = []
    for part in parts:
        flat += part.parts if isinstance(part, Combination) and part.one is one else [part]
    return flat[0] if len(flat) == 1 else Combination(tuple(flat), one)
