"""What a filter consists of: terms, and how they are put together.

Every part answers `matches` (of an Exchange, or of an ArrivingRequest) and `rows` (of a table of
exchanges), and writes itself so that it reads back the same.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import attrs

from kproxy.exchange.filter import rows as verdicts
from kproxy.exchange.filter.keys import BY_NAME, QUALITIES, Need
from kproxy.exchange.filter.rows import MAYBE, NO, YES, Columns
from kproxy.exchange.filter.values import TimeRange, Value

_NOT = bytes.maketrans(bytes([NO, MAYBE, YES]), bytes([YES, MAYBE, NO]))


@attrs.frozen
class Term:
    """`key:value,value`."""

    name: str
    values: tuple[Value, ...]
    column: int = attrs.field(default=1, eq=False)

    def __str__(self) -> str:
        return f"{self.name}:{','.join(map(str, self.values))}"

    @property
    def need(self) -> Need:
        """What must be known to answer it."""
        return BY_NAME[self.name].need

    def matches(self, subject: Any) -> bool:
        """Whether one of what the subject has matches one of the values."""
        for found in BY_NAME[self.name].read(subject):
            for value in self.values:
                if value.matches(found):
                    return True
        return False

    def rows(self, columns: Columns, count: int) -> bytes:
        """The verdicts on so many rows."""
        found = BY_NAME[self.name].look(columns, self.values)
        return bytes([MAYBE]) * count if found is None else found


@attrs.frozen
class Is:
    """`is:quality`."""

    quality: str
    column: int = attrs.field(default=1, eq=False)

    def __str__(self) -> str:
        return f"is:{self.quality}"

    @property
    def name(self) -> str:
        """As an error calls it."""
        return str(self)

    @property
    def need(self) -> Need:
        """What must be known to answer it."""
        return QUALITIES[self.quality].need

    def matches(self, subject: Any) -> bool:
        """Whether the subject is so."""
        return QUALITIES[self.quality].read(subject)

    def rows(self, columns: Columns, count: int) -> bytes:
        """The verdicts on so many rows."""
        found = QUALITIES[self.quality].look(columns)
        return bytes([MAYBE]) * count if found is None else found


@attrs.frozen
class Not:
    """`not part`."""

    part: Node

    def __str__(self) -> str:
        return f"not ({self.part})" if isinstance(self.part, Group) else f"not {self.part}"

    def matches(self, subject: Any) -> bool:
        """Whether the part does not match."""
        return not self.part.matches(subject)

    def rows(self, columns: Columns, count: int) -> bytes:
        """The verdicts on so many rows."""
        return self.part.rows(columns, count).translate(_NOT)


@attrs.frozen(slots=False)
class Group:
    """Parts that must all match, or of which one must (`one`)."""

    parts: tuple[Node, ...]
    one: bool

    def __str__(self) -> str:
        if self.one:
            return " or ".join(map(str, self.parts))
        return " ".join(f"({p})" if isinstance(p, Group) else str(p) for p in self.parts)

    @functools.cached_property
    def _cheap_first(self) -> list[Node]:
        return sorted(self.parts, key=_cost)

    def matches(self, subject: Any) -> bool:
        """Whether the parts match; those that open no body are looked at first."""
        matching = (part.matches(subject) for part in self._cheap_first)
        return any(matching) if self.one else all(matching)

    def rows(self, columns: Columns, count: int) -> bytes:
        """The verdicts on so many rows."""
        if not self.parts:
            return bytes([NO if self.one else YES]) * count
        found = [part.rows(columns, count) for part in self.parts]
        return verdicts.either(found) if self.one else verdicts.both(found)


Node = Term | Is | Not | Group
"""Any part of a filter."""

_COSTS = {Need.CONNECTION: 0, Need.HEADER: 0, Need.ROW: 0, Need.REQUEST: 2, Need.RESPONSE: 1}


def terms_of(node: Node) -> Iterator[Term | Is]:
    """The terms in it, from left to right."""
    match node:
        case Not(part):
            yield from terms_of(part)
        case Group(parts):
            for part in parts:
                yield from terms_of(part)
        case _:
            yield node


def _cost(node: Node) -> int:
    return max((_COSTS[term.need] for term in terms_of(node)), default=0)


def starting(node: Node, start_ns: int) -> Node:
    """The same where times count from this one."""
    match node:
        case Not(part):
            return Not(starting(part, start_ns))
        case Group(parts, one):
            return Group(tuple(starting(part, start_ns) for part in parts), one)
        case Term(values=values):
            at = (v.starting(start_ns) if isinstance(v, TimeRange) else v for v in values)
            return attrs.evolve(node, values=tuple(at))
        case _:
            return node


def grouped(parts: Sequence[Node], one: bool) -> Node:
    """Put parts together as they would be read: one alone is itself, like in like is one."""
    flat: list[Node] = []
    for part in parts:
        flat += part.parts if isinstance(part, Group) and part.one is one else [part]
    return flat[0] if len(flat) == 1 else Group(tuple(flat), one)
