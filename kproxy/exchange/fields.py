"""A field of an exchange: every fact about it, in one place.

    Exchange.broker_ms = field(FLOAT, ROW, "…", source) ─┬─▶ exchange.broker_ms    Python
                                                         ├─▶ "broker_ms": 1.52     --json
                                                         ├─▶ columns of tables     Parquet, Spark
                                                         ├─▶ broker_ms:50..        filters
                                                         └─▶ help texts, tables.md

The table of them is the class `exchange.Exchange`. The value of a field is made at first use, and
kept. Its source is a function of the exchange, or one of the few kinds that many fields have.

Invariant: a field that is not `nullable` is never None.
"""

from __future__ import annotations

import enum
import operator
from collections.abc import Callable
from typing import Any

import attrs

from kproxy.exchange import derived
from kproxy.exchange.lazily import Lazily
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


# ── where values come from ───────────────────────────────────────────────────────────────────


@attrs.frozen
class RowColumn:
    """The field of the row with the same name."""

    none: int | None = None
    """The value that stands for null."""


@attrs.frozen
class HeaderColumn:
    """The field of the row with the same name; null where a request has no header."""


@attrs.frozen
class Flag:
    """A flag of the request or the response."""

    flag: int


@attrs.frozen
class Duration:
    """A property of microseconds, as milliseconds; null where it is not known."""

    name: str


@attrs.frozen
class BodyFact:
    """The body fact of the field's own name (`body_facts`)."""

    meaning: Meaning
    """The meaning of the body fields that tell it."""


Source = RowColumn | HeaderColumn | Flag | Duration | BodyFact | Callable[[Any], Any]
"""The source of a field's values; a function makes the value of one exchange."""


def _make_reader(source: Source, name: str) -> Callable[[Any], Any]:
    """Return the function that makes the value of one exchange."""
    match source:
        case RowColumn(none=None):
            return operator.attrgetter(f"row.{name}")
        case RowColumn(none=none):
            read = operator.attrgetter(name)
            return lambda exchange: None if (value := read(exchange.row)) == none else value
        case HeaderColumn():
            read = operator.attrgetter(name)
            return lambda exchange: read(exchange.row) if exchange.named else None
        case Flag(flag=flag):
            return lambda exchange: exchange.has(flag)
        case Duration(name=duration):
            read = operator.attrgetter(duration)
            return lambda exchange: _milliseconds(read(exchange))
        case BodyFact():
            return operator.attrgetter(f"facts.{name}")
        case _:
            return source


def _milliseconds(duration_us: int) -> float | None:
    return None if duration_us == derived.UNKNOWN else duration_us / 1000


# ── fields ───────────────────────────────────────────────────────────────────────────────────


class ExchangeField(Lazily[Any]):
    """One field, as an attribute of the class of exchanges."""

    def __init__(
        self, source: Source, kind: Type, need: Need, about: str, unit: str,
        nullable: bool, in_json: bool, key: str,
    ) -> None:  # fmt: skip
        """See `field`."""
        self.source = source
        self.type, self.need, self.about, self.unit = kind, need, about, unit
        self.nullable, self.in_json, self.key = nullable, in_json, key
        self.__doc__ = about

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name
        self.key = self.key or name
        self.make = _make_reader(self.source, name)


def field(
    kind: Type, need: Need, about: str, source: Source, *, unit: str = "",
    nullable: bool = False, in_json: bool = True, key: str = "",
) -> ExchangeField:  # fmt: skip
    """Return a field: its type, the part of an exchange that it needs, its description, its source.

    `unit`: ms, ns or bytes. `nullable`: it may be None. `in_json`: `kproxy show --json` has it;
    tables have all fields. `key`: the key of filters, where it differs from the field's name (a
    list's singular).
    """
    return ExchangeField(source, kind, need, about, unit, nullable, in_json, key)


def fields_of(kind: type) -> dict[str, ExchangeField]:
    """Return the fields of a class by name, in the order of their definition."""
    return {name: each for name, each in vars(kind).items() if isinstance(each, ExchangeField)}
