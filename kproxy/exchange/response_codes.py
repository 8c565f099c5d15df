"""The error codes of responses, and the times for which they throttle: read without decoding.

    API, version ─▶ the places of its codes (codec.locate_nonzero) ─▶ reader: bytes ─▶ ResponseCodes

Nothing is made of the other fields, so this takes a fraction of the time of decoding.
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


Reader = Callable[[bytes, int, int], ResponseCodes | None]
"""Bytes, the start of a response frame in them, its size with the prefix → its codes; None if it
has neither errors nor a throttle, or does not follow its definition."""


@functools.lru_cache(maxsize=1024)
def reader(api_key: int, api_version: int) -> Reader:
    """Return the reader of responses to requests of an API and version."""
    message = schema.message(api_key, schema.RESPONSE)
    if message is None or api_version not in message.versions:
        return lambda data, start, size: None
    throttle = select(message, PREDICATES[THROTTLE]).paths(api_version)
    errors = select(message, PREDICATES[ERROR]).paths(api_version)
    locate = codec.locate_nonzero(message, api_version, (*errors, *throttle))
    first_throttle = len(errors)
    flexible = codec.response_header_version(api_key, api_version)
    is_api_versions = api_key == codec.API_VERSIONS

    def read(data: bytes, start: int, size: int) -> ResponseCodes | None:
        body = start + codec.SIZE_BYTES + 4
        if is_api_versions and facts.is_unsupported_version(data[start : start + size]):
            return ResponseCodes((codec.UNSUPPORTED_VERSION,))
        try:
            if flexible:
                if size > 8 and not data[body]:
                    body += 1
                else:
                    frame = data[start : start + size]
                    body = start + codec.response_body(frame, api_key, api_version)
            spans, end = locate(data, body)
        except ProtocolError:
            return None
        if not spans or end > start + size:
            return None
        found: dict[int, None] = {}
        throttle_ms = 0
        for index, at, _, _ in spans:
            if index >= first_throttle:
                (throttle_ms,) = _INT32(data, at)
            elif index >= 0:
                found[_INT16(data, at)[0]] = None
        return ResponseCodes(found, throttle_ms) if found or throttle_ms else None

    return read
