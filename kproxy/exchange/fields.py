"""A field of an exchange: every fact about it, in one place.

    broker_ms = ExchangeField(FLOAT, ROW, "…", path(…)) ─┬─▶ exchange.broker_ms    Python
                                                         ├─▶ "broker_ms": 1.52     --json
                                                         ├─▶ columns of tables     Parquet, Spark
                                                         ├─▶ broker_ms:50..        filters
                                                         └─▶ help texts, tables.md

The table of them is the class `exchange.Exchange`. The value of a field is made at first use, and
kept.

Invariant: a field that is not `nullable` is never None.
"""

from __future__ import annotations

import enum
import operator
from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

from kproxy.exchange.meanings import Meaning


class Type(enum.Enum):
    """The types of fields. JSON, Arrow, Spark and filters map them to their own types."""

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
    """An attrs value of `kproxy.wire.protocol.messages`; in tables, its JSON as text."""
    BYTES = enum.auto()
    """The bytes of a frame."""


class Need(enum.Enum):
    """The part of an exchange that a field is read from, the cheapest first."""

    CONNECTION = "connection"
    """The facts about the connection."""
    HEADER = "header"
    """The request's header, its size and its time."""
    REQUEST = "request"
    """The request's body; of a whole exchange both bodies are looked at."""
    ROW = "row"
    """The outcome of the exchange without either body: the recording's row, and notes."""
    RESPONSE = "response"
    """The response's body."""

    @property
    def opens_bodies(self) -> bool:
        """True if frames must be opened."""
        return self in (Need.REQUEST, Need.RESPONSE)


Read = Callable[[Any], Any]
"""A function that makes the value of one exchange."""


def path(name: str, *, none: int | None = None, per: int = 1) -> Read:
    """Return the reader of a path of attributes, whose value is divided by `per`; `none` is the
    value that stands for null."""
    read = operator.attrgetter(name)
    if none is None and per == 1:
        return read
    if per == 1:
        return lambda exchange: None if (value := read(exchange)) == none else value
    return lambda exchange: None if (value := read(exchange)) == none else value / per


def flag(bit: int) -> Read:
    """Return the reader of a flag of an exchange's frames."""
    return lambda exchange: exchange.has(bit)


Value = TypeVar("Value")


class Lazily(Generic[Value]):
    """A method without arguments, read as an attribute; its value is kept on the object.

    As `functools.cached_property`, but without the lock that this has before Python 3.12, which
    costs more than most of what exchanges keep: a recording has millions of them.
    """

    def __init__(self, make: Callable[[Any], Value]) -> None:
        self.make = make
        self.name = make.__name__
        self.__doc__ = make.__doc__

    @overload
    def __get__(self, owner: None, kind: type) -> Lazily[Value]: ...

    @overload
    def __get__(self, owner: object, kind: type) -> Value: ...

    def __get__(self, owner: object | None, kind: type) -> Lazily[Value] | Value:
        if owner is None:
            return self
        # Found there from now on, before this is asked.
        value = owner.__dict__[self.name] = self.make(owner)
        return value


# ── fields ───────────────────────────────────────────────────────────────────────────────────


class ExchangeField(Lazily[Any]):
    """One field, as an attribute of the class of exchanges."""

    def __init__(
        self, kind: Type, need: Need, about: str, read: Read | Meaning, *,
        unit: str = "", nullable: bool = False, in_json: bool = True, key: str = "",
    ) -> None:  # fmt: skip
        """Take its type, the part of an exchange that it needs, its description, what reads it: a
        function, or the meaning of the fields of bodies that tell it, whose body fact has the
        field's name.

        `unit`: ms, ns or bytes. `nullable`: it may be None. `in_json`: `kproxy show --json` has it;
        tables have all fields. `key`: the key of filters, where it differs from the field's name (a
        list's singular).
        """
        self.meaning = read if isinstance(read, Meaning) else None
        self.type, self.need, self.about, self.unit = kind, need, about, unit
        self.nullable, self.in_json, self.key = nullable, in_json, key
        self._read = read
        self.__doc__ = about

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name
        self.key = self.key or name
        read = self._read
        self.make = operator.attrgetter(f"facts.{name}") if isinstance(read, Meaning) else read


def fields_of(kind: type) -> dict[str, ExchangeField]:
    """Return the fields of a class by name, in the order of their definition."""
    return {name: each for name, each in vars(kind).items() if isinstance(each, ExchangeField)}
