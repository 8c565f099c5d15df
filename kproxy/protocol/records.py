"""The content of a `records` field: record batches and message sets.

    bytes ──batches──▶ Batch … ──.records──▶ Record …       ──to_json──▶ plain values
      ├────json_pieces─▶ JSON text, batch by batch
      └────summary───▶ how many, from where to where, without decompressing
    Record … ──encode_batch──▶ bytes (magic 2)

The layout and how one batch is read stand in `record_batch`. The last batch of a field may be cut
off by the broker; that is quiet, and counted (`Batches.bytes_left`). What is no batch hides none of
those before it, and is named (`Batches.damage`, as `Batch.damage` inside a batch). Nothing here
decompresses before it is asked for records, and nothing decompresses without a bound.
"""

from __future__ import annotations

import functools
import json
import struct
from binascii import b2a_base64
from collections.abc import Callable, Iterable, Iterator
from json.encoder import encode_basestring_ascii as _text
from typing import Any, NamedTuple

from kproxy.protocol.compression import (
    CODECS,
    DECOMPRESSED_BYTES_MAX,
    RECORDS_MAX,
    Allowance,
    codec_name,
    compress,
)
from kproxy.protocol.errors import ProtocolError
from kproxy.protocol.json_text import RECORDS, base64_json, filled
from kproxy.protocol.record_batch import (
    BATCH_HEADER,
    COMPRESSED,
    CONTROL,
    CONTROL_TYPES,
    ENTRY_OVERHEAD,
    LOG_APPEND_TIME,
    MESSAGE_HEADERS,
    NO_TIMESTAMP,
    TRANSACTIONAL,
    Batch,
    Record,
    Row,
    crc_at,
    entries,
    read_header,
    rows_at,
)
from kproxy.protocol.record_fields import Headers, wrapped

_UNCHECKED_HEADER = struct.Struct(">qiibI")
_CHECKED_HEADER = struct.Struct(">hiqqqhii")
"""BATCH_HEADER in two: up to the checksum, and what the checksum covers."""
_SUMMARY_OFFSETS = struct.Struct(">hi")
"""Attributes and last offset delta, at byte 21 of a batch."""
_JSON_RATIO = 64
_RECORDS_AT_ONCE = 1000
_BYTES_AT_ONCE = 3 << 18
"""A byte becomes up to six characters. It is a multiple of what base64 has no rest of."""
_HEADER_BYTES = 16
"""The names of a header's members weigh as much as so many bytes of it."""


Beside = Callable[[bytes | None, bytes | None, Headers], str]
"""Gets the key, the value and the headers of a record."""


def _nothing(key: bytes | None, value: bytes | None, headers: Headers) -> str:
    """Have nothing to say beside a record."""
    return ""


class Batches(list[Batch]):
    """The batches of one `records` field."""

    bytes_left: int = 0
    """Bytes at the end that do not make a whole batch: brokers cut the last one off."""
    damage: ProtocolError | None = None
    """The reason why these bytes cannot be the beginning of a batch either."""

    def rest(self, data: bytes) -> bytes:
        """Return these bytes of the field `data`."""
        return data[len(data) - self.bytes_left :]


class Summary(NamedTuple):
    """The counts in the headers of a `records` field."""

    batches: int
    records: int | None
    """The number of records, without the markers of control batches. None when a wrapper message of
    magic 0 or 1 keeps its count inside."""
    first_offset: int | None
    """None when there is nothing, or when a wrapper message comes first, which has only its last
    offset."""
    last_offset: int | None
    magic: int | None
    """The magic of the first batch."""
    compression: str
    """"none", a codec, or "mixed"."""


def batches(data: bytes) -> Batches:
    """Read the headers of all whole batches in `data`, the content of a `records` field.

    A last batch that is cut off is left out; `bytes_left` of the result says how long it is. Where
    an entry has an impossible length or an unknown magic byte, `damage` says so, and `bytes_left`
    counts from there.
    """
    data = bytes(data)
    found = Batches()
    end = 0
    try:
        for start, end, magic in entries(data):
            found.append(read_header(data, start, end, magic))
    except ProtocolError as error:
        found.damage = error
    found.bytes_left = len(data) - end
    return found


