"""Facts read from one frame: its client id, its body, the bytes that were sent on."""

from __future__ import annotations

import functools
import struct
from typing import Any

from kproxy.exchange.entries import (
    FAULTED,
    LEFT_OUT,
    OPAQUE,
    RAW_SASL,
    REDACTED,
    REWRITTEN,
    TRUNCATED,
    Frame,
)
from kproxy.wire import protocol
from kproxy.wire.protocol import ProtocolError, codec, error_name, schema, wire

_UNSUPPORTED_VERSION = codec.UNSUPPORTED_VERSION.to_bytes(2, "big")
_CHANGED = FAULTED | REWRITTEN
_CLIENT_ID_END_MAX = 14 + 32767
"""The furthest end of a client id in a request."""
_KIND = struct.Struct(">hh")
_INTEGER_BYTES = {"int8": 1, "int16": 2, "int32": 4, "int64": 8}


def kind(api_key: int, api_version: int) -> bytes:
    """Return what stands in the header of a request of this API and version."""
    return _KIND.pack(api_key, api_version)


def client_id(frame: Frame) -> tuple[bool, str | None]:
    """Read the client id of a request's header: (whether it could be read, the client id).

    All request headers have it at the same place, as a nullable string with a 2-byte length,
    except ControlledShutdown v0 (a version 0 header).
    """
    head = frame.pieces[0] if frame.pieces else b""
    if len(frame.pieces) > 1 and len(head) < _CLIENT_ID_END_MAX:
        head = frame.data
    return client_id_of(frame.api_key, frame.api_version, head)


def client_id_of(
    api_key: int, api_version: int, head: bytes | memoryview
) -> tuple[bool, str | None]:
    """Read the client id of a request of this API and version from its first bytes."""
    if (api_key, api_version) == (codec.CONTROLLED_SHUTDOWN, 0):
        return True, None
    if len(head) < 14:
        return False, None
    length = int.from_bytes(head[12:14], "big", signed=True)
    if length == -1:
        return True, None
    text = bytes(head[14 : 14 + length]) if length >= 0 else b""
    if length < 0 or len(text) < length:
        return False, None
    return True, text.decode("utf-8", "surrogateescape")


def has_body(data: bytes | None, flags: int) -> bool:
    """Return whether a frame with these flags has the bytes of a Kafka body."""
    return data is not None and not flags & (RAW_SASL | LEFT_OUT)


def is_whole(flags: int) -> bool:
    """Return whether the body of a frame with these flags is complete."""
    if flags & (RAW_SASL | LEFT_OUT | TRUNCATED):
        return False
    # An opaque frame may be known to a newer kproxy, but not one that was blanked out whole.
    return not (flags & OPAQUE and flags & REDACTED)


def decodable(frame: Frame | None) -> bool:
    """Return whether there is a frame, and its body is complete."""
    return frame is not None and is_whole(frame.flags)


def request_body(data: bytes | None, flags: int, kind: bytes | None = None) -> Any:
    """Decode the body of a request; None if there is none, or it is opaque, or its header does not
    have the API key and version that its recording says (`kind`): one that was tampered with."""
    if data is None or (flags and not is_whole(flags)):
        return None
    if kind is not None and data[4:8] != kind:
        return None
    try:
        return codec.decode_request_body(data)
    except ProtocolError:
        return None


def response_body(
    data: bytes | None, flags: int, api_key: int | None, api_version: int | None
) -> tuple[Any, int]:
    """Decode the body of a response, and return it with its version; (None, -1) if there is none or
    it is opaque."""
    if data is None or api_key is None or api_version is None or not is_whole(flags):
        return None, -1
    try:
        return codec.decode_response_body(data, api_key, api_version)
    except ProtocolError:
        return None, -1


def why_undecoded(
    data: bytes | None, flags: int, kind: tuple[int, int] | None, is_request: bool
) -> str:
    """Say why a frame has no decoded body; "" if it has one, or is known to have none. `kind` is
    API key and version, None for a request that has neither."""
    if not has_body(data, flags) or data is None:
        return ""
    if flags & TRUNCATED:
        return "its end is missing"
    if not is_whole(flags):
        return "it was blanked out, for it may hold secrets"
    if kind is None:
        return "it has no header that tells its API"
    if is_request and data[4:8] != _KIND.pack(*kind):
        return "its header has another API or version than the recording says"
    try:
        codec.decode_request(data) if is_request else codec.decode_response(data, *kind)
    except ProtocolError as error:
        return str(error)
    return ""


