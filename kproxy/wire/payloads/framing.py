"""The id of a schema, in front of the bytes of a key or value, or in a header beside them.

    0, id (4 bytes), [message indexes], data         in front of the data
    header __key_schema_id, __value_schema_id:       or in a header, beside the bare data
        0, id (4 bytes) | 1, GUID (16 bytes), [message indexes]

Message indexes are Protobuf's alone: which message of the file, as zigzag varints with their count
in front; one 0 stands for the first message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from kproxy.wire.payloads.schemas import SchemaId

HEADERS = {"key": "__key_schema_id", "value": "__value_schema_id"}
"""The headers that name schemas, by part of the record."""
_MAGIC_ID = 0
_MAGIC_GUID = 1
ID_END = 5
"""The bytes of an id, with what stands before it."""
_GUID_END = 17
_LONG_BYTES = 8


class Framed(NamedTuple):
    """Bytes that name their schema."""

    schema_id: SchemaId
    rest: bytes
    """The bytes behind the id; of Protobuf the message indexes come first."""
    data: bytes
    """The data, where the id stands in a header; `rest` is then the header's. Else the same."""
    in_header: bool


def framed(part: str, data: bytes, headers: Sequence[tuple[str, bytes | None]]) -> Framed | None:
    """Return what the bytes of a part, `key` or `value`, name; None if they name no schema."""
    wanted = HEADERS[part]
    for name, value in reversed(headers):  # serialisers append theirs
        if name == wanted and value:
            found = _id_of(value)
            if found is not None:
                return Framed(found[0], value[found[1] :], data, in_header=True)
    number = _number_of(data)
    if number is None:
        return None
    rest = data[ID_END:]
    return Framed(number, rest, rest, in_header=False)


def may_be_number(size: int) -> bool:
    """Return whether so many bytes with an id in front may as well be a number: LongSerializer of
    Kafka writes eight."""
    return size == _LONG_BYTES


def _id_of(data: bytes) -> tuple[SchemaId, int] | None:
    """Return the id in a header, and where it ends."""
    number = _number_of(data)
    if number is not None:
        return number, ID_END
    if data[0] == _MAGIC_GUID and len(data) >= _GUID_END:
        return UUID(bytes=data[1:_GUID_END]), _GUID_END
    return None


def _number_of(data: bytes) -> int | None:
    """Return the registry's number in front of some bytes; None if there is none."""
    if len(data) < ID_END or data[0] != _MAGIC_ID:
        return None
    number = int.from_bytes(data[1:ID_END], "big", signed=True)
    return number if number > 0 else None
