"""Fields that matter for one purpose, chosen by the schema: where they are, what a body has there.

::

    (message, predicate) ─▶ Selection ─┬─ paths(version) ─▶ codec.locate: their bytes in a frame
                                       ├─ values(body) ──▶ the values
                                       └─ found(body) ───▶ with their paths and the structs around

A predicate gets a field and the fields of the struct that it stands in, so that it can ask what is
beside it (a host beside a port and a node id). Error codes, topics, groups, records and addresses
are found in this way in every API, new ones included.

Invariants: values come in the order of the definition, elements of arrays in turn. Null gives no
value; a field that the body's version lacks gives its default, which is for the caller to leave
out. The readers are compiled when first used, one loop per array on the way.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import attrs

from kproxy.wire.protocol import schema
from kproxy.wire.protocol.schema import Field, Message
from kproxy.wire.protocol.source import FunctionSource

Predicate = Callable[[Field, tuple[Field, ...]], bool]
"""A function that chooses a field, given the field and all fields of its struct, itself among
them."""


class Found(NamedTuple):
    """One value in a body."""

    path: str
    value: Any
    within: tuple[Any, ...]
    """The structs around it: the body first, the one that has the field last."""


@attrs.frozen(eq=False)
class ChosenField:
    """One chosen field."""

    fields: tuple[Field, ...]
    """From the message's own field down to the chosen one."""
    beside: tuple[Field, ...]
    """All fields of the struct that it stands in, itself among them."""

    @property
    def path(self) -> str:
        """Its dotted path; arrays are implied: "topics.partitions.error_code"."""
        return ".".join(field.name for field in self.fields)

    def in_version(self, version: int) -> bool:
        """Return whether this version has the field."""
        return all(version in field.versions for field in self.fields)


@attrs.frozen(eq=False, slots=False)
class Selection:
    """The chosen fields of one message."""

    message: Message
    places: tuple[ChosenField, ...]
    """The chosen fields, in the order of the definition."""

    def paths(self, version: int) -> tuple[str, ...]:
        """Return the paths that a version has, as `codec.locate` takes them."""
        return tuple(place.path for place in self.places if place.in_version(version))

    @functools.cached_property
    def values(self) -> Callable[[Any], list[Any]]:
        """A function `f(body) -> [value, …]`."""
        return _compile(self, "add({value})")

    @functools.cached_property
    def found(self) -> Callable[[Any], list[Found]]:
        """A function `f(body) -> [Found, …]`."""
        return _compile(self, "add(Found({path!r}, {value}, ({within},)))")


@functools.lru_cache(maxsize=4096)
def select(message: Message, predicate: Predicate) -> Selection:
    """Choose the fields of a message; `predicate` is a function of a module, not one made anew."""
    return Selection(message, tuple(_places(message.fields, predicate, ())))


@functools.lru_cache(maxsize=4096)
def select_of(body: type, predicate: Predicate) -> Selection:
    """Choose the fields of the class of a body, as `select` does: faster if done for every body."""
    return select(schema.named(body.__name__), predicate)


def _places(
    fields: tuple[Field, ...], predicate: Predicate, above: tuple[Field, ...]
) -> Iterator[ChosenField]:
    for field in fields:
        if predicate(field, fields):
            yield ChosenField((*above, field), fields)
        yield from _places(field.fields, predicate, (*above, field))


# ── the readers ──────────────────────────────────────────────────────────────────────────────


def _compile(selection: Selection, add: str) -> Callable[[Any], list[Any]]:
    source = FunctionSource()
    source.constant("Found", Found)
    with source.block("def read(body):"):
        source("read = []", "add = read.append")
        chosen = frozenset(place.path for place in selection.places)
        _write(source, selection.message.fields, chosen, (), ("body",), add)
        source("return read")
    return source.build(f"select {selection.message.name} {sorted(chosen)} {add}", "read")


def _write(
    source: FunctionSource,
    fields: tuple[Field, ...],
    chosen: frozenset[str],
    above: tuple[str, ...],
    within: tuple[str, ...],
    add: str,
) -> None:
    """Write the reading of a struct: `within` are the variables for it and the structs around
    it."""
    for field in fields:
        names = (*above, field.name)
        path = ".".join(names)
        wanted = path in chosen
        below = any(each.startswith(f"{path}.") for each in chosen)
        if not wanted and not below:
            continue
        value = source.name("v")
        holder = f"{within[-1]}.{field.name}"
        loop = f"for {value} in {holder} or ():"
        with source.block(loop if field.is_array else f"if ({value} := {holder}) is not None:"):
            if wanted:
                source(add.format(path=path, value=value, within=", ".join(within)))
            if below:
                _write(source, field.fields, chosen, names, (*within, value), add)
