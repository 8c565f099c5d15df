"""Sizes, durations and times in the notation of people: one parser for all user input.

`1GiB`, `256 KiB`, `64kB`, `1500` (bytes); `300ms`, `1h`, `90` (seconds).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_QUANTITY = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Zµ]*)\s*")

_BYTES = {
    "": 1,
    "b": 1,
    "kb": 1000,
    "mb": 1000**2,
    "gb": 1000**3,
    "tb": 1000**4,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
    "tib": 1 << 40,
}
_SECONDS = {
    "": 1.0,
    "us": 1e-6,
    "µs": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "m": 60.0,
    "min": 60.0,
    "h": 3600.0,
    "d": 86400.0,
}


def parse_bytes(text: str) -> int:
    """Return a size in bytes.

    Raises:
        ValueError: it is not a size; the text has examples.
    """
    return int(_parse(text, _BYTES, "a size such as 64KiB or 1GiB"))


def parse_seconds(text: str) -> float:
    """Return a duration in seconds.

    Raises:
        ValueError: it is not a duration; the text has examples.
    """
    return _parse(text, _SECONDS, "a duration such as 300ms or 1h")


def _parse(text: str, units: Mapping[str, float], expected: str) -> float:
    found = _QUANTITY.fullmatch(text)
    if not found or found[2].lower() not in units:
        raise ValueError(f"{text!r} is not {expected}")
    value = float(found[1]) * units[found[2].lower()]
    if math.isinf(value):  # of hundreds of digits
        raise ValueError(f"{text!r} is not {expected}")
    return value


def format_bytes(size: int) -> str:
    """Return a size as a person reads it: `512 B`, `1.4 KiB`, `3.0 GiB`."""
    if size < 1024:
        return f"{size} B"
    value = float(size)
    for unit in ("KiB", "MiB", "GiB"):
        value /= 1024
        if value < 1024:
            return f"{value:.1f} {unit}"
    return f"{value / 1024:.1f} TiB"


def moment(time_ns: int) -> datetime:
    """Return nanoseconds since the Unix epoch as a UTC time, to the microsecond."""
    return _EPOCH + timedelta(microseconds=time_ns // 1000)


def time_of_day(time: datetime) -> str:
    """Return the time of day of a moment, to the millisecond: `13:05:00.250`."""
    return f"{time:%H:%M:%S}.{time.microsecond // 1000:03}"
