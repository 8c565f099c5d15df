"""A field of an exchange: every fact about it, in one place.

    Exchange.broker_ms = field(FLOAT, ROW, "…", make) ─┬─▶ exchange.broker_ms      Python
                                                       ├─▶ "broker_ms": 1.52       --json
                                                       ├─▶ columns of tables       Parquet, Spark
                                                       ├─▶ broker_ms:50..          filters
                                                       └─▶ help texts, tables.md

The table of them is the class `exchange.Exchange`. The value of a field is made at first use, and
kept.

Invariant: a field that is not `nullable` is never None.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any, TypeVar

from kproxy.exchange.lazily import Lazily

Value = TypeVar("Value")


class Type(enum.Enum):
    """The types of fields. Readers that know others map them: JSON, Arrow, Spark, filters."""

    INT16 = enum.auto()
    INT32 = enum.auto()
    INT64 = enum.auto()
    FLOAT = enum.auto()
    BOOL = enum.auto()
    TEXT = enum.auto()
    TEXTS = enum.auto()
    """A list of texts."""
    TIME = enum.auto()
    """A moment in UTC, to the microsecond."""
    PARTITIONS = enum.auto()
    """A list of topics with a partition each."""
    WAITED = enum.auto()
    """An `endings.Unanswered`."""
    BODY = enum.auto()
    """An attrs value of `kproxy.protocol.messages`; in tables, its JSON as text."""
    BYTES = enum.auto()
    """A frame."""


class Need(enum.Enum):
    """What must be known to tell a field, from the least on."""

    CONNECTION = "connection"
    """Who is connected."""
    HEADER = "header"
    """The request's header, its size and its time."""
    REQUEST = "request"
    """The request's body; of a whole exchange both bodies are looked at."""
    ROW = "row"
    """How the exchange ended, but neither body: the recording's row, and notes."""
    RESPONSE = "response"
    """The response's body."""

    @property
    def opens_bodies(self) -> bool:
        """Whether frames must be opened."""
        return self in (Need.REQUEST, Need.RESPONSE)


class Field(Lazily[Value]):
    """One field, as an attribute of the class of exchanges."""

    def __init__(
        self, make: Callable[[Any], Value], kind: Type, need: Need, about: str, unit: str,
        nullable: bool, in_json: bool, key: str,
    ) -> None:  # fmt: skip
        """See `field`."""
        self.make = make
        self.type, self.need, self.about, self.unit = kind, need, about, unit
        self.nullable, self.in_json, self.key = nullable, in_json, key
        self.__doc__ = about

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name
        self.key = self.key or name


def field(
    kind: Type, need: Need, about: str, make: Callable[[Any], Value], *, unit: str = "",
    nullable: bool = False, in_json: bool = True, key: str = "",
) -> Field[Value]:  # fmt: skip
    """Return a field: its type, what must be known to tell it, what it says, what makes it.

    `unit`: ms, ns or bytes. `nullable`: it may be None. `in_json`: `kproxy show --json` has it;
    tables have all fields. `key`: of filters, where it is not the field's own name (a list's
    singular).
    """
    return Field(make, kind, need, about, unit, nullable, in_json, key)


def fields_of(kind: type) -> dict[str, Field[Any]]:
    """Return the fields of a class by name, in the order in which they are written there."""
    return {name: each for name, each in vars(kind).items() if isinstance(each, Field)}
