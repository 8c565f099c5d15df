"""The content of a `records` field as JSON, in pieces.

    bytes ─▶ Batch ─▶ its head ─▶ its records, one by one ─▶ what is damaged

Keys, values and headers' values are text where they are UTF-8, else `{"base64": …}`.

A batch that is damaged has the reason under `"error"` and its bytes after the header under
`"payload"`; its records are those before the damage, or null if there are none. One whose checksum
is wrong has `"crc"` and `"crc_computed"` beside `"crc_ok": false`. What is no batch is an object of
`"records": null`, `"error"` and `"payload"`: it comes last.

Invariant: the JSON of no more than one record, or a part of one that is large, is in memory at
once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from kproxy.wire.protocol.compression import Allowance
from kproxy.wire.protocol.errors import ProtocolError
from kproxy.wire.protocol.plain import RECORDS, base64_text, dumps, filled
from kproxy.wire.protocol.record_batch import (
    BATCH_HEADER,
    MESSAGE_HEADERS,
    Batch,
    Record,
    read_records,
)
from kproxy.wire.protocol.record_fields import Headers
from kproxy.wire.protocol.records import batches

Beside = Callable[[Record], str]
"""Gets a record, and returns further members of its object: `, "name": value`, or nothing."""

_BYTES_AT_ONCE = 3 << 18
"""A byte becomes up to six characters. It is a multiple of what base64 has no rest of."""
_HEADER_BYTES = 16
"""The names of a header's members weigh as much as so many bytes of it."""


def json_pieces(
    data: bytes, allowance: Allowance, beside: Beside = lambda record: ""
) -> Iterator[str]:
    """Give the batches in `data`, the content of a `records` field, as JSON, in pieces. All of them
    share one allowance for decompression."""
    found = batches(data)
    opening = "["
    for batch in found:
        for piece in _batch_pieces(batch, allowance, beside):
            yield opening + piece
            opening = ""
        opening = ", "
    if found.damage is not None:
        left = {"records": None, **_damage(found.damage, found.rest(data))}
        yield opening + dumps(left)
        opening = ", "
    yield "[]" if opening == "[" else "]"


def _batch_pieces(batch: Batch, allowance: Allowance, beside: Beside) -> Iterator[str]:
    read, damage = _read(batch, allowance)
    opening = f'{dumps(_head(batch, read))[:-1]}, "records": ['
    if damage is not None and not read:
        opening = f"{opening[:-1]}null"
    for record in read:
        for piece in _record_pieces(record, beside):
            yield opening + piece
            opening = ""
        opening = ", "
    text = "]" if read else opening if damage is not None else f"{opening}]"
    end: dict[str, Any] = {}
    if damage is not None:
        header = MESSAGE_HEADERS[batch.magic] if batch.magic < 2 else BATCH_HEADER
        end = _damage(damage, batch.raw[header.size :])
    if not batch.crc_ok:
        end |= {"crc": batch.crc, "crc_computed": batch.crc_computed}
    yield f"{text}, {dumps(end)[1:]}" if end else text + "}"


def _read(batch: Batch, allowance: Allowance) -> tuple[list[Record], ProtocolError | None]:
    """Read the records of a batch: it becomes no more than `Allowance()` grants, however much is
    allowed for all batches."""
    if batch.compression == "none":
        return read_records(batch, allowance)
    with allowance.of_one_batch() as part:
        return read_records(batch, part)


def _head(batch: Batch, read: Sequence[Record]) -> dict[str, Any]:
    """Return the members of a batch up to its records."""
    # A wrapper has the offset of its last message.
    offset = read[0].offset if read and batch.wrapper else batch.offset
    return {
        "base_offset": offset,
        "magic": batch.magic,
        "compression": batch.compression,
        "partition_leader_epoch": batch.partition_leader_epoch,
        "crc_ok": batch.crc_ok,
        "timestamp_type": batch.timestamp_type,
        "transactional": batch.transactional,
        "control": batch.control,
        "base_timestamp": batch.base_timestamp,
        "max_timestamp": batch.max_timestamp if batch.magic == 2 else batch.base_timestamp,
        "producer_id": batch.producer_id,
        "producer_epoch": batch.producer_epoch,
        "base_sequence": batch.base_sequence,
    }


def _damage(damage: ProtocolError, data: bytes) -> dict[str, Any]:
    return {"error": str(damage), "payload": base64_text(data)}


def _bytes(record: Record) -> int:
    """Return about how many bytes a record has."""
    size = len(record.key or b"") + len(record.value or b"")
    for name, content in record.headers:
        size += _HEADER_BYTES + len(name) + len(content or b"")
    return size


def _record_pieces(record: Record, beside: Beside) -> Iterable[str]:
    if _bytes(record) <= _BYTES_AT_ONCE:
        headers = [{"key": key, "value": _bytes_plain(value)} for key, value in record.headers]
        return (_record_json(record, _bytes_plain(record.key), _bytes_plain(record.value), headers,
                             beside),)  # fmt: skip
    text = _record_json(record, RECORDS, RECORDS, RECORDS, beside)
    parts = bytes_pieces(record.key), bytes_pieces(record.value), headers_pieces(record.headers)
    return filled(text, parts, iter)


def _record_json(record: Record, key: Any, value: Any, headers: Any, beside: Beside) -> str:
    members = {
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": key,
        "value": value,
        "headers": headers,
    }
    if record.control_type is not None:
        members["control_type"] = record.control_type
    if not record.crc_ok:
        members["crc_ok"] = False
    return f"{dumps(members)[:-1]}{beside(record)}}}"


def _bytes_plain(data: bytes | None) -> Any:
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64_text(data)}


# ── in pieces of a bounded size ──────────────────────────────────────────────────────────────


def headers_pieces(headers: Headers) -> Iterator[str]:
    """Yield the headers of a record as JSON."""
    opening = "["
    for key, value in headers:
        yield f'{opening}{{"key": '
        yield from _text_pieces(key)
        yield ', "value": '
        yield from bytes_pieces(value)
        yield "}"
        opening = ", "
    yield "]" if headers else "[]"


def bytes_pieces(data: bytes | None) -> Iterator[str]:
    """Yield a key or a value as JSON."""
    if data is None or len(data) <= _BYTES_AT_ONCE:
        yield dumps(_bytes_plain(data))
        return
    try:
        text = data.decode()
    except UnicodeDecodeError:
        yield '{"base64": "'
        for first in range(0, len(data), _BYTES_AT_ONCE):
            yield base64_text(data[first : first + _BYTES_AT_ONCE])
        yield '"}'
    else:
        yield from _text_pieces(text)


def _text_pieces(text: str) -> Iterator[str]:
    yield '"'
    for first in range(0, len(text), _BYTES_AT_ONCE):
        yield dumps(text[first : first + _BYTES_AT_ONCE])[1:-1]
    yield '"'
