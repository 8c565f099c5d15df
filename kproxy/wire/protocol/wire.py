"""Functions that compiled codecs call: the rarely taken turns of Kafka's wire format.

Compiled functions inline what nearly every field needs (a one-byte length, a fixed-width number)
and call in here for the rest: long varints, refusals, unknown tags. They read `data` without
asking for its size: an index out of range, a short `unpack_from` or a position behind the end
all mean that the data was cut short, so lengths allocate nothing before the bytes are there.

`Malformed` never leaves the room: `diagnose` finds out what was wrong and raises `ProtocolError`.
"""

from __future__ import annotations

import functools
import uuid
from collections.abc import Callable, Iterable, Sequence
from struct import Struct
from struct import error as StructError
from typing import Any, Final, Literal, cast

COLLECTION_ELEMENTS_MAX = 1_000_000
"""The limit of Kafka's own readers."""
TAGS_MAX = 10_000
"""The limit of Kafka's own readers."""

Tags = tuple[tuple[int, bytes], ...]


class Malformed(Exception):
    """The bytes do not follow the schema."""


READ_ERRORS: Final = (IndexError, StructError, Malformed)
"""The exceptions of a compiled reader for bad bytes."""


def varint(data: bytes | memoryview, position: int, value: int) -> tuple[int, int]:
    """Read the rest of an unsigned varint whose first byte, `value`, is above 127."""
    value &= 127
    shift = 7
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            break
        shift += 7
        if shift > 28:
            raise Malformed
    if value > 0xFFFFFFFF:
        raise Malformed
    return value, position


def compact_bytes_or_null(data: bytes, position: int) -> tuple[bytes | None, int]:
    """Read bytes with a compact length of any size, which starts at the position."""
    size = data[position]
    position += 1
    if size > 127:
        size, position = varint(data, position, size)
    if size == 0:
        return None, position
    end = position + size - 1
    return bytes(data[position:end]), end


def compact_bytes(data: bytes, position: int) -> tuple[bytes, int]:
    """Read bytes with a compact length of any size that cannot be null."""
    found, position = compact_bytes_or_null(data, position)
    if found is None:
        raise Malformed
    return found, position


def compact_text_or_null(data: bytes, position: int) -> tuple[str | None, int]:
    """Read a string with a compact length of any size, which starts at the position."""
    size = data[position]
    if size == 0:
        return None, position + 1
    if size < 128:
        return compact_text(data, position)
    found, position = compact_bytes_or_null(data, position)
    return (None if found is None else found.decode("utf-8", "surrogateescape")), position


def compact_text(data: bytes, position: int) -> tuple[str, int]:
    """Read a string with a compact length of any size that cannot be null."""
    size = data[position]
    if 0 < size < 128:
        end = position + size
        return data[position + 1 : end].decode("utf-8", "surrogateescape"), end
    found, position = compact_bytes(data, position)
    return found.decode("utf-8", "surrogateescape"), position


def compact_texts(data: bytes, position: int, elements: int) -> tuple[list[str], int]:
    """Read an array of strings that cannot be null, behind its count."""
    found: list[str] = []
    for _ in range(elements):
        text, position = compact_text(data, position)
        found.append(text)
    return found, position


def skip_compact_bytes(data: bytes, position: int, nullable: bool) -> int:
    """Return the position behind bytes with a compact length of any size."""
    return compact_span(data, position, nullable)[1]


def compact_span(data: bytes, position: int, nullable: bool) -> tuple[int, int]:
    """Return where bytes with a compact length of any size start, behind the length, and end."""
    size = data[position]
    position += 1
    if size > 127:
        size, position = varint(data, position, size)
    if size == 0:  # also when it was said in more bytes than needed
        if not nullable:
            raise Malformed
        return position, position
    return position, position + size - 1


def count(data: bytes, position: int, value: int) -> tuple[int, int]:
    """Read a compact count that cannot be null, of any size; `value` is its first byte."""
    if value > 127:
        value, position = count_or_null(data, position, value)
    if value == 0:  # also when it was said in more bytes than needed
        raise Malformed
    return value, position


def count_or_null(data: bytes, position: int, value: int) -> tuple[int, int]:
    """Read a compact count of several bytes, which may be null."""
    value, position = varint(data, position, value)
    if value > COLLECTION_ELEMENTS_MAX + 1:
        raise Malformed
    return value, position


