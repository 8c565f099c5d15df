"""Frames ↔ messages, and the compiled functions behind them, each made when first needed.

::

    frame (size prefix, header, body) ──decode_request, decode_response──▶ Request, Response
    Request, Response ──encode_request, encode_response──▶ the same frame, byte for byte

    (message, version) ──▶ decoder   bytes → value
                           encoder   value → bytes
                           locate    bytes → where fields are, without building anything
                           seek      bytes in chunks → where a field starts

All four are compiled from one `schema.Layout`. Any bytes give a result or a `ProtocolError`;
memory is bounded by the input. What the table does not know survives: unknown tags in
`unknown_tags`, strings that are not UTF-8 as surrogate escapes, bytes behind the body in
`trailing`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator
from struct import Struct
from typing import Any

import attrs

from kproxy.wire.protocol import diagnose, messages, schema
from kproxy.wire.protocol.compile_decode import compile_decode
from kproxy.wire.protocol.compile_encode import WRITE_ERRORS, compile_encode
from kproxy.wire.protocol.compile_locate import (
    compile_locate,
    compile_numbers,
    compile_numbers_in_chunks,
    compile_seek,
)
from kproxy.wire.protocol.errors import ProtocolError
from kproxy.wire.protocol.schema import REQUEST, RESPONSE, Layout, Message

API_VERSIONS = 18
CONTROLLED_SHUTDOWN = 7
FETCH = 1
UNSUPPORTED_VERSION = 35

SIZE_BYTES = 4
"""The size prefix in front of every frame."""

Decoder = Callable[[bytes | bytearray, int], tuple[Any, int]]
Encoder = Callable[[Any, Callable[[bytes], object]], None]
Steps = Generator[None, None, Any]
"""Work that yields before each element of an array, so that it can be interrupted."""
Span = tuple[int, int, int, int]
Numbers = Callable[[bytes, int], tuple[list[tuple[int, int]], int]]
Locate = Callable[[bytes, int], tuple[list[Span], int]]

_REQUEST_START = Struct(">ihh")
_REQUEST_HEAD = Struct(">ihhih")
"""The header of a request up to its client id, whose length comes last."""
_SIZE = Struct(">i")
_ERROR = Struct(">h")


@attrs.define
class Request:
    """A decoded request frame."""

    header: messages.RequestHeader
    """api_key, api_version, correlation_id, client_id, unknown_tags."""
    body: Any
    """An object of the request's class in `messages`."""
    trailing: bytes = b""
    """The bytes of the frame behind the body."""


@attrs.define
class Response:
    """A decoded response frame."""

    header: messages.ResponseHeader
    """correlation_id, unknown_tags."""
    body: Any
    """An object of the response's class in `messages`."""
    body_version: int
    """The version that the body is in: the request's, but 0 where a broker answers an ApiVersions
    request whose version it does not know (KIP-511)."""
    trailing: bytes = b""
    """The bytes of the frame behind the body."""


# ── compiled functions ───────────────────────────────────────────────────────────────────────


@functools.cache
def layout(message: Message, version: int) -> Layout:
    """Return the layout of one version; ValueError if the message does not have it."""
    return schema.layout(message, version)


@functools.cache
def decoder(message: Message, version: int) -> Decoder:
    """Return `f(data, pos) -> (value, pos)`, which reads the message that starts at `pos`.

    Raises:
        ProtocolError: the bytes do not follow the definition.
    """
    found = layout(message, version)
    return compile_decode(found, functools.partial(diagnose.refusal_of_bytes, found))


@functools.cache
def decoder_in_steps(message: Message, version: int) -> Callable[[bytes | bytearray, int], Steps]:
    """As `decoder`, in steps, at two thirds of its speed. Takes a bytearray, too. An error does not
    name the field: to look for it would take as long again."""
    found = layout(message, version)

    def refuse(data: bytes, start: int) -> ProtocolError:
        return ProtocolError(
            "does not follow its definition",
            api_key=message.api_key,
            api_version=version,
            message=message.name,
        )

    made: Callable[[bytes | bytearray, int], Steps] = compile_decode(found, refuse, in_steps=True)
    return made


