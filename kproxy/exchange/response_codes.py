"""The error codes of responses, and the times for which they throttle: read without decoding.

    API, version ─▶ the places of its codes (codec.locate) ─▶ reader: bytes ─▶ ResponseCodes

Nothing is made of the other fields, so this takes a third of the time of decoding.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from struct import Struct
from typing import NamedTuple

from kproxy.exchange import facts
from kproxy.exchange.meanings import ERROR, PREDICATES, THROTTLE
from kproxy.wire.protocol import ProtocolError, codec, schema
from kproxy.wire.protocol.select import select

_INT16, _INT32 = Struct(">h").unpack_from, Struct(">i").unpack_from


class ResponseCodes(NamedTuple):
    """The codes in one response."""

    errors: Collection[int] = ()
    """Each error once."""
    throttle_ms: int = 0


NOTHING = ResponseCodes()
Reader = Callable[[bytes], ResponseCodes]


@functools.lru_cache(maxsize=1024)
def reader(api_key: int, api_version: int) -> Reader:
    """Return the reader of whole response frames, size prefix included, to requests of an API and
    version. It reads nothing from what does not follow the definition."""
    message = schema.message(api_key, schema.RESPONSE)
    if message is None or api_version not in message.versions:
        return lambda frame: NOTHING
    throttle = select(message, PREDICATES[THROTTLE]).paths(api_version)
    errors = select(message, PREDICATES[ERROR]).paths(api_version)
    locate = codec.locate(message, api_version, (*errors, *throttle))
    first_throttle = len(errors)
    flexible = codec.response_header_version(api_key, api_version)
    is_api_versions = api_key == codec.API_VERSIONS

    def read(frame: bytes) -> ResponseCodes:
        if is_api_versions and facts.is_unsupported_version(frame):
            return ResponseCodes((codec.UNSUPPORTED_VERSION,))
        start = codec.SIZE_BYTES + 4
        try:
            if flexible:
                tagged = frame[start : start + 1] != b"\0"
                start = codec.response_body(frame, api_key, api_version) if tagged else start + 1
            spans, _ = locate(frame, start)
        except ProtocolError:
            return NOTHING
        found: dict[int, None] = {}
        throttle_ms = 0
        for index, at, _, _ in spans:
            if index >= first_throttle:
                (throttle_ms,) = _INT32(frame, at)
            elif index >= 0 and frame[at : at + 2] != b"\0\0":
                found[_INT16(frame, at)[0]] = None
        return ResponseCodes(found, throttle_ms) if found or throttle_ms else NOTHING

    return read
