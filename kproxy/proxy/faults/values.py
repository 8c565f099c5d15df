"""Values as people type them behind the keys of a rule: durations, sizes, numbers, yes.

Invariant: a value that is accepted can be carried out: it overflows nothing, and is not absurdly
large. A mistake is a ValueError that says what is allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeGuard

from kproxy import units

INT16_MAX = (1 << 15) - 1
INT32_MAX = (1 << 31) - 1
COUNT_MAX = 10**12
"""The largest number of exchanges in a rule: more than any connection has had."""
DELAY_MAX = f"{INT32_MAX}ms"
"""The longest delay of an exchange, 24 days: a response has 32 bits for its throttle time."""
SPAN_MAX = "365d"
"""The longest time in which a rule hits."""
_BYTES_MAX = "1TiB"

ReadDelays = Callable[[str], Sequence[int]]
"""The name of a recording → the latencies of its brokers in nanoseconds, by exchange."""


def no_recordings(name: str) -> Sequence[int]:
    """Refuse to read a recording: for rules without files.

    Raises:
        ValueError: always.
    """
    raise ValueError(f"the latencies of {name} cannot be read here")


def is_whole(value: Any, least: int, most: int) -> TypeGuard[int]:
    """Return whether a value is a whole number between these."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def each(value: Any) -> Sequence[Any]:
    """Return one value, or the values of a list, as a sequence.

    Raises:
        ValueError: the list is empty.
    """
    found = list(value) if isinstance(value, list | tuple | set | frozenset) else [value]
    if not found:
        raise ValueError("an empty list means nothing")
    return found


def parse_yes(value: Any) -> bool:
    """Read the value of an action that has no choice.

    Raises:
        ValueError: it is not true.
    """
    if value is not True:
        raise ValueError(f"{value!r} is not true; leave the key out where it shall not be")
    return True


def parse_count(value: Any, least: int = 1) -> int:
    """Read a number of exchanges.

    Raises:
        ValueError: it is no number from `least` to COUNT_MAX.
    """
    if not is_whole(value, least, COUNT_MAX):
        raise ValueError(f"{value!r} is not a number from {least} up to {COUNT_MAX}")
    return value


def parse_probability(value: Any) -> float:
    """Read a probability.

    Raises:
        ValueError: it is no number from 0 to 1.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{value!r} is not a number from 0 to 1")
    if not 0 <= value <= 1:
        raise ValueError(f"{value!r} is not from 0 to 1")
    return value


def parse_frame_bytes(value: Any) -> int:
    """Read a number of bytes of a frame.

    Raises:
        ValueError: it is none, or more than a frame can have.
    """
    if not is_whole(value, 0, INT32_MAX):
        raise ValueError(f"{value!r} is not a number of bytes from 0 to {INT32_MAX}")
    return value


def parse_size(value: Any) -> int:
    """Read a size, a number of bytes or a text such as "64KiB".

    Raises:
        ValueError: it is none, nothing, or more than _BYTES_MAX.
    """
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError(f'{value!r} is not a size such as "64KiB"')
    size = units.parse_bytes(value) if isinstance(value, str) else value
    if size <= 0:
        raise ValueError(f"{value!r} is not a size above 0")
    if size > units.parse_bytes(_BYTES_MAX):
        raise ValueError(f"{value!r} is more than {_BYTES_MAX}")
    return size


def duration_ns(value: Any, most: str = DELAY_MAX) -> int:
    """Read a duration such as "300ms".

    Raises:
        ValueError: it is none, or more than the most.
    """
    if not isinstance(value, str):
        raise ValueError(f'{value!r} is not a duration such as "300ms" or "2s"')
    seconds = units.parse_seconds(value)
    if seconds > units.parse_seconds(most):
        raise ValueError(f"{value!r} is more than {most}")
    return int(seconds * 1e9)


def positive_ns(value: Any, most: str = DELAY_MAX) -> int:
    """Read a duration above 0.

    Raises:
        ValueError: it is 0, not a duration, or more than the most.
    """
    found = duration_ns(value, most)
    if found <= 0:
        raise ValueError(f"{value!r} is no time at all")
    return found