@functools.cache
def encoder(message: Message, version: int) -> Encoder:
    """Return `f(value, append)`, which appends the encoding, in pieces of bytes.

    Fields that the version does not have are left out.

    Raises:
        ProtocolError: a value does not fit its field; what was appended is then of no use.
    """
    found = layout(message, version)
    compiled = compile_encode(found)

    def encode(value: Any, append: Callable[[bytes], object]) -> None:
        try:
            compiled(value, append)
        except WRITE_ERRORS:
            raise diagnose.refusal_of_value(found, value) from None

    return encode


@functools.cache
def encoder_in_steps(
    message: Message, version: int
) -> Callable[[Any, Callable[[bytes], object]], Steps]:
    """As `encoder`, in steps."""
    found = layout(message, version)
    compiled = compile_encode(found, in_steps=True)

    def encode(value: Any, append: Callable[[bytes], object]) -> Steps:
        try:
            yield from compiled(value, append)
        except WRITE_ERRORS:
            raise diagnose.refusal_of_value(found, value) from None

    return encode


@functools.cache
def locate(
    message: Message,
    version: int,
    paths: tuple[str, ...],
    first: str | None = None,
    whole: bool = True,
    unknown_tags: bool = False,
) -> Locate:
    """Return `f(data, pos) -> (spans, end)`, which finds fields without decoding.

    Without any path it finds where a message ends.

    Paths are dotted; arrays are implied: "topics.partitions.error_code". A path that a version
    does not have gives no spans. Each span is (index of the path, start, content start, end), as
    offsets into data, in byte order, an outer one before those inside it: start to end is the
    field's whole encoding, the content comes behind the length or count (a fixed-width field has
    content start == start, null has content start == end).

    Around each tagged field that is or holds something found there is a span (-1, start, content
    start, end), before those inside it: start to content start is the varint of its size, content
    start to end what that counts. With `unknown_tags`, tagged fields that the version does not have
    are found too, at any depth, as spans (-2, start, content start, end) of the same kind.

    The walk covers the whole message and refuses what the decoder refuses. With `whole=False` it
    stops behind the last top-level field that holds a path; `end` is there. With `first`, `pos` is
    where that top-level field starts (of a tagged one: where the tagged section starts).

    Raises:
        ValueError: no version of the message has such a path.
        ProtocolError (from f): the bytes do not follow the definition.
    """
    for path in paths:
        _check_path(message, path)
    found = layout(message, version)
    refuse = functools.partial(_refusal_from, found, first) if first else None
    return compile_locate(
        found,
        paths,
        first,
        whole,
        unknown_tags,
        refuse or functools.partial(diagnose.refusal_of_bytes, found),
    )


@functools.cache
def numbers(message: Message, version: int, paths: tuple[str, ...]) -> Numbers:
    """Return `f(data, pos) -> (numbers, end)`, which finds numbers that are not zero, without
    decoding: (index of the path, value) of each. For paths see `locate`.

    Raises:
        ProtocolError (from f): the bytes do not follow the definition.
    """
    found = layout(message, version)
    made: Numbers = compile_numbers(
        found, paths, functools.partial(diagnose.refusal_of_bytes, found)
    )
    return made


def _refusal_from(found: Layout, first: str, data: bytes, start: int) -> ProtocolError:
    names = [slot.name for slot in found.slots]
    position = names.index(first) if first in names else len(names)
    return diagnose.refusal_of_bytes(attrs.evolve(found, slots=found.slots[position:]), data, start)


def _check_path(message: Message, path: str) -> None:
    fields = message.fields
    for name in path.split("."):
        for field in fields:
            if field.name == name:
                fields = field.fields
                break
        else:
            raise ValueError(f"{message.name} has no field {path!r}")


