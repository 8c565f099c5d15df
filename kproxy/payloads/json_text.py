"""Decoded values as JSON text.

Invariant: the text is JSON, whatever the value holds: numbers that JSON lacks become their names.
"""

from __future__ import annotations

import functools
import json
import math
from typing import Any, cast

SHOWN_CHARACTERS_MAX = 64 << 10
"""Characters of a value that are shown to people."""


def json_text(value: Any) -> str:
    """Return a value as JSON in one line, in ASCII."""
    return _dumps(value, None, True)


def shown_json(
    value: Any, indent: int | None = None, characters_max: int = SHOWN_CHARACTERS_MAX
) -> str:
    """Return a value as JSON for people, cut behind so many characters."""
    text = _dumps(value, indent, False)
    return text if len(text) <= characters_max else f"{text[:characters_max]}…"


def _dumps(value: Any, indent: int | None, ascii_only: bool) -> str:
    dumps = functools.partial(
        json.dumps, indent=indent, ensure_ascii=ascii_only, allow_nan=False, default=str
    )
    try:
        try:
            return dumps(value)
        except ValueError:  # not a number, or an infinite one
            return dumps(_named(value))
    except (RecursionError, TypeError):
        return '"…"'


def _named(value: Any) -> Any:
    """Return a value with names for the numbers that JSON lacks."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return {key: _named(each) for key, each in cast("dict[Any, Any]", value).items()}
    if isinstance(value, list):
        return [_named(each) for each in cast("list[Any]", value)]
    return value
