"""Which schema the bytes of a key or value name.

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

from kproxy.payloads.schemas import SchemaId

HEADERS = {"key": "__key_schema_id", "value": "__value_schema_id"}
"""The headers that name schemas, by part of the record."""
_MAGIC_ID = 0
_MAGIC_GUID = 1
_ID_END = 5
_GUID_END = 17


class Framed(NamedTuple):
    """Bytes that name their schema."""

    schema_id: SchemaId
    rest: bytes
    """What follows the id; of Protobuf the message indexes in front."""
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
    if len(data) < _ID_END or data[0] != _MAGIC_ID:
        return None
    number = int.from_bytes(data[1:_ID_END], "big", signed=True)
    if number <= 0:
        return None
    rest = data[_ID_END:]
    return Framed(number, rest, rest, False)


def _id_of(data: bytes) -> tuple[SchemaId, int] | None:
    """Return the id in front of some bytes, and where it ends."""
    if data[0] == _MAGIC_ID and len(data) >= _ID_END:
        number = int.from_bytes(data[1:_ID_END], "big", signed=True)
        return (number, _ID_END) if number > 0 else None
    if data[0] == _MAGIC_GUID and len(data) >= _GUID_END:
        return UUID(bytes=data[1:_GUID_END]), _GUID_END
    return None