@functools.cache
def _seek(message: Message, version: int, field: str) -> Callable[[], Any]:
    found = layout(message, version)
    return compile_seek(found, field, functools.partial(_refusal_in_chunks, message, version))


def _refusal_in_chunks(
    message: Message, version: int, offset: int, what: str, path: str | None = None
) -> ProtocolError:
    return ProtocolError(
        what,
        api_key=message.api_key,
        api_version=version,
        offset=offset,
        field=path,
        message=message.name,
    )


@functools.cache
def _numbers_in_chunks(message: Message, version: int, paths: tuple[str, ...]) -> Callable[[], Any]:
    refuse = functools.partial(_refusal_in_chunks, message, version)
    return compile_numbers_in_chunks(layout(message, version), paths, refuse)


def numbers_in_chunks(
    message: Message, version: int, paths: tuple[str, ...]
) -> Generator[None, bytes | memoryview, list[tuple[int, int]]]:
    """Find the `numbers` of a body that arrives in chunks; used as `seek` is.

    Raises:
        ProtocolError (from send): the bytes do not follow the definition.
    """
    walk = _numbers_in_chunks(message, version, paths)()
    made: Generator[None, bytes | memoryview, list[tuple[int, int]]] = walk
    return made


def seek(message: Message, version: int, field: str) -> Generator[None, bytes | memoryview, int]:
    """Find where a top-level field starts in a body that arrives in chunks.

    Prime the generator with `next()`, then `send()` the body's bytes in order. When the walk has
    reached the field (or, for a tagged one, the tagged section that ends the message) it returns,
    as StopIteration.value, its offset from the body's first byte, which never lies behind the
    bytes sent so far. Between chunks it keeps a few bytes only.

    Raises:
        ValueError: the version has no such field.
        ProtocolError (from send): the bytes do not follow the definition.
    """
    made: Generator[None, bytes | memoryview, int] = _seek(message, version, field)()
    return made


# ── headers ──────────────────────────────────────────────────────────────────────────────────


def is_known(api_key: int, api_version: int) -> bool:
    """Return whether the table describes this version of this API."""
    return (api_key, api_version) in _KNOWN


_KNOWN = schema.known_versions()


@functools.cache
def request_header_version(api_key: int, api_version: int) -> int:
    """Return the version of the header in front of a request; ProtocolError if the API is
    unknown."""
    if api_key == CONTROLLED_SHUTDOWN and api_version == 0:
        return 0
    return 2 if api_version in _known(api_key, api_version, REQUEST).flexible_versions else 1


@functools.cache
def response_header_version(api_key: int, api_version: int) -> int:
    """Return the version of the header in front of a response; ProtocolError if the API is
    unknown."""
    if api_key == API_VERSIONS:
        return 0  # so that clients can read it whatever version the broker has (KIP-511)
    return 1 if api_version in _known(api_key, api_version, RESPONSE).flexible_versions else 0


def _known(api_key: int, api_version: int, direction: str) -> Message:
    message = schema.message(api_key, direction)
    if message is None:
        raise ProtocolError("unknown api key", api_key=api_key, api_version=api_version)
    if api_version not in message.versions:
        raise ProtocolError(
            "unknown version", api_key=api_key, api_version=api_version, message=message.name
        )
    return message


@functools.cache
def _request_header_decoder(api_key: int, api_version: int) -> Decoder:
    return decoder(schema.named("RequestHeader"), request_header_version(api_key, api_version))


@functools.cache
def _response_header_decoder(api_key: int, api_version: int) -> Decoder:
    return decoder(schema.named("ResponseHeader"), response_header_version(api_key, api_version))


@functools.cache
def _body_decoder(api_key: int, api_version: int, direction: str) -> Decoder:
    return decoder(_known(api_key, api_version, direction), api_version)


def _request_start(frame: bytes | bytearray) -> tuple[int, int, int]:
    if len(frame) < 8:
        raise ProtocolError(
            f"a request of {len(frame)} bytes has no header", offset=len(frame), truncated=True
        )
    return _REQUEST_START.unpack_from(frame)


