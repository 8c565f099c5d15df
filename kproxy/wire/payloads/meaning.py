"""The meaning of the bytes of a key or a value, or why they cannot be decoded."""

from __future__ import annotations

from typing import Any

import attrs

DATA_BYTES_MAX = 1 << 20
"""Larger keys and values are not decoded."""


@attrs.frozen
class Decoded:
    """The meaning of some bytes."""

    value: Any
    """Plain values of JSON."""
    by: str
    """By what: `Avro shop.Order, schema 17`."""


@attrs.frozen
class Undecoded:
    """Bytes that name a schema, and do not follow it, or it is not to be had; or that a user's
    decoder fails at."""

    why: str
    """In a few words, for people."""
