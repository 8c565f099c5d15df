"""In what records and requests differ from the recorded ones, short enough to be read.

::

    value.currency "USD" (recorded: "EUR")     JSON, and requests: the parts that differ
    value …'ing long' (recorded: …'ing wide')  others: from shortly before the first difference
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from kproxy.printable import printable
from kproxy.protocol.record_batch import Record

SHOWN_CHARACTERS = 60
_BEFORE_CHARACTERS = 20
"""So much is shown of what is the same before the first difference."""
_PARTS_SHOWN = 3
_ABSENT = object()

Difference = tuple[str, str, str]
"""What differs, how it is now, and how it was recorded."""


def differences(now: Record, then: Record) -> Iterator[Difference]:
    """Yield in what a record differs from the recorded one."""
    if now.key != then.key:
        yield "key", *_apart(text_of(now.key), text_of(then.key))
    if now.value != then.value:
        yield from _of_values(now.value, then.value)
    if now.headers != then.headers:
        yield "headers", *_apart(str(now.headers), str(then.headers))


def sentence(found: Iterable[Difference]) -> str:
    """Differences as words."""
    return ", ".join(f"{name} {now} (recorded: {then})" for name, now, then in found)


def text_of(data: bytes | None) -> str:
    """A key or a value as text, as long as it is."""
    if data is None:
        return "null"
    try:
        return repr(data.decode())
    except UnicodeDecodeError:
        return data.hex()


def short(text: str) -> str:
    """The beginning of a text."""
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"


def _of_values(now: bytes | None, then: bytes | None) -> Iterator[Difference]:
    found = _of_json(now, then)
    yield from found[:_PARTS_SHOWN]
    if len(found) > _PARTS_SHOWN:
        more = len(found) - _PARTS_SHOWN
        yield "value", f"in {more} more part{'s' * (more > 1)}", "others"
    if not found:
        yield "value", *_apart(text_of(now), text_of(then))


def _of_json(now: bytes | None, then: bytes | None) -> list[Difference]:
    """In which parts two JSON values differ; none where one of them is not JSON with parts."""
    try:
        values = [json.loads(each or b"") for each in (now, then)]
        if isinstance(values[0], dict | list) and type(values[0]) is type(values[1]):
            return list(parts("value", values[0], values[1]))
    except (ValueError, RecursionError):
        pass
    return []


def parts(path: str, now: Any, then: Any) -> Iterator[Difference]:
    """Yield in which parts two plain values differ, named by the path of the whole."""
    if isinstance(now, dict) and isinstance(then, dict):
        for name in {**then, **now}:
            inner = f"{path}.{printable(name)}" if path else printable(name)
            yield from parts(inner, now.get(name, _ABSENT), then.get(name, _ABSENT))
    elif isinstance(now, list) and isinstance(then, list):
        for index in range(max(len(now), len(then))):
            pair = [each[index] if index < len(each) else _ABSENT for each in (now, then)]
            yield from parts(f"{path}[{index}]", *pair)
    elif (texts := (_json(now), _json(then)))[0] != texts[1]:
        yield path, *_apart(*texts)


def _json(value: Any) -> str:
    return "absent" if value is _ABSENT else json.dumps(value, sort_keys=True)


def _apart(now: str, then: str) -> tuple[str, str]:
    """Two texts, cut so that what differs is seen."""
    if max(len(now), len(then)) <= SHOWN_CHARACTERS:
        return now, then
    start = max(0, common(now, then) - _BEFORE_CHARACTERS)
    before = "…" if start else ""
    return before + short(now[start:]), before + short(then[start:])


def common(one: str | bytes, other: str | bytes) -> int:
    """How much two have in common at the front."""
    for index, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return index
    return min(len(one), len(other))
