"""The values of filter terms: patterns of text, names of a closed set, ranges, times.

A value is made of what was typed (`Typed`: text in which `*` may be a wildcard), knows whether it
matches, and writes itself so that it reads back the same. What cannot be a value is a ValueError
that says what would be one; the parser adds the column.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any

import attrs

from kproxy.units import parse_bytes, parse_seconds

Typed = tuple[str, ...]
"""Typed text, cut at its wildcards: `orders-*` is ("orders-", ""), `orders` is ("orders",)."""

_NEEDS_QUOTES = re.compile(r'[\s(),"\'\\]')
_DAY_NS = 86_400_000_000_000
_EPOCH_DAY = datetime(1970, 1, 1, tzinfo=UTC).toordinal()


def written(typed: Typed) -> str:
    """Return the text as a filter has it, in quotes where it needs them."""
    escaped = ["".join(f"\\{c}" if c in '\\*"' else c for c in part) for part in typed]
    text = "*".join(escaped)
    if not text or _NEEDS_QUOTES.search("".join(typed)) or not text.isprintable():
        return f'"{text}"'
    return text


def suggestion(typed: str, names: Iterable[str]) -> str:
    """Return the name closest to a typed one, or the first that begins so: ` (did you mean
    Fetch?)`, or nothing."""
    folded = {name.lower(): name for name in names}
    start = typed.lower()[:64]
    close = difflib.get_close_matches(start, folded, 1)
    if not close and len(start) >= _BEGINNING_MIN:
        close = sorted(each for each in folded if each.startswith(start))
    return f" (did you mean {folded[close[0]]}?)" if close else ""


_BEGINNING_MIN = 3
"""Letters of a name that tell which is meant."""


# ── text ─────────────────────────────────────────────────────────────────────────────────────


@attrs.frozen
class Glob:
    """Text in which `*` stands for any text, even none; `folded` ignores case."""

    typed: Typed
    folded: bool = False
    _parts: Typed = attrs.field(
        default=attrs.Factory(lambda own: own._folded(), takes_self=True),
        init=False,
        eq=False,
        repr=False,
    )

    def __str__(self) -> str:
        return written(self.typed)

    def _folded(self) -> Typed:
        return tuple(part.lower() for part in self.typed) if self.folded else self.typed

    def matches(self, value: str) -> bool:
        """Return whether a whole text matches the pattern."""
        parts = self._parts
        if self.folded:
            value = value.lower()
        if len(parts) == 1:
            return value == parts[0]
        first, *middle, last = parts
        if len(value) < len(first) + len(last):
            return False
        if not value.startswith(first) or not value.endswith(last):
            return False
        at, end = len(first), len(value) - len(last)
        for part in middle:
            at = value.find(part, at, end)
            if at < 0:
                return False
            at += len(part)
        return True


def glob(typed: Typed) -> Glob:
    """Return the pattern for free text."""
    return Glob(typed)


def choice(what: str, names: Callable[[], Iterable[str]]) -> Callable[[Typed], Glob]:
    """Return a reader for the names of a closed set, ignoring case."""

    def read(typed: Typed) -> Glob:
        known = list(names())
        pattern = Glob(typed, folded=True)
        found = [name for name in known if pattern.matches(name)]
        if not found:
            text = "*".join(typed)
            raise ValueError(f"there is no {what} {text!r}{suggestion(text, known)}")
        return Glob((found[0],), folded=True) if len(typed) == 1 else pattern

    return read


# ── numbers ──────────────────────────────────────────────────────────────────────────────────


def _between(low: float | None, value: float, high: float | None) -> bool:
    """Return whether a number is between two others, both included; None is open."""
    return (low is None or low <= value) and (high is None or value <= high)


@attrs.frozen
class Unit:
    """Functions that read and write the bounds of a range as integers."""

    read: Callable[[str], int]
    write: Callable[[int], str]
    example: str
    exact: bool = True
    """True if a single number is a valid value, not only a range."""


@attrs.frozen
class Range:
    """Numbers from `low` to `high`, both included; None is open. Both None is any number."""

    low: int | None
    high: int | None
    unit: Unit = attrs.field(eq=False, repr=False)

    def __str__(self) -> str:
        low = "" if self.low is None else self.unit.write(self.low)
        high = "" if self.high is None else self.unit.write(self.high)
        if low == high:
            return low or "*"
        return f"{low}..{high}"

    def matches(self, value: int) -> bool:
        """Return whether a number is in the range."""
        return _between(self.low, value, self.high)


def number_range(unit: Unit) -> Callable[[Typed], Range]:
    """Return a reader of ranges: `5`, `5..`, `..5`, `1..5`, `*`."""

    def read(typed: Typed) -> Range:
        if typed == ("", ""):
            return Range(None, None, unit)
        text = "*".join(typed)
        low_text, dots, high_text = text.partition("..")
        try:
            low = unit.read(low_text) if low_text else None
            high = unit.read(high_text) if high_text else None
        except (ValueError, OverflowError):
            low = high = None
        if low is None and high is None:
            raise ValueError(f"{text!r} is no range; write it as in {unit.example}")
        if not dots:
            if not unit.exact:
                raise ValueError(f"{text!r} is one instant; write a range, as in {unit.example}")
            high = low
        if low is not None and high is not None and low > high:
            raise ValueError(f"{text!r} is empty: its end is before its beginning")
        return Range(low, high, unit)

    return read


def _read_integer(text: str) -> int:
    if not re.fullmatch(r"-?[0-9]+", text):
        raise ValueError(text)
    return int(text)


def _read_ms(text: str) -> int:
    """Return a duration in nanoseconds; a number alone is milliseconds."""
    plain = re.fullmatch(r"([0-9]+)(?:\.([0-9]+))?", text)
    if plain is None:
        return round(parse_seconds(text) * 1e9)
    return int(plain[1]) * 1_000_000 + int((plain[2] or "")[:6].ljust(6, "0"))


def _write_ms(value: int) -> str:
    whole, fraction = divmod(value, 1_000_000)
    return f"{whole}.{fraction:06}".rstrip("0").rstrip(".")


INTEGER = number_range(Unit(_read_integer, str, "7 or 3..7 or 3.."))
BYTES = number_range(Unit(parse_bytes, str, "1MiB.. or ..64KiB"))
MILLISECONDS = number_range(Unit(_read_ms, _write_ms, "50.. (ms) or ..1s", exact=False))
"""A reader of durations, as nanoseconds."""


@attrs.frozen
class NamedNumbers:
    """Numbers of exchanges of one recording: `shop#12`, `shop#3..7` (see `within`)."""

    recording: str
    numbers: Range

    def __str__(self) -> str:
        return written((f"{self.recording}#{self.numbers}",))

    def matches(self, number: int) -> bool:
        """Refuse: the number alone does not tell the recording.

        Raises: ValueError.
        """
        raise ValueError(f"{str(self)!r} names a recording, and which one this is, is not known")

    def within(self, goes_by: Callable[[str], bool]) -> Range:
        """Return the numbers, or none, in a recording that goes by some names."""
        return self.numbers if goes_by(self.recording) else Range(1, 0, self.numbers.unit)


def exchange_numbers(typed: Typed) -> Range | NamedNumbers:
    """Read numbers of exchanges: `12`, `#12`, `3..7`, `shop#12`."""
    recording, mark, _ = "*".join(typed).rpartition("#")
    if not mark:
        return INTEGER(typed)
    numbers = INTEGER((typed[-1].rpartition("#")[2],))
    return NamedNumbers(recording, numbers) if recording else numbers


# ── parts of JSON ────────────────────────────────────────────────────────────────────────────

_NUMBER = re.compile(r"-?(0|[1-9][0-9]{0,39})(\.[0-9]{1,40})?([eE][+-]?[0-9]{1,3})?")


def _number(text: str) -> int | float | None:
    found = _NUMBER.fullmatch(text)
    if found is None:
        return None
    return int(text) if found[2] is found[3] is None else float(text)


@attrs.frozen
class Leaf:
    """What a part of JSON may be: a text, `true`, `false`, `null`, a number, numbers in a range."""

    typed: Typed
    low: int | float | None = attrs.field(default=None, eq=False)
    high: int | float | None = attrs.field(default=None, eq=False)
    """Both None: no numbers are meant, other than by their text."""

    def __str__(self) -> str:
        return written(self.typed)

    def matches(self, value: Any) -> bool:
        """Return whether a plain value of JSON matches; an object or an array does not, but for
        `*`. A text that is a number is one: Protobuf's JSON writes large numbers so."""
        match value:
            case dict() | list():
                return self.typed == ("", "")
            case None | bool():
                return Glob(self.typed).matches({None: "null", True: "true", False: "false"}[value])
            case int() | float():
                return self._holds(value) or Glob(self.typed).matches(repr(value))
            case _:
                text = str(value)
                return Glob(self.typed).matches(text) or self._holds(_number(text))

    def _holds(self, number: int | float | None) -> bool:
        if number is None or self.low is self.high is None:
            return False
        return _between(self.low, number, self.high)


