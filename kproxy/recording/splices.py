"""Splices as they stand in a recording: what kproxy changed in a frame.

offset, length, size of the replacement: 32 bits each │ replacement │ offset …
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from kproxy.exchange.entries import Splice

_SPLICE = struct.Struct("<III")


def pack_splices(splices: Sequence[Splice]) -> bytes:
    """Return splices as they stand in a recording."""
    return b"".join(
        _SPLICE.pack(offset, length, len(replacement)) + replacement
        for offset, length, replacement in splices
    )


def unpack_splices(data: bytes) -> list[Splice]:
    """Return splices from a recording.

    Raises: ValueError, when they are cut off.
    """
    splices: list[Splice] = []
    at = 0
    while at < len(data):
        start = at + _SPLICE.size
        if start > len(data):
            raise ValueError("it has a splice that is cut off")
        offset, length, size = _SPLICE.unpack_from(data, at)
        at = start + size
        if at > len(data):
            raise ValueError("it has a splice that is cut off")
        splices.append((offset, length, data[start:at]))
    return splices