def decoded_request(frame: Frame | None, data: bytes | None) -> protocol.Request | None:
    """Decode a request's bytes; None if there is none or it is opaque."""
    if not decodable(frame):
        return None
    try:
        return protocol.decode_request(data or b"")
    except ProtocolError:
        return None


def decoded_response(
    frame: Frame | None, data: bytes | None, api_key: int | None, api_version: int | None
) -> protocol.Response | None:
    """Decode a response's bytes; None if there is none or it is opaque."""
    if not decodable(frame) or api_key is None or api_version is None:
        return None
    try:
        return protocol.decode_response(data or b"", api_key, api_version)
    except ProtocolError:
        return None


def max_wait_ms(data: bytes | memoryview, start: int, api_version: int) -> int:
    """Read the max_wait_ms of a Fetch request that starts at an offset; 0 if it cannot be read."""
    flexible, offset = _max_wait(api_version)
    if offset is None:
        return 0
    client_id_bytes = int.from_bytes(data[start + 12 : start + 14], "big")
    body = start + 14 + (client_id_bytes if client_id_bytes <= 32767 else 0)
    end = start + 4 + int.from_bytes(data[start : start + 4], "big")
    if flexible:
        body = body + 1 if data[body : body + 1] == b"\0" else _tagged_end(data, body, end)
    if body + offset + 4 > end:
        return 0  # the frame ends before: what stands there is another's
    field = data[body + offset : body + offset + 4]
    return max(0, int.from_bytes(field, "big", signed=True)) if len(field) == 4 else 0


def _tagged_end(data: bytes | memoryview, position: int, end: int) -> int:
    """Return the end of the tagged fields that begin at a position, or `end` if they go beyond
    it."""
    try:
        count, position = _varint(data, position)
        while count and position < end:
            _, position = _varint(data, position)
            size, position = _varint(data, position)
            position += size
            count -= 1
    except (IndexError, wire.Malformed):
        return end
    return position


def _varint(data: bytes | memoryview, position: int) -> tuple[int, int]:
    first = data[position]
    return (first, position + 1) if first < 128 else wire.varint(data, position + 1, first)


@functools.lru_cache(maxsize=64)
def _max_wait(api_version: int) -> tuple[bool, int | None]:
    """Return whether headers of Fetch requests have tagged fields, and the offset of max_wait_ms in
    the body."""
    message = schema.message(codec.FETCH, schema.REQUEST)
    if message is None or api_version not in message.versions:
        return False, None
    offset = 0
    for field in message.fields:
        if field.name == "max_wait_ms":
            return api_version in message.flexible_versions, offset
        # What stands before it are tagged fields, which come last, and integers.
        if api_version in field.versions and api_version not in field.tagged_versions:
            offset += _INTEGER_BYTES[field.type]
    return False, None


def is_changed_by_rule(flags: int) -> bool:
    """Return whether a fault rule may have changed a frame with these flags, so that its peer got
    something else."""
    return flags & _CHANGED == _CHANGED


def sent(frame: Frame | None) -> bytes | None:
    """Return the bytes that were sent on for a frame.

    None if there is no frame, or if it was changed and the recording lost how.
    """
    if frame is None or (frame.flags & REWRITTEN and not frame.splices):
        return None
    return frame.sent


def errors_of_opaque(api_key: int, frame: bytes) -> list[str]:
    """Return the certain errors of a response that cannot be decoded: an ApiVersions refusal.

    A body that starts with error 35 says that the broker does not know the version of the request
    (KIP-511), whatever follows; librdkafka's mock cluster goes on with garbage.
    """
    if api_key == codec.API_VERSIONS and is_unsupported_version(frame):
        return [error_name(codec.UNSUPPORTED_VERSION)]
    return []


def is_unsupported_version(frame: bytes) -> bool:
    """Return whether a response to ApiVersions says that the broker does not know the version."""
    return frame[8:10] == _UNSUPPORTED_VERSION