def leaf(typed: Typed) -> Leaf:
    """Read a pattern for a part of JSON: `ann`, `a*`, `true`, `12`, `12..`, `0.5..1.5`."""
    if len(typed) != 1:
        return Leaf(typed)
    low_text, dots, high_text = typed[0].partition("..")
    low, high = _number(low_text), _number(high_text)
    if not dots:
        return Leaf(typed, low, low)
    if (low_text and low is None) or (high_text and high is None):
        return Leaf(typed)
    if low is not None and high is not None and low > high:
        raise ValueError(f"{typed[0]!r} is empty: its end is before its beginning")
    return Leaf(typed, low, high)


# ── times ────────────────────────────────────────────────────────────────────────────────────

ABSOLUTE = "a date and time"
OF_DAY = "a time of day"
RELATIVE = "a time since the beginning"

_ABSOLUTE = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)"
    r"(?:[T ](\d\d):(\d\d)(?::(\d\d)(?:\.(\d{1,9}))?)?(?:(Z)|([+-])(\d\d):(\d\d))?)?",
    re.ASCII,
)
_ZONE = re.compile(r"Z|[+-]\d\d:\d\d(\.\.|$)")
_OF_DAY = re.compile(r"(\d\d):(\d\d)(?::(\d\d)(?:\.(\d{1,9}))?)?", re.ASCII)
_TIME_EXAMPLES = "12:03..12:05, 2026-05-01T12:03:10Z.. or ..+30s"


