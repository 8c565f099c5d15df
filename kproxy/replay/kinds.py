"""Kinds of content that varies from run to run: ids, times, counters; what is of a kind, and which
kind some contents are of.

A part that is ignored with a kind may have any content of that kind: null, or a text that is none,
is a difference. What has an identity is also to be equal where it was equal when it was recorded,
and to differ where it differed (`produced.ProduceCheck.ties`).
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Sequence
from typing import Any

_UUID = re.compile(r"[0-9a-f]{8}-?([0-9a-f]{4}-?){3}[0-9a-f]{12}", re.IGNORECASE)
_ISO_TIME = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d([.,]\d+)?)?\s?(Z|[+-]\d\d:?\d\d)?)?")
_RFC_TIME = re.compile(r"[A-Z][a-z]{2}, \d{1,2} [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d .+")
_RANDOM = re.compile(r"(?=.*\d)[\w+/=.:~-]{8,}")
_FROM_SECONDS, _UNTIL_SECONDS = 946_684_800, 4_102_444_800
"""Numbers of seconds since 1970 between 2000 and 2100 are times; so are ms, μs and ns."""


class Kind(enum.Enum):
    """The kind of a part that varies; the value is the word for it."""

    UUID = "uuid"
    TIME = "time"
    COUNTER = "counter"
    RANDOM = "random"
    UNIQUE = "unique"
    ANY = "any"

    @property
    def mark(self) -> str | None:
        """Stands for content of this kind where records are compared."""
        return None if self is Kind.ANY else _MARK_OF[self]

    @property
    def has_identity(self) -> bool:
        """Whether equal content is equal in each run, and other content is other."""
        return self not in (Kind.TIME, Kind.ANY)

    def fits(self, content: Any) -> bool:
        """Return whether a plain value, or bytes, are of this kind."""
        return _FITS[self](plain(content))


def plain(content: Any) -> Any:
    """Return bytes as text, or in hex; a time in ms, as Java has it in 8 bytes, as a number; what
    is none of these as it is."""
    if not isinstance(content, bytes | bytearray):
        return content
    try:
        return content.decode()
    except UnicodeDecodeError:
        number = int.from_bytes(content)
        is_time = len(content) == 8 and _FROM_SECONDS <= number / 1000 < _UNTIL_SECONDS
        return number if is_time else content.hex()


def _is_uuid(content: Any) -> bool:
    return isinstance(content, str) and _UUID.fullmatch(content) is not None


def _number(content: Any) -> float | None:
    if isinstance(content, bool) or not isinstance(content, int | float | str):
        return None
    try:
        return float(content)
    except (ValueError, OverflowError):
        return None


def _is_time(content: Any) -> bool:
    number = _number(content)
    if number is not None:
        return any(_FROM_SECONDS <= number / by < _UNTIL_SECONDS for by in (1, 1e3, 1e6, 1e9))
    known = (_ISO_TIME, _RFC_TIME)
    return isinstance(content, str) and any(each.fullmatch(content) for each in known)


def _is_counter(content: Any) -> bool:
    number = _number(content)
    return number is not None and number.is_integer()


def _is_random(content: Any) -> bool:
    return isinstance(content, str) and _RANDOM.fullmatch(content) is not None


_FITS: dict[Kind, Callable[[Any], bool]] = {
    Kind.UUID: _is_uuid,
    Kind.TIME: _is_time,
    Kind.COUNTER: _is_counter,
    Kind.RANDOM: _is_random,
    Kind.UNIQUE: lambda content: content is not None,
    Kind.ANY: lambda content: True,
}
_MARK_OF = {
    Kind.UUID: "a UUID",
    Kind.TIME: "a time",
    Kind.COUNTER: "a number",
    Kind.RANDOM: "a random text",
    Kind.UNIQUE: "a unique value",
}
MARKS = frozenset(_MARK_OF.values())


def kind_of(runs: Sequence[Sequence[Any]]) -> Kind | None:
    """Return the kind that all contents of a part are of, given those of each run in order; None if
    they may be data."""
    contents = [each for run in runs for each in run]
    for kind in (Kind.UUID, Kind.TIME):
        if all(map(kind.fits, contents)):
            return kind
    if all(map(Kind.COUNTER.fits, contents)):
        numbers = [[_number(plain(each)) or 0 for each in run] for run in runs]
        rises = all(sorted(set(run)) == run for run in numbers)
        return Kind.COUNTER if rises and min(map(len, runs)) > 1 else None
    texts = [str(plain(each)) for each in contents]
    same_length = len(set(map(len, texts))) == 1
    if same_length and all(map(Kind.RANDOM.fits, contents)):
        return Kind.RANDOM
    return None