def json_allowance(frame_bytes: int) -> Allowance:
    """Return the limit for decompressing records that came in a frame of this size: 128 MiB, or 64
    times its size."""
    return Allowance(
        max(DECOMPRESSED_BYTES_MAX, _JSON_RATIO * frame_bytes), max(RECORDS_MAX, frame_bytes // 4)
    )


def json_pieces(data: bytes, allowance: Allowance, beside: Beside = _nothing) -> Iterator[str]:
    """Give the batches in `data`, the content of a `records` field, as JSON, in pieces, with the
    records of no more than one batch in memory.

    Keys, values and headers' values are text where they are UTF-8, else `{"base64": …}`. `beside`
    returns further members of a record, `, "name": value`, or nothing.

    A batch that is damaged has the reason under `"error"` and its bytes after the header under
    `"payload"`; its records are those before the damage, or null if there are none. One whose
    checksum is wrong has `"crc"` and `"crc_computed"` beside `"crc_ok": false`. What is no batch is
    an object of `"records": null`, `"error"` and `"payload"`: it comes last. All batches share one
    allowance for decompression.
    """
    opening = "["
    end = 0
    try:
        for start, end, magic in entries(data):
            for piece in _batch_json(data, start, end, magic, start, allowance, beside):
                yield opening + piece
                opening = ""
            opening = ", "
    except ProtocolError as error:
        yield f'{opening}{{"records": null{_damage_json(error, data[end:])}}}'
        opening = ", "
    yield "[]" if opening == "[" else "]"


def to_json(batches: Batch | Iterable[Batch], allowance: Allowance | None = None) -> Any:
    """Give a batch, or a list of batches, as plain values: those of `json_pieces`.

    The allowance is the one given, or what `json_allowance` gives for their size.
    """
    if isinstance(batches, Batch):
        return to_json([batches], allowance or Allowance())[0]
    batches = list(batches)
    left = allowance or json_allowance(sum(len(batch.raw) for batch in batches))
    return [json.loads("".join(_json_of(batch, left))) for batch in batches]


def _json_of(batch: Batch, allowance: Allowance) -> Iterator[str]:
    raw = batch.raw
    return _batch_json(raw, 0, len(raw), batch.magic, batch.position, allowance, _nothing)


def summary(data: bytes) -> Summary:
    """Count batches and records in `data` by their headers alone; stop at what is not a batch.

    Takes time by the number of batches, decompresses nothing, checks no checksum, never raises.
    """
    count = records = 0
    first: int | None = None
    last: int | None = None
    first_magic: int | None = None
    codecs = 0
    known = True
    try:
        for start, _, magic in entries(data):
            offset = int.from_bytes(data[start : start + 8], "big", signed=True)
            if magic == 2:
                attributes, delta = _SUMMARY_OFFSETS.unpack_from(data, start + 21)
                if not attributes & CONTROL:
                    in_batch = int.from_bytes(data[start + 57 : start + 61], "big", signed=True)
                    records += max(0, in_batch)
            else:
                attributes, delta = data[start + 17], 0
                records += 1
                known = known and not attributes & 7
            if not count:
                first_magic = magic
                first = offset if magic == 2 or not attributes & 7 else None
            last = offset + delta
            codecs |= 1 << (attributes & 7)
            count += 1
    except ProtocolError:
        pass
    compression = "mixed" if codecs & codecs - 1 else codec_name(max(codecs, 1).bit_length() - 1)
    return Summary(count, records if known else None, first, last, first_magic, compression)


def _batch_json(
    data: bytes,
    start: int,
    end: int,
    magic: int,
    position: int,
    allowance: Allowance,
    beside: Beside,
) -> Iterator[str]:
    """Give an entry in `data` as JSON, in pieces. It is written without a `Batch`, which would take
    1.4 µs: many batches have one record, whose JSON takes 10 µs in all."""
    if magic == 2:
        (
            offset, _, epoch, _, crc, attributes, _, base, last, producer_id, producer_epoch,
            sequence, _,
        ) = BATCH_HEADER.unpack_from(data, start)  # fmt: skip
    else:
        message = read_header(data, start, end, magic)
        offset, crc, attributes = message.offset, message.crc, message.attributes
        base = last = message.base_timestamp
        epoch = producer_id = producer_epoch = sequence = -1
    rows, damage = _rows(data, start, end, magic, position, attributes, allowance)
    if rows and magic < 2 and attributes & COMPRESSED:
        offset = rows[0][0]  # a wrapper has that of the last
    computed = crc_at(data, start, end, magic)
    words = _head_form(magic, attributes, crc == computed)
    text = words % (offset, epoch, base, last, producer_id, producer_epoch, sequence)
    if damage is not None and not rows:
        text += "null"
    else:
        opening = text + "["
        for portion in _portions(rows):
            for piece in _portion_json(portion, beside):
                yield opening + piece
                opening = ""
            opening = ", "
        text = "]" if rows else opening + "]"
    if damage is not None:
        header = MESSAGE_HEADERS[magic] if magic < 2 else BATCH_HEADER
        text += _damage_json(damage, data[start + header.size : end])
    if crc != computed:
        text += f', "crc": {crc}, "crc_computed": {computed}'
    yield text + "}"


def _damage_json(damage: ProtocolError, data: bytes) -> str:
    return f', "error": {_text(str(damage))}, "payload": {base64_json(data)}'


def _rows(
    data: bytes,
    start: int,
    end: int,
    magic: int,
    position: int,
    attributes: int,
    allowance: Allowance,
) -> tuple[list[Row], ProtocolError | None]:
    """Read the records of an entry.

    One batch becomes no more than `Allowance()` grants, however much is allowed for all batches.
    """
    if not attributes & COMPRESSED:
        return rows_at(data, start, end, magic, position, allowance)
    with allowance.of_one_batch() as part:
        return rows_at(data, start, end, magic, position, part)


def _portions(rows: list[Row]) -> Iterator[list[Row]]:
    """Cut rows into portions of which the JSON may be in memory at once; a larger row is alone."""
    first = size = 0
    for place, row in enumerate(rows):
        size_of_row = _size(row)
        if place - first == _RECORDS_AT_ONCE or (size + size_of_row > _BYTES_AT_ONCE and size):
            yield rows[first:place]
            first, size = place, 0
        size += size_of_row
    if rows:
        yield rows[first:]


def _size(row: Row) -> int:
    """Return about how many bytes a record has."""
    _, _, key, value, headers, _, _ = row
    size = 1 + (len(key) if key else 0) + (len(value) if value else 0)
    for name, content in headers:
        size += _HEADER_BYTES + len(name) + (len(content) if content else 0)
    return size


@functools.lru_cache(maxsize=256)
def _head_form(magic: int, attributes: int, crc_ok: bool) -> str:
    """Return the form of the JSON of a batch up to its records; names of codecs and types need no
    escapes."""
    batch = Batch(b"", 0, 0, magic, 0, attributes)
    return (
        f'{{"base_offset": %s, "magic": {magic}, "compression": "{batch.compression}"'
        f', "partition_leader_epoch": %s'
        f', "crc_ok": {_TRUTH[crc_ok]}, "timestamp_type": "{batch.timestamp_type}"'
        f', "transactional": {_TRUTH[batch.transactional]}, "control": {_TRUTH[batch.control]}'
        ', "base_timestamp": %s, "max_timestamp": %s'
        ', "producer_id": %s, "producer_epoch": %s, "base_sequence": %s, "records": '
    )


def _portion_json(rows: list[Row], beside: Beside) -> Iterable[str]:
    """Return the JSON of a portion of records, in pieces."""
    if len(rows) == 1 and _size(rows[0]) > _BYTES_AT_ONCE:
        _, _, key, value, headers, _, _ = rows[0]
        text = _record_json(rows[0], RECORDS, RECORDS, RECORDS, beside)
        parts = bytes_pieces(key), bytes_pieces(value), headers_pieces(headers)
        return filled(text, parts, iter)
    texts = [
        _record_json(
            row,
            _bytes_json(row[2]),
            _bytes_json(row[3]),
            _headers_json(row[4]) if row[4] else "[]",
            beside,
        )
        for row in rows
    ]
    return (", ".join(texts),)


def _record_json(
    row: Row, key_text: str, value_text: str, headers_text: str, beside: Beside
) -> str:
    offset, timestamp, key, value, headers, control_type, crc_ok = row
    text = (
        f'{{"offset": {offset}, "timestamp": {timestamp}'
        f', "key": {key_text}, "value": {value_text}, "headers": {headers_text}'
    )
    if control_type is not None:
        text += f', "control_type": {_text(control_type)}'
    if not crc_ok:
        text += ', "crc_ok": false'
    return f"{text}{beside(key, value, headers)}}}"


def _headers_json(headers: Headers) -> str:
    texts = [f'{{"key": {_text(key)}, "value": {_bytes_json(value)}}}' for key, value in headers]
    return f"[{', '.join(texts)}]"


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
    """Yield a key or a value as JSON, in pieces of a bounded size."""
    if data is None or len(data) <= _BYTES_AT_ONCE:
        yield _bytes_json(data)
        return
    try:
        text = data.decode()
    except UnicodeDecodeError:
        yield '{"base64": "'
        for first in range(0, len(data), _BYTES_AT_ONCE):
            yield b2a_base64(data[first : first + _BYTES_AT_ONCE], newline=False).decode()
        yield '"}'
    else:
        yield from _text_pieces(text)


def _text_pieces(text: str) -> Iterator[str]:
    yield '"'
    for first in range(0, len(text), _BYTES_AT_ONCE):
        yield _text(text[first : first + _BYTES_AT_ONCE])[1:-1]
    yield '"'


_TRUTH = ("false", "true")


def _bytes_json(data: bytes | None) -> str:
    if data is None:
        return "null"
    try:
        return _text(data.decode())
    except UnicodeDecodeError:
        return f'{{"base64": {base64_json(data)}}}'


def encode_batch(
    records: Iterable[Record],
    *,
    base_offset: int | None = None,
    compression: str = "none",
    log_append_time: int | None = None,
    max_timestamp: int | None = None,
    last_offset: int | None = None,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    partition_leader_epoch: int = -1,
    transactional: bool = False,
    control: bool = False,
) -> bytes:
    """Write `records` as one batch of magic 2, with its checksum.

    Offsets of records are absolute, as `Record` has them; `base_offset` and `last_offset` are those
    of the first and last record unless given (compaction leaves them outside). `log_append_time`
    (milliseconds) makes the batch one that the broker stamped: what records say of time is then
    lost. Without records: an empty batch, as compaction leaves it.

    Raises:
        ValueError: an unknown codec, or a number that does not fit its field.
    """
    from crc32c import crc32c

    records = list(records)
    if base_offset is None:
        base_offset = records[0].offset if records else 0
    if last_offset is None:
        last_offset = records[-1].offset if records else base_offset
    times = [record.timestamp for record in records] or [NO_TIMESTAMP]
    if log_append_time is not None:
        max_timestamp = log_append_time
    elif max_timestamp is None:
        max_timestamp = max(times)
    attributes = _codec_bits(compression)
    attributes |= LOG_APPEND_TIME if log_append_time is not None else 0
    attributes |= TRANSACTIONAL if transactional else 0
    attributes |= CONTROL if control else 0
    body = bytearray()
    for record in records:
        _put_record(body, record, base_offset, times[0])
    payload = compress(compression, bytes(body))
    fields = (last_offset - base_offset, times[0], max_timestamp)
    producer = (producer_id, producer_epoch, base_sequence, len(records))
    try:
        checked = _CHECKED_HEADER.pack(attributes, *fields, *producer) + payload
        length = BATCH_HEADER.size - ENTRY_OVERHEAD + len(payload)
        unchecked = (base_offset, length, partition_leader_epoch, 2, crc32c(checked))
        return _UNCHECKED_HEADER.pack(*unchecked) + checked
    except struct.error as error:
        raise ValueError(f"a record batch cannot hold this: {error}") from None


def rebase(data: bytes, base_offset: int, *, partition_leader_epoch: int = -1) -> bytes:
    """Move the batches of magic 2 in `data` to `base_offset` and on, as a broker appends them.

    Offset and leader epoch are outside the checksum, so nothing else changes, also of what is
    compressed or damaged.

    Raises:
        ProtocolError: `data` is not whole batches of magic 2.
    """
    out = bytearray(data)
    whole = 0
    for start, end, magic in entries(data):
        if magic != 2:
            raise ProtocolError(
                f"messages of magic {magic} cannot be moved", offset=start, field="records"
            )
        _, delta = _SUMMARY_OFFSETS.unpack_from(data, start + 21)
        if delta < 0:
            raise ProtocolError(f"last offset delta {delta}", offset=start + 23, field="records")
        out[start : start + 8] = base_offset.to_bytes(8, "big", signed=True)
        out[start + 12 : start + 16] = partition_leader_epoch.to_bytes(4, "big", signed=True)
        base_offset += delta + 1
        whole = end
    if whole != len(data):
        raise ProtocolError(
            f"{len(data) - whole} bytes are no whole batch", offset=whole, field="records"
        )
    return bytes(out)


def end_transaction_marker(
    offset: int, timestamp: int, *, commit: bool, coordinator_epoch: int
) -> Record:
    """Make the record that ends a transaction, for `encode_batch(…, control=True)` (KIP-98)."""
    key = struct.pack(">hh", 0, int(commit))
    value = struct.pack(">hi", 0, coordinator_epoch)
    return Record(offset, timestamp, key, value, control_type=CONTROL_TYPES[int(commit)])


def _codec_bits(compression: str) -> int:
    if compression not in CODECS:
        raise ValueError(f"no such codec: {compression} (there are {', '.join(CODECS)})")
    return CODECS.index(compression)


def _put_record(out: bytearray, record: Record, base_offset: int, base_timestamp: int) -> None:
    body = bytearray(1)
    _put_varint(body, wrapped(record.timestamp - base_timestamp))
    _put_varint(body, wrapped(record.offset - base_offset))
    _put_bytes(body, record.key)
    _put_bytes(body, record.value)
    _put_varint(body, len(record.headers))
    for key, value in record.headers:
        _put_bytes(body, key.encode("utf-8", "surrogateescape"))
        _put_bytes(body, value)
    _put_varint(out, len(body))
    out += body


def _put_bytes(out: bytearray, data: bytes | None) -> None:
    _put_varint(out, -1 if data is None else len(data))
    out += data or b""


def _put_varint(out: bytearray, value: int) -> None:
    """Write a zig-zag varint of up to 64 bits."""
    value = (value << 1 ^ value >> 63) & 0xFFFFFFFFFFFFFFFF
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