@attrs.frozen
class TimeRange:
    """Times from one to another, in UTC; a bound stands for the whole time that it names.

    `12:03` is a minute, `12:03:10` a second, of any day; `12:59..13:01` begins with the one and
    ends with the other. `+30s` counts from the beginning of the recording (see `starting`).
    """

    text: str
    kind: str
    low_ns: int | None
    high_ns: int | None

    def __str__(self) -> str:
        return written((self.text,))

    def matches(self, time_ns: int) -> bool:
        """Return whether a time is in the range.

        Raises:
            ValueError: the range counts from a beginning that is not known.
        """
        if self.kind == RELATIVE:
            raise ValueError(f"{self.text!r} counts from a beginning that is not known")
        low_ns, high_ns = self.low_ns, self.high_ns
        if self.kind == OF_DAY:
            time_ns %= _DAY_NS
            if low_ns is not None and high_ns is not None and low_ns > high_ns:
                return time_ns >= low_ns or time_ns <= high_ns  # over midnight
        return _between(low_ns, time_ns, high_ns)

    def starting(self, start_ns: int) -> TimeRange:
        """Return the same range counted from this time."""
        if self.kind != RELATIVE:
            return self
        low_ns = None if self.low_ns is None else start_ns + self.low_ns
        high_ns = None if self.high_ns is None else start_ns + self.high_ns
        return TimeRange(self.text, ABSOLUTE, low_ns, high_ns)

    def local(self, offset_ns: int) -> TimeRange:
        """Return the same range, if its text names no zone, as of a zone this far ahead of UTC."""
        if self.kind == RELATIVE or _ZONE.search(self.text):
            return self
        low_ns, high_ns = self.low_ns, self.high_ns
        if self.kind == ABSOLUTE:
            low_ns = None if low_ns is None else low_ns - offset_ns
            high_ns = None if high_ns is None else high_ns - offset_ns
        else:  # to the end of the day, or from its beginning
            low_ns = ((low_ns or 0) - offset_ns) % _DAY_NS
            high_ns = ((_DAY_NS - 1 if high_ns is None else high_ns) - offset_ns) % _DAY_NS
        return TimeRange(self.text, self.kind, low_ns, high_ns)


