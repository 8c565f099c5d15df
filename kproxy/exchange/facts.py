"""What can be read out of one frame: its client id, its errors, the bytes that were sent on.

Errors are found by the schema: every int16 field of a response whose name ends in `error_code`,
at whatever depth.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

from kproxy.exchange.entries import REWRITTEN, Frame
from kproxy.protocol import codec, error_name, schema

_UNSUPPORTED_VERSION = codec.UNSUPPORTED_VERSION.to_bytes(2, "big")
_CLIENT_ID_END_MAX = 14 + 32767
"""Where the longest client id ends."""


def client_id(frame: Frame) -> tuple[bool, str | None]:
    """Read the client id of a request's header: (whether it could be read, the client id).

    All request headers have it at the same place, as a nullable string with a 2-byte length,
    except ControlledShutdown v0 (a version 0 header).
    """
    if (frame.api_key, frame.api_version) == (codec.CONTROLLED_SHUTDOWN, 0):
        return True, None
    head = frame.pieces[0] if frame.pieces else b""
    if len(frame.pieces) > 1 and len(head) < _CLIENT_ID_END_MAX:
        head = frame.data
    if len(head) < 14:
        return False, None
    length = int.from_bytes(head[12:14], "big", signed=True)
    if length == -1:
        return True, None
    text = bytes(head[14 : 14 + length]) if length >= 0 else b""
    if length < 0 or len(text) < length:
        return False, None
    return True, text.decode("utf-8", "surrogateescape")


def sent(frame: Frame | None) -> bytes | None:
    """Return the bytes that were sent on for a frame.

    None if there is no frame, or if it was changed and the recording lost how.
    """
    if frame is None or (frame.flags & REWRITTEN and not frame.splices):
        return None
    return frame.sent


def errors(api_key: int, body: Any) -> list[str]:
    """Return the names of the errors in a response's body, each once, in order of appearance."""
    found: dict[int, None] = {}
    _collect(body, _error_fields(api_key), found)
    return [error_name(code) for code in found]


def errors_of_opaque(api_key: int, frame: bytes) -> list[str]:
    """Return what is certain of a response that cannot be decoded: an ApiVersions refusal.

    Whatever comes behind it, a body that starts with error 35 says that the broker does not know
    the version of the request (KIP-511); librdkafka's mock cluster goes on with garbage.
    """
    if api_key == codec.API_VERSIONS and frame[8:10] == _UNSUPPORTED_VERSION:
        return [error_name(codec.UNSUPPORTED_VERSION)]
    return []


@functools.cache
def _error_fields(api_key: int) -> tuple[Any, ...]:
    """The error codes of a response: ((name, None), (name of a struct or array, fields), …)."""
    message = schema.message(api_key, schema.RESPONSE)
    return () if message is None else _error_fields_among(message.fields)


def _error_fields_among(fields: Iterable[schema.Field]) -> tuple[Any, ...]:
    found: list[tuple[str, Any]] = []
    for field in fields:
        inner = _error_fields_among(field.fields)
        if inner:
            found.append((field.name, inner))
        elif field.name.endswith("error_code") and field.type == "int16":
            found.append((field.name, None))
    return tuple(found)


def _collect(value: Any, fields: tuple[Any, ...], found: dict[int, None]) -> None:
    for name, inner in fields:
        child = getattr(value, name)
        if inner is None:
            if child:
                found[child] = None
        elif type(child) is list:
            for element in child:
                _collect(element, inner, found)
        elif child is not None:
            _collect(child, inner, found)
