"""Paths of parts of JSON values: filters look there, a replay does not compare them.

::

    created_at          a member of the object
    order.items[*].id   a member of every element of a list
    [0].id              a member of the first element
    $.meta              the same as meta
    ["service.name"]    a member whose name would be taken for a path: quoted as in JSON

Invariant: a value that is not JSON has no parts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

Path = tuple[str | int | None, ...]
"""Members, indexes, and None for every element."""

_QUOTED = r'"(?:[^"\\\0-\x1f]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*"'
_STEP = re.compile(rf"\.?([^.\[\]]+)|\[(\*|\d{{1,9}}|{_QUOTED})\]")
_PLAIN = re.compile(r'(?!\$)[^.\[\]"]+')
_INDEX = re.compile(rf"({_QUOTED})|\[\d+\]")
_NESTED_MAX = 50


class PathError(ValueError):
    """A text that is no path; the message gives an example."""

    def __init__(self, text: str, place: int) -> None:
        super().__init__(f"{text!r} is no path: give one like meta.id or items[*].price")
        self.place = place
        """The number of its characters that can be read."""


def parse(text: str) -> Path:
    """Parse a path.

    Raises:
        PathError: the text is no path.
    """
    steps: list[str | int | None] = []
    place = len(text) - len(text.removeprefix("$"))
    while place < len(text):
        found = _STEP.match(text, place)
        if found is None:
            break
        member, index = found.groups()
        if index is not None:
            member = json.loads(index) if index[0] == '"' else None if index == "*" else int(index)
        steps.append(member)
        place = found.end()
    if not steps or place < len(text) or len(steps) > _NESTED_MAX:
        raise PathError(text, place)
    return tuple(steps)


def beneath(path: str, name: str) -> str:
    """Return the path of a member of what is at a path."""
    is_plain = name.isprintable() and _PLAIN.fullmatch(name)
    return f"{path}.{name}".removeprefix(".") if is_plain else f"{path}[{json.dumps(name)}]"


def of_any_index(path: str) -> str:
    """Return a path with every element of a list in the place of each one."""
    return _INDEX.sub(lambda found: found[1] or "[*]", path)


def objects_of(data: bytes | None) -> Any:
    """Return the object or the array that some bytes are as JSON; None if they are neither."""
    if not data or data.lstrip()[:1] not in (b"{", b"["):
        return None
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def parts(value: Any, path: Path) -> Iterator[Any]:
    """Yield the parts of a value at a path."""
    if not path:
        yield value
        return
    for key in _keys(value, path[0]):
        yield from parts(value[key], path[1:])


def replace(value: Any, path: Path, new: Callable[[Any], Any]) -> bool:
    """Replace the parts of a value at a path by what `new` makes of each; return whether there were
    any."""
    step, rest = path[0], path[1:]
    # All of them, for any() would stop at the first.
    return sum(_replace_at(value, key, rest, new) for key in _keys(value, step)) > 0


def _keys(value: Any, step: str | int | None) -> Iterable[Any]:
    """Return the keys or indexes of a value that a step stands for."""
    if isinstance(value, dict):
        return (step,) if step in value else ()
    if isinstance(value, list) and not isinstance(step, str):
        return [each for each in range(len(value)) if step in (None, each)]
    return ()


def _replace_at(value: Any, key: Any, rest: Path, new: Callable[[Any], Any]) -> bool:
    if rest:
        return replace(value[key], rest, new)
    value[key] = new(value[key])
    return True


def replaced(
    data: bytes | None, parts: Iterable[tuple[Path, Callable[[Any], Any]]]
) -> bytes | None:
    """Return a value in which the parts at these paths are replaced, as bytes; equal rests give
    equal bytes."""
    if not data or data[:1] not in b'{[ \t\r\n"':
        return data
    try:
        value = json.loads(data)
        found = [replace(value, path, new) for path, new in parts]
        if not any(found):
            return data
        return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
    except (ValueError, RecursionError):
        return data
