"""The errors that Kafka sends in each API, and their levels: `kafka_errors.txt`, read lazily.

Invariant: the table only advises. Other errors can be injected all the same.
"""

from __future__ import annotations

import functools
import os
from typing import Any

from kproxy.wire.protocol import error_code, error_name, schema
from kproxy.wire.protocol.errors import CODES

EVERYWHERE = frozenset(("UNKNOWN_SERVER_ERROR", "UNSUPPORTED_VERSION", "INVALID_REQUEST"))
"""Errors that every API may report."""


@functools.cache
def _table() -> dict[int, dict[int, str | None]]:
    """Return API key → error code → its level, None for the API's usual one."""
    path = os.path.join(os.path.dirname(__file__), "kafka_errors.txt")
    loader: Any = __spec__.loader
    text = loader.get_data(path).decode("utf-8")
    found: dict[int, dict[int, str | None]] = {}
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    for line in "\n".join(lines).replace("\n ", "").splitlines():
        head, _, names = line.partition(":")
        api, _, level = head.partition(" ")
        key = schema.api_key(api)
        assert key is not None, f"kafka_errors.txt: {api} is no API"
        codes = found.setdefault(key, {})
        codes.update((CODES[name], level or None) for name in names.split())
    return found


def is_usual(api_key: int, code: int) -> bool:
    """Return whether Kafka sends this error in the API; True for an unknown API."""
    known = _table().get(api_key)
    return known is None or code in known or error_name(code) in EVERYWHERE


def usual_level(api_key: int, code: int) -> str | None:
    """Return the level at which Kafka sends this error; None for the API's usual level."""
    return _table().get(api_key, {}).get(code)


def apis_with(code: int) -> frozenset[int]:
    """Return the keys of the APIs in which Kafka sends this error; none if all may send it."""
    return frozenset(key for key, codes in _table().items() if code in codes)


def usual_errors(api_key: int) -> list[str]:
    """Return the names of the errors that Kafka sends in an API, in the order of their codes."""
    return [error_name(code) for code in sorted(_table().get(api_key, {}))]


def suggestions() -> list[str]:
    """Return the names of all errors that can be injected."""
    return [name for name in CODES if error_code(name)]