def time_range(typed: Typed) -> TimeRange:
    """Read a time or a range of times."""
    text = "*".join(typed)
    low_text, dots, high_text = text.partition("..")
    low = _moment(low_text) if low_text else None
    high = _moment(high_text) if high_text else None
    one = low or high
    if one is None or (low_text and low is None) or (high_text and high is None):
        raise ValueError(f"{text!r} is no time; write it as in {_TIME_EXAMPLES}")
    if low and high and low[0] != high[0]:
        raise ValueError(f"{text!r} is from {low[0]} to {high[0]}: write both in the same way")
    if not dots:
        if one[0] == RELATIVE:
            raise ValueError(f"{text!r} is one instant; write a range, as in {_TIME_EXAMPLES}")
        high = low
    low_ns = None if low is None else low[1]
    high_ns = None if high is None else high[1] + high[2] - 1
    if low_ns is not None and high_ns is not None and low_ns > high_ns and one[0] != OF_DAY:
        raise ValueError(f"{text!r} is empty: its end is before its beginning")
    return TimeRange(text, one[0], low_ns, high_ns)


def _moment(text: str) -> tuple[str, int, int] | None:
    """Return the kind, the beginning and the length of a time; None if the text is no time."""
    try:
        if text.startswith("+"):
            return RELATIVE, round(parse_seconds(text[1:]) * 1e9), 1
        if found := _OF_DAY.fullmatch(text):
            day_ns, span_ns = _clock(*found.groups())
            return OF_DAY, day_ns, span_ns
        if found := _ABSOLUTE.fullmatch(text):
            begin_ns, span_ns = _date(found.groups())
            return ABSOLUTE, begin_ns, span_ns
    except (ValueError, OverflowError):
        return None
    return None


def _date(groups: tuple[Any, ...]) -> tuple[int, int]:
    year, month, day, hour, minute, second, fraction, _, sign, east_hour, east_minute = groups
    date = datetime(int(year), int(month), int(day), tzinfo=UTC)
    day_ns = (date.toordinal() - _EPOCH_DAY) * _DAY_NS
    if hour is None:
        return day_ns, _DAY_NS
    clock_ns, span_ns = _clock(hour, minute, second, fraction)
    if sign:
        offset_ns = _clock(east_hour, east_minute, None, None)[0]
        day_ns -= offset_ns if sign == "+" else -offset_ns
    return day_ns + clock_ns, span_ns


def _clock(hour: str, minute: str, second: str | None, fraction: str | None) -> tuple[int, int]:
    if int(hour) > 23 or int(minute) > 59 or int(second or 0) > 59:
        raise ValueError
    seconds = int(hour) * 3600 + int(minute) * 60 + int(second or 0)
    if second is None:
        return seconds * 1_000_000_000, 60_000_000_000
    digits = fraction or ""
    fraction_ns = int(digits.ljust(9, "0"))
    return seconds * 1_000_000_000 + fraction_ns, 10 ** (9 - len(digits))


Value = Glob | Range | TimeRange | NamedNumbers | Leaf
