"""What a recording must be like, whoever talked through the proxy.

`exchanges` reads a recording with kproxy itself and checks what holds for every recording: each
exchange is decoded, and encoding what was decoded gives the same bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import attrs

from kproxy import recording
from kproxy.exchange.exchange import Exchange
from kproxy.wire import protocol


@attrs.frozen
class Worked:
    """What a client program did through the proxy."""

    path: Path
    """The recording of it."""
    prefix: str
    compressions: tuple[str, ...]
    results: dict[str, Any]
    """What the program says, by step."""


def exchanges(path: Path, malformed: Mapping[str, int] = MappingProxyType({})) -> list[Exchange]:
    """All exchanges of a recording; AssertionError where one is opaque or encodes differently.

    `malformed` are the APIs that the broker is known to answer with malformed bytes, each with the
    first version of which that is so; there, and only there, an exchange must be opaque.
    """
    found = list(recording.read(path))
    for each in found:
        assert each.api_key is not None, each
        expected = (each.api_version or 0) >= malformed.get(each.api or "", 1 << 15)
        answered = each.response_frame is not None
        assert each.opaque == (expected and answered), f"opaque is {each.opaque}: {each}"
        if not each.opaque:
            _encodes_to_itself(each)
    return found


def _encodes_to_itself(exchange: Exchange) -> None:
    """Check that decode → encode gives the recorded bytes, for both halves."""
    if exchange.request_frame is not None and not exchange.truncated:
        request = protocol.decode_request(exchange.request_frame)
        assert protocol.encode_request(request) == exchange.request_frame, exchange
    if exchange.response_frame is not None and not exchange.truncated:
        key, version = exchange.api_key, exchange.api_version
        response = protocol.decode_response(exchange.response_frame, key, version)
        assert protocol.encode_response(response, key) == exchange.response_frame, exchange


def count(found: list[Exchange]) -> Counter[str]:
    """How many exchanges there are of each API."""
    return Counter(each.api or "" for each in found)