def tags(data: bytes, position: int, value: int) -> tuple[Tags, int]:
    """Read a section of tagged fields none of which is known; `value` is the first byte of its
    count."""
    if value > 127:
        value, position = varint(data, position, value)
        if value > TAGS_MAX:
            raise Malformed
    found: list[tuple[int, bytes]] = []
    for _ in range(value):
        tag = data[position]
        size = data[position + 1]
        if tag > 127 or size > 127:
            tag, position = varint(data, position + 1, tag) if tag > 127 else (tag, position + 1)
            size = data[position]
            position += 1
            if size > 127:
                size, position = varint(data, position, size)
        else:
            position += 2
        end = position + size
        found.append((tag, bytes(data[position:end])))
        position = end
    return tuple(found), position


def skip_tags(data: bytes, position: int, value: int) -> int:
    """Skip a section of tagged fields; return the position behind it."""
    if value > 127:
        value, position = varint(data, position, value)
        if value > TAGS_MAX:
            raise Malformed
    for _ in range(value):
        for _ in "tag", "size":
            number = data[position]
            position += 1
            if number > 127:
                number, position = varint(data, position, number)
        position += number
    return position


ONE_BYTE: Final = tuple(bytes((n,)) for n in range(128))
"""Unsigned varints below 128."""


def write_varint(value: int) -> bytes:
    """Encode an unsigned varint."""
    if value < 128:
        return ONE_BYTE[value]
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def write_tags(known: list[tuple[int, bytes]], unknown: Tags) -> bytes:
    """Encode a section of tagged fields.

    Unknown ones keep their order; among known ones all are written in ascending order, and a
    field's own value wins over bytes that were kept for its tag.
    """
    found: Sequence[tuple[int, bytes]] = unknown
    if known:
        numbers = {tag for tag, _ in known}
        found = sorted(
            [*known, *(one for one in unknown if one[0] not in numbers)], key=lambda one: one[0]
        )
    parts = [write_varint(len(found))]
    for tag, content in found:
        if tag < 0:
            raise ValueError(f"a tag cannot be {tag}")
        parts += (write_varint(tag), write_varint(len(content)), content)
    return b"".join(parts)


new_tuple: Callable[..., Any] = tuple[Any, ...].__new__
"""`new_tuple(Kind, values)` makes a NamedTuple in half the time of `Kind(…)`: for those that are
made for each exchange, or for each batch of records."""
_new_uuid = functools.partial(object.__new__, uuid.UUID)
_set_int = cast("Any", uuid.UUID).int.__set__
_set_safe = cast("Any", uuid.UUID).is_safe.__set__
_UNKNOWN = uuid.SafeUUID.unknown
_from_bytes: Callable[[bytes, Literal["big"]], int] = int.from_bytes


def make_uuid(raw: bytes) -> uuid.UUID:
    """Return a UUID of 16 bytes; skips `UUID.__init__`'s checks, which cost four times as much."""
    made = _new_uuid()
    _set_int(made, _from_bytes(raw, "big"))
    _set_safe(made, _UNKNOWN)
    return made


@functools.cache
def unpacker(form: str) -> Callable[..., tuple[Any, ...]]:
    """Return `Struct.unpack_from` of a format without its byte order."""
    return Struct(">" + form).unpack_from


@functools.cache
def packer(form: str) -> Callable[..., bytes]:
    """Return `Struct.pack` of a format without its byte order."""
    return Struct(">" + form).pack


SHORT_ARRAY_ELEMENTS = 33
"""Arrays shorter than this have ready-made structs."""


@functools.cache
def array_unpackers(code: str) -> tuple[Callable[..., tuple[Any, ...]], ...]:
    """Return `unpack_from` for arrays of 0, 1, … elements of a struct code."""
    return tuple(Struct(f">{n}{code}").unpack_from for n in range(SHORT_ARRAY_ELEMENTS))


@functools.cache
def array_packers(code: str) -> tuple[Callable[..., bytes], ...]:
    """Return `pack` for arrays of 0, 1, … elements of a struct code."""
    return tuple(Struct(f">{n}{code}").pack for n in range(SHORT_ARRAY_ELEMENTS))


def unpack_array(code: str, elements: int, data: bytes, position: int) -> list[Any]:
    """Read a long array of fixed-width elements."""
    return [*Struct(f">{elements}{code}").unpack_from(data, position)]


def pack_array(code: str, values: Iterable[Any], elements: int) -> bytes:
    """Encode a long array of fixed-width elements."""
    return Struct(f">{elements}{code}").pack(*values)
