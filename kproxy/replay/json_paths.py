"""Paths of parts of JSON values that are not compared.

::

    created_at          a member of the object
    order.items[*].id   a member of every element of a list
    [0].id              a member of the first element
    $.meta              the same as meta

Invariant: a value that is not JSON, or has none of the paths, is compared byte by byte.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

Path = tuple[str | int | None, ...]
"""Members, indexes, and None for every element."""

_STEP = re.compile(r"\.?([^.\[\]]+)|\[(\*|\d{1,9})\]")
_NESTED_MAX = 50


def parse(text: str) -> Path:
    """Parse a path.

    Raises:
        ValueError: the text is no path; the message gives an example.
    """
    rest = text.removeprefix("$")
    steps: list[str | int | None] = []
    position = 0
    while position < len(rest):
        found = _STEP.match(rest, position)
        if found is None:
            break
        member, index = found.groups()
        steps.append(member if index is None else None if index == "*" else int(index))
        position = found.end()
    if not steps or position < len(rest) or len(steps) > _NESTED_MAX:
        raise ValueError(f"{text!r} is no path: give one like meta.id or items[*].price")
    return tuple(steps)


def without(data: bytes | None, paths: Iterable[Path]) -> bytes | None:
    """Return a value without the parts at the paths, as bytes; equal rests give equal bytes."""
    if not data or data[:1] not in b'{[ \t\r\n"':
        return data
    try:
        value = json.loads(data)
        removed = [_remove(value, path) for path in paths]
        if not any(removed):
            return data
        return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
    except (ValueError, RecursionError):
        return data


def _remove(value: Any, path: Path) -> bool:
    """Set the parts at a path to None; return whether there were any."""
    step, rest = path[0], path[1:]
    keys: list[Any] = []
    if isinstance(value, dict):
        keys = [step] if step in value else []
    elif isinstance(value, list) and not isinstance(step, str):
        keys = [each for each in range(len(value)) if step in (None, each)]
    # All of them, for any() would stop at the first.
    return sum(_remove_at(value, key, rest) for key in keys) > 0


def _remove_at(value: Any, key: Any, rest: Path) -> bool:
    if rest:
        return _remove(value[key], rest)
    value[key] = None
    return True
