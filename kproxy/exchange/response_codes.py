"""The error codes of responses, and the times for which they throttle: read without decoding.

::

    API, version ─▶ paths of its codes ─┬─ codec.numbers ───────────▶ reader: bytes ─▶ ResponseCodes
                                        └─ codec.numbers_in_chunks ─▶ LargeResponse: the same of a
                                                                      frame that comes in pieces

Nothing is made of the other fields, so this takes a fraction of the time of decoding.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Generator, Iterable
from typing import NamedTuple

from kproxy.exchange import facts
from kproxy.exchange.meanings import ERROR, PREDICATES, THROTTLE
from kproxy.wire.protocol import ProtocolError, codec, schema
from kproxy.wire.protocol.schema import Message
from kproxy.wire.protocol.select import select

_HEADER_BYTES = codec.SIZE_BYTES + 4
_REPEATED_BYTES_MAX = 4096
"""Of each kind, the last response of this size that had no codes is kept: the next is often the
same (Heartbeat, Metadata, a Fetch that finds nothing)."""


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
    message, paths = _paths(api_key, api_version)
    if message is None:
        return lambda data, start, size: None
    numbers = codec.numbers(message, api_version, paths)
    flexible = codec.response_header_version(api_key, api_version)
    is_api_versions = api_key == codec.API_VERSIONS
    last = b""

    def read(data: bytes, start: int, size: int) -> ResponseCodes | None:
        nonlocal last
        body = start + _HEADER_BYTES
        told = data[body : start + size]
        if told == last:
            return None
        if is_api_versions and facts.is_unsupported_version(data[start : start + size]):
            return ResponseCodes((codec.UNSUPPORTED_VERSION,))
        try:
            if flexible:
                if size > _HEADER_BYTES and not data[body]:
                    body += 1
                else:
                    frame = data[start : start + size]
                    body = start + codec.response_body(frame, api_key, api_version)
            found, end = numbers(data, body)
        except ProtocolError:
            return None
        if found or end > start + size:
            return _codes(found, paths) if end <= start + size else None
        if size <= _REPEATED_BYTES_MAX:
            last = told
        return None

    return read


@functools.lru_cache(maxsize=1024)
def _paths(api_key: int, api_version: int) -> tuple[Message | None, tuple[str, ...]]:
    """Return the response of an API, and the paths of its codes in a version: None if there is no
    such response."""
    message = schema.message(api_key, schema.RESPONSE)
    if message is None or api_version not in message.versions:
        return None, ()
    chosen = (select(message, PREDICATES[meaning]) for meaning in (ERROR, THROTTLE))
    return message, tuple(path for each in chosen for path in each.paths(api_version))


def _codes(numbers: Iterable[tuple[int, int]], paths: tuple[str, ...]) -> ResponseCodes:
    errors: dict[int, None] = {}
    throttle_ms = 0
    for index, value in numbers:
        if paths[index] == "throttle_time_ms":
            throttle_ms = max(0, value)
        else:
            errors[value] = None
    return ResponseCodes(errors, throttle_ms)


class LargeResponse:
    """Reads the codes of a response that comes in pieces, the first with all of its header."""

    def __init__(self, api_key: int, api_version: int) -> None:
        message, self._paths = _paths(api_key, api_version)
        self._walk: Generator[None, bytes | memoryview, list[tuple[int, int]]] | None = None
        self._head_bytes = 0
        if message is not None:
            self._head_bytes = _HEADER_BYTES + codec.response_header_version(api_key, api_version)
            self._walk = codec.numbers_in_chunks(message, api_version, self._paths)
            next(self._walk)

    def take(self, piece: bytes | memoryview) -> ResponseCodes | None:
        """Take the next piece; with the last one return the codes, as a reader does."""
        head_bytes, self._head_bytes = self._head_bytes, 0
        if any(piece[_HEADER_BYTES:head_bytes]) or len(piece) < head_bytes:
            self._walk = None  # tagged fields in the header: Kafka sends none
        if self._walk is None:
            return None
        try:
            self._walk.send(piece[head_bytes:])
        except StopIteration as end:
            self._walk = None
            return _codes(end.value, self._paths) if end.value else None
        except ProtocolError:
            self._walk = None
        return None
