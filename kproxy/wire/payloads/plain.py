"""Plain values of JSON, which decoded keys and values are, and their text.

Invariants: a plain value is a dict with names, a list, a text, a finite number, a bool or None; it
is at most `DEPTH_MAX` deep; its text has at most some `TEXT_CHARS_MAX` characters, and its memory
is of that order. NaN and infinities are the texts `NaN`, `Infinity`, `-Infinity`; bytes are base64,
as Protobuf has them in JSON; times are ISO 8601.
"""

from __future__ import annotations

import base64
import contextlib
import datetime
import json
import math
import uuid
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

DEPTH_MAX = 100
TEXT_CHARS_MAX = 32 << 20
SHOWN_CHARS_MAX = 64 << 10
"""Characters of a value that are shown to people."""
_CHARS = 32
"""The characters that a value counts, beside its text."""

_TEXT = json.JSONEncoder(ensure_ascii=False, check_circular=False, separators=(",", ":"))
_ASCII = json.JSONEncoder(check_circular=False, separators=(",", ":"))


class PayloadError(ValueError):
    """Bytes do not follow their schema; the message says in a few words why."""


class SchemaError(ValueError):
    """A schema cannot be used; the message goes on after its name: `is none of Avro`."""


def json_text(value: Any, chars_max: int = TEXT_CHARS_MAX) -> str:
    """Return the JSON text of a plain value, in one line, cut off after so many characters. One
    that has what a terminal would obey, or half of a pair, is in ASCII."""
    text = _TEXT.encode(value)
    return _cut(text if text.isprintable() else _ASCII.encode(value), chars_max)


def shown_json(value: Any, indent: int | None = None, chars_max: int = SHOWN_CHARS_MAX) -> str:
    """Return the JSON text of a plain value for people, cut off after so many characters."""
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    return _cut(_encodable(text, value), chars_max)


def _encodable(text: str, value: Any) -> str:
    """Return the text; one in ASCII where it has half of a pair, which JSON may escape."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            return _ASCII.encode(value)
    return text


def _cut(text: str, chars_max: int) -> str:
    return text if len(text) <= chars_max else text[: chars_max - 1] + "…"


def parsed(data: bytes) -> Any:
    """Return the plain value that a JSON text means.

    Raises:
        PayloadError: it is no JSON text.
    """
    try:
        value = _JSON.decode(str(data, "utf-8"))
    except (ValueError, RecursionError) as error:
        raise PayloadError("it is no JSON") from error
    deep = data.count(b"[") + data.count(b"{") > DEPTH_MAX
    return plain(value) if deep else value


def own_text(data: bytes | None) -> Any:
    """Return bytes that no schema explains as JSON if they are an object or an array, else as a
    text if they are UTF-8, else as they are."""
    if data is None:
        return None
    if data.lstrip()[:1] in (b"{", b"["):
        with contextlib.suppress(PayloadError):
            return parsed(data)
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError:
        return data


def _float(text: str) -> Any:
    return number(float(text))


_JSON = json.JSONDecoder(parse_constant=str, parse_float=_float)


def number(value: float) -> Any:
    """Return a float, as a text where JSON has no number for it."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def plain(value: Any) -> Any:
    """Return a value of Python as a plain one.

    Raises:
        PayloadError: it is of another type, or too large.
    """
    return _PlainCopy().of(value, 0)


class _PlainCopy:
    """A copy of a value; counts what it has so far."""

    def __init__(self) -> None:
        self._chars = 0

    def of(self, value: Any, depth: int) -> Any:
        if depth > DEPTH_MAX:
            raise PayloadError("it is nested too deeply")
        value = _scalar(value)
        self._count(value)
        if isinstance(value, Mapping):
            found: dict[str, Any] = {}
            for key, each in value.items():
                name = _name(_scalar(key))
                self._count(name)
                found[name] = self.of(each, depth + 1)
            return found
        if isinstance(value, list | tuple | set | frozenset):
            return [self.of(each, depth + 1) for each in value]
        if value is None or isinstance(value, str | int | float):
            return value
        raise PayloadError(f"a {type(value).__name__} is no value of JSON")

    def _count(self, value: Any) -> None:
        self._chars += _CHARS
        if isinstance(value, str):
            self._chars += len(value)
        elif isinstance(value, int):
            self._chars += value.bit_length() // 3
        if self._chars > TEXT_CHARS_MAX:
            raise PayloadError("it is too large")


def _name(key: Any) -> str:
    if isinstance(key, str):
        return key
    if key is None or isinstance(key, int | float):
        return json_text(key)
    raise PayloadError(f"a {type(key).__name__} is no name in JSON")


def _scalar(value: Any) -> Any:
    """Return scalars that JSON has not as a text, and all else as it is."""
    match value:
        case bool():
            return value
        case int() if value.bit_length() > _INT_BITS_MAX:
            return hex(value)
        case float():
            return number(value)
        case bytes() | bytearray() | memoryview():
            return base64.b64encode(value).decode()
        case datetime.datetime() | datetime.date() | datetime.time():
            return value.isoformat()
        case Decimal() | uuid.UUID():
            return str(value)
    return value


_INT_BITS_MAX = 1024
"""The digits of larger ones take long."""
