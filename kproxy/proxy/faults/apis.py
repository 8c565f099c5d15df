"""API names as people type them, with suggestions for mistakes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kproxy.exchange.filter.values import suggestion
from kproxy.proxy.faults.values import INT16_MAX, each, is_whole
from kproxy.wire.protocol import schema

_SHOWN_MAX = 40
"""Of more names than this only the suggestion is shown."""


def suggest(word: object, allowed: Iterable[str]) -> str:
    """Return the end of an error about a word: the likely correction, or the allowed words."""
    names = list(allowed)
    found = suggestion(str(word), names)
    if found or len(names) > _SHOWN_MAX:
        return found
    return f"; it is one of {', '.join(names)}"


def parse_apis(value: Any) -> frozenset[int]:
    """Read an API's name or key, or a list of such, as keys.

    Raises:
        ValueError: there is no such API; the text suggests one.
    """
    return frozenset(_parse_api(one) for one in each(value))


def api_keys(*names: str) -> frozenset[int]:
    """Return the keys of APIs by their names in Kafka."""
    return frozenset(key for key, name in schema.api_names().items() if name in names)


def _parse_api(value: Any) -> int:
    if isinstance(value, str):
        key = schema.api_key(value)
        if key is None and value.isdecimal():
            return _parse_api(int(value))
        if key is None:
            hint = suggest(value, schema.api_names().values())
            if "," in value:
                hint = f" (a list is written [{value}])"
            raise ValueError(f"{value!r} is no API of Kafka{hint}")
        return key
    if is_whole(value, 0, INT16_MAX):
        return value
    raise ValueError(f"{value!r} is not the name or the number of an API, nor a list of such")