def request_body(frame: bytes) -> int:
    """Return the offset of the body in a request frame, whose front is enough.

    Raises:
        ProtocolError: the API is unknown, or the header is cut short (`truncated`).
    """
    _, api_key, api_version = _request_start(frame)
    header = schema.named("RequestHeader")
    return locate(header, request_header_version(api_key, api_version), ())(frame, SIZE_BYTES)[1]


def response_body(frame: bytes, api_key: int, api_version: int) -> int:
    """Return the offset of the body in a response frame, whose front is enough.

    Raises:
        ProtocolError: the API is unknown, or the header is cut short (`truncated`).
    """
    header = schema.named("ResponseHeader")
    return locate(header, response_header_version(api_key, api_version), ())(frame, SIZE_BYTES)[1]


# ── frames ───────────────────────────────────────────────────────────────────────────────────


def take_frames(data: bytearray, frame_bytes_max: int) -> list[bytes]:
    """Remove the whole frames at the beginning of what has arrived, and return them.

    Raises:
        ProtocolError: a frame cannot have this size.
    """
    frames, start = [], 0
    while len(data) - start >= SIZE_BYTES:
        size = int.from_bytes(data[start : start + SIZE_BYTES], "big", signed=True)
        if not 0 <= size <= frame_bytes_max:
            raise ProtocolError(f"frame size {size}", offset=start)
        end = start + SIZE_BYTES + size
        if len(data) < end:
            break
        frames.append(bytes(data[start:end]))
        start = end
    del data[:start]
    return frames


def decode_request(frame: bytes) -> Request:
    """Decode a whole request frame, size prefix included.

    Raises:
        ProtocolError: the API is unknown or the bytes do not follow its definition.
    """
    frame = bytes(frame)
    size, api_key, api_version = _request_start(frame)
    _check_size(frame, size)
    header, position = _request_header_decoder(api_key, api_version)(frame, SIZE_BYTES)
    body, position = _body_decoder(api_key, api_version, REQUEST)(frame, position)
    return Request(header, body, frame[position:])


def decode_request_in_steps(frame: bytes | bytearray) -> Steps:
    """Decode a whole request frame in steps; the result is that of `decode_request`.

    Raises:
        ProtocolError: the API is unknown or the bytes do not follow its definition.
    """
    size, api_key, api_version = _request_start(frame)
    _check_size(frame, size)
    header, position = _request_header_decoder(api_key, api_version)(frame, SIZE_BYTES)
    decode_body = decoder_in_steps(_known(api_key, api_version, REQUEST), api_version)
    body, position = yield from decode_body(frame, position)
    return Request(header, body, bytes(frame[position:]))


def decode_request_body(frame: bytes) -> Any:
    """Decode a whole request frame, and return its body without the header: in half the time.

    Raises:
        ProtocolError: the API is unknown or the bytes do not follow its definition.
    """
    api_key, api_version, position = _find_request_body(frame)
    return _body_decoder(api_key, api_version, REQUEST)(frame, position)[0]


def _find_request_body(frame: bytes) -> tuple[int, int, int]:
    """Return the API and the version of a whole request frame, and where its body starts."""
    if len(frame) >= _REQUEST_HEAD.size:
        size, api_key, api_version, _, client_id_bytes = _REQUEST_HEAD.unpack_from(frame)
        position = _REQUEST_HEAD.size + client_id_bytes
        header_version = request_header_version(api_key, api_version)
        if client_id_bytes >= 0 and size == len(frame) - SIZE_BYTES:
            if header_version == 1:
                return api_key, api_version, position
            if header_version == 2 and frame[position : position + 1] == b"\0":
                return api_key, api_version, position + 1  # no tagged fields
    size, api_key, api_version = _request_start(frame)
    _check_size(frame, size)
    position = _request_header_decoder(api_key, api_version)(frame, SIZE_BYTES)[1]
    return api_key, api_version, position


