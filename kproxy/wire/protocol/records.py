"""The content of a `records` field: record batches and message sets.

    bytes ──batches──▶ Batch … ──.records──▶ Record …
    Record … ──encode_batch──▶ bytes (magic 2)

The layout and how one batch is read stand in `record_batch`. The last batch of a field may be cut
off by the broker; that is quiet, and counted (`Batches.bytes_left`). What is no batch hides none of
those before it, and is named (`Batches.damage`, as `Batch.damage` inside a batch). Nothing here
decompresses before it is asked for records, and nothing decompresses without a bound.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from kproxy.wire.protocol.compression import (
    CODECS,
    DECOMPRESSED_BYTES_MAX,
    RECORDS_MAX,
    Allowance,
    compress,
)
from kproxy.wire.protocol.errors import ProtocolError
from kproxy.wire.protocol.record_batch import (
    BATCH_HEADER,
    CONTROL,
    CONTROL_TYPES,
    ENTRY_OVERHEAD,
    LOG_APPEND_TIME,
    NO_TIMESTAMP,
    TRANSACTIONAL,
    Batch,
    Record,
    entries,
    read_header,
)
from kproxy.wire.protocol.record_fields import wrapped

_UNCHECKED_HEADER = struct.Struct(">qiibI")
_CHECKED_HEADER = struct.Struct(">hiqqqhii")
"""BATCH_HEADER in two: up to the checksum, and what the checksum covers."""
_JSON_RATIO = 64


class Batches(list[Batch]):
    """The batches of one `records` field."""

    bytes_left: int = 0
    """Bytes at the end that do not make a whole batch: brokers cut the last one off."""
    damage: ProtocolError | None = None
    """The reason why these bytes cannot be the beginning of a batch either."""

    def rest(self, data: bytes) -> bytes:
        """Return these bytes of the field `data`."""
        return data[len(data) - self.bytes_left :]


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
        delta = int.from_bytes(data[start + 23 : start + 27], "big", signed=True)
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
