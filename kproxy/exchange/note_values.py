"""The values in the notes of a file, which may come from anywhere.

    bytes of a note ─ body_of ─▶ body: of every value that we know, the type that it should have

Invariant: the notes of a file come in here, and nowhere else. What has another type than `_TYPES`
says is left out, so that whoever reads a note finds a value that is right, or none; an event that
is none is nobody's. What has a name of others stays, as plain values that anybody can write.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from kproxy.exchange.endings import SIDES

_DEPTH_MAX = 32
"""Deeper values are left out: what we note has a depth of 5, a rule of 4 in it."""
_INTEGER_CHARACTERS_MAX = 20
_INDEX = "index"
_NO_TEXT = re.compile("[\ud800-\udc7f\udd00-\udfff]")
"""Half a character; the others are bytes that are not UTF-8, as surrogate escapes."""


def body_of(data: bytes) -> dict[str, Any]:
    """Return the body of a note out of a file: JSON of anybody, without the values that have not
    the type that they should have. Numbers in it are finite, and integers of 64 bits.

    Raises:
        ValueError: it is no JSON, or no object.
    """
    try:
        body = json.loads(data, parse_int=_small, parse_constant=_nothing)
    except RecursionError:
        raise ValueError("it is too deep") from None
    if not isinstance(body, dict):
        raise ValueError("it is no object")
    if body.get("event") == _INDEX:  # its reader checks it as a whole
        return body
    return _object(_plain(body, _DEPTH_MAX), _TYPES)


def _small(digits: str) -> int | None:
    value = int(digits) if len(digits) <= _INTEGER_CHARACTERS_MAX else 1 << 63
    return value if -1 << 63 <= value < 1 << 63 else None


def _nothing(constant: str) -> None:
    """Read NaN and Infinity, which are no JSON."""


def _plain(value: Any, depth: int) -> Any:
    """Return a value as anybody can write it: of a bounded depth, finite, in characters."""
    if isinstance(value, str):
        return value if value.isascii() else _NO_TEXT.sub("\ufffd", value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict | list) and not depth:
        return None
    if isinstance(value, dict):
        return {_plain(key, 1): _plain(each, depth - 1) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each, depth - 1) for each in value]
    return value


_Read = Callable[[Any], Any]
"""Returns a value as it should be; None if it is not."""


def _integer(bits: int) -> _Read:
    def read(value: Any) -> int | None:
        if isinstance(value, float) and value.is_integer():  # as some programs write them
            value = int(value)
        if type(value) is not int:
            return None
        return value if -1 << bits - 1 <= value < 1 << bits - 1 else None

    return read


def _number(value: Any) -> float | None:
    return None if isinstance(value, bool) or not isinstance(value, int | float) else value


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _side(value: Any) -> str | None:
    return value if value in SIDES else None


def _mapping(value: Any) -> dict[str, Any] | None:
    return value if isinstance(value, dict) else None


def _list_of(read: _Read) -> _Read:
    def read_all(value: Any) -> list[Any] | None:
        if not isinstance(value, list):
            return None
        return [found for each in value if (found := read(each)) is not None]

    return read_all


def _object_of(types: Mapping[str, _Read], *needed: str) -> _Read:
    """Read an object that has what is needed."""

    def read(value: Any) -> dict[str, Any] | None:
        found = _object(value, types) if isinstance(value, dict) else None
        missing = found is None or any(found.get(name) is None for name in needed)
        return None if missing else found

    return read


def _object(given: dict[str, Any], types: Mapping[str, _Read]) -> dict[str, Any]:
    """Return an object without the values that have another type than ours."""
    found = {name: types[name](value) if name in types else value for name, value in given.items()}
    return {k: value for k, value in found.items() if value is not None or given[k] is None}


_INT32, _INT64 = _integer(32), _integer(64)
_TYPES: dict[str, _Read] = {
    "event": _text,
    "connection": _INT32,
    "number": _INT64,
    "node_id": _INT32,
    "client_address": _text,
    "broker_address": _text,
    "listener": _text,
    "client_id": _text,
    "user": _text,
    "user_since": _INT64,
    "client_tls": _mapping,
    "broker_tls": _mapping,
    "broker_login": _text,
    "opened_ns": _INT64,
    "how": _text,
    "reason": _text,
    "side": _side,
    "first": _side,
    "ends": _list_of(_object_of({"side": _side, "how": _text, "time_ns": _INT64}, "side")),
    "topic_id": _text,
    "topic": _text,
    "id": _INT64,
    "guid": _text,
    "kind": _text,
    "schema": _text,
    "references": _list_of(_object_of({"name": _text, "schema": _text}, "name", "schema")),
    "subject": _text,
    "version": _INT64,
    "seed": _INT64,
    "rules": _list_of(_object_of({"fault_id": _INT32, "name": _text, "rule": _mapping})),
    "rule": _text,
    "fault_id": _INT32,
    "action": _text,
    "phase": _text,
    "delay_ms": _number,
    "frames": _INT64,
    "bytes": _INT64,
    "from_ns": _INT64,
    "until_ns": _INT64,
    "seconds": _number,
    "ignore": _list_of(_text),
    "columns": _list_of(_text),
    "exchanges": _list_of(_list_of(lambda value: value)),
    "dropped_bytes": _INT64,
    "recording": _text,
    "first_part": _INT64,
    "last_part": _INT64,
    "by": _text,
}
"""The type of each value of a note; what has another name is as it is."""