def decode_response(frame: bytes, api_key: int, api_version: int) -> Response:
    """Decode a whole response frame, size prefix included, to a request of that API and version.

    Raises:
        ProtocolError: the API is unknown or the bytes do not follow its definition.
    """
    frame = bytes(frame)
    _check_size(frame, int.from_bytes(frame[:SIZE_BYTES], "big", signed=True))
    header, position = _response_header_decoder(api_key, api_version)(frame, SIZE_BYTES)
    if api_key == API_VERSIONS:
        api_version = _version_of_api_versions(frame, position, api_version)
    body, position = _body_decoder(api_key, api_version, RESPONSE)(frame, position)
    return Response(header, body, api_version, frame[position:])


def decode_response_body(frame: bytes, api_key: int, api_version: int) -> tuple[Any, int]:
    """Decode a whole response frame to a request of that API and version, and return its body,
    without the header, and the version that the body is in.

    Raises:
        ProtocolError: the API is unknown or the bytes do not follow its definition.
    """
    api_version, position = _find_response_body(frame, api_key, api_version)
    return _body_decoder(api_key, api_version, RESPONSE)(frame, position)[0], api_version


def response_version(frame: bytes, api_key: int, api_version: int) -> int:
    """Return the version of the body of a response frame to a request of that API and version: 0
    where a broker does not know that of an ApiVersions request (KIP-511).

    Raises:
        ProtocolError: the API is unknown or the bytes do not follow its definition.
    """
    return _find_response_body(frame, api_key, api_version)[0]


def _find_response_body(frame: bytes, api_key: int, api_version: int) -> tuple[int, int]:
    """Return the version of the body of a whole response frame, and where it starts."""
    _check_size(frame, int.from_bytes(frame[:SIZE_BYTES], "big", signed=True))
    position = SIZE_BYTES + 4
    if response_header_version(api_key, api_version):
        if frame[position : position + 1] == b"\0":
            position += 1
        else:
            position = response_body(frame, api_key, api_version)
    if api_key == API_VERSIONS:
        api_version = _version_of_api_versions(frame, position, api_version)
    return api_version, position


def _version_of_api_versions(frame: bytes, position: int, api_version: int) -> int:
    """Return the version of an ApiVersions response whose body starts at a position."""
    if api_version > 0 and len(frame) >= position + 2:
        (error,) = _ERROR.unpack_from(frame, position)
        if error == UNSUPPORTED_VERSION:
            return 0
    return api_version


def _check_size(frame: bytes | bytearray, size: int) -> None:
    if size != len(frame) - SIZE_BYTES:
        raise ProtocolError(
            f"the size prefix says {size} bytes, {len(frame) - SIZE_BYTES} follow", offset=0
        )


def encode_request(request: Request) -> bytes:
    """Encode a request as a frame; a decoded request is encoded byte for byte as it was.

    Raises:
        ProtocolError: the API is unknown or a value does not fit its field.
    """
    header = request.header
    body = _known(header.api_key, header.api_version, REQUEST)
    header_version = request_header_version(header.api_key, header.api_version)
    parts = [b""]
    encoder(schema.named("RequestHeader"), header_version)(header, parts.append)
    encoder(body, header.api_version)(request.body, parts.append)
    return _frame(parts, request.trailing)


def encode_response(response: Response, api_key: int) -> bytes:
    """Encode a response as a frame; a decoded response is encoded byte for byte as it was.

    Raises:
        ProtocolError: the API is unknown or a value does not fit its field.
    """
    version = response.body_version
    body = _known(api_key, version, RESPONSE)
    parts = [b""]
    header_version = response_header_version(api_key, version)
    encoder(schema.named("ResponseHeader"), header_version)(response.header, parts.append)
    encoder(body, version)(response.body, parts.append)
    return _frame(parts, response.trailing)


def _frame(parts: list[bytes], trailing: bytes) -> bytes:
    parts.append(trailing)
    parts[0] = _SIZE.pack(sum(map(len, parts)))
    return b"".join(parts)
