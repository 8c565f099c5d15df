"""Differences of records and requests from the recorded ones, short enough to be read.

::

    value.currency "USD" (recorded: "EUR")     JSON, and requests: the parts that differ
    value …'ing long' (recorded: …'ing wide')  other values: from just before the first difference
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from kproxy.printable import printable
from kproxy.protocol.record_batch import Record

SHOWN_CHARACTERS = 60
_BEFORE_CHARACTERS = 20
"""Number of equal characters that are shown before the first difference."""
_PARTS_SHOWN = 3
_ABSENT = object()

Difference = tuple[str, str, str]
"""The part that differs, its text now, and its recorded text."""


def differences(now: Record, then: Record) -> Iterator[Difference]:
    """Yield the differences of a record from the recorded one."""
    if now.key != then.key:
        yield "key", *cut_to_difference(text_of(now.key), text_of(then.key))
    if now.value != then.value:
        yield from _of_values(now.value, then.value)
    if now.headers != then.headers:
        yield "headers", *cut_to_difference(str(now.headers), str(then.headers))


def sentence(found: Iterable[Difference]) -> str:
    """Return differences as text."""
    return ", ".join(f"{name} {now} (recorded: {then})" for name, now, then in found)


def text_of(data: bytes | None) -> str:
    """Return a key or a value as text, uncut."""
    if data is None:
        return "null"
    try:
        return repr(data.decode())
    except UnicodeDecodeError:
        return data.hex()


def short(text: str) -> str:
    """Return a text, cut to `SHOWN_CHARACTERS`."""
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"


def _of_values(now: bytes | None, then: bytes | None) -> Iterator[Difference]:
    found = _of_json(now, then)
    yield from found[:_PARTS_SHOWN]
    if len(found) > _PARTS_SHOWN:
        more = len(found) - _PARTS_SHOWN
        yield "value", f"in {more} more part{'s' * (more > 1)}", "others"
    if not found:
        yield "value", *cut_to_difference(text_of(now), text_of(then))


def _of_json(now: bytes | None, then: bytes | None) -> list[Difference]:
    """Return the parts in which two JSON objects or arrays differ; none if one is neither."""
    try:
        values = [json.loads(each or b"") for each in (now, then)]
        if isinstance(values[0], dict | list) and type(values[0]) is type(values[1]):
            return list(parts("value", values[0], values[1]))
    except (ValueError, RecursionError):
        pass
    return []


def parts(path: str, now: Any, then: Any) -> Iterator[Difference]:
    """Yield the parts in which two plain values differ, by their paths below `path`."""
    if isinstance(now, dict) and isinstance(then, dict):
        for name in {**then, **now}:
            inner = f"{path}.{printable(name)}" if path else printable(name)
            yield from parts(inner, now.get(name, _ABSENT), then.get(name, _ABSENT))
    elif isinstance(now, list) and isinstance(then, list):
        for index in range(max(len(now), len(then))):
            pair = [each[index] if index < len(each) else _ABSENT for each in (now, then)]
            yield from parts(f"{path}[{index}]", *pair)
    elif (texts := (_json(now), _json(then)))[0] != texts[1]:
        yield path, *cut_to_difference(*texts)


def _json(value: Any) -> str:
    return "absent" if value is _ABSENT else json.dumps(value, sort_keys=True)


def cut_to_difference(now: str, then: str) -> tuple[str, str]:
    """Return two texts, cut so that their first difference is shown."""
    if max(len(now), len(then)) <= SHOWN_CHARACTERS:
        return now, then
    start = max(0, common_prefix_length(now, then) - _BEFORE_CHARACTERS)
    before = "…" if start else ""
    return before + short(now[start:]), before + short(then[start:])


def common_prefix_length(one: str | bytes, other: str | bytes) -> int:
    """Return the length of the common prefix of two texts."""
    for index, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return index
    return min(len(one), len(other))
