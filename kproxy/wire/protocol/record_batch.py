"""One record batch (magic 2), or one message of the message sets before (magic 0 and 1).

    offset      0        8       12      16     17
    magic 2     baseOff  length  epoch   magic  crc32c attributes … count │ records
    magic 0, 1  offset   length  crc32   magic  attributes [timestamp] key value

    The records of magic 2 are compressed as one, after the header. In magic 0 and 1 a message
    wraps others: the value of a "wrapper message" is a compressed message set.

    bytes ──entries──▶ where they are ──read_header──▶ Batch ──.records──▶ Record …
                                                             └─.damage───▶ why there are no more

Every entry becomes a `Batch`; a message of magic 0 or 1 is a batch of one record, a wrapper message
of all that is in it. The facts are Kafka's: DefaultRecordBatch, DefaultRecord, LegacyRecord,
AbstractLegacyRecordBatch, ControlRecordType; KIP-32 (magic 1), KIP-98 (magic 2).

Invariants:

* Any bytes give values, up to a `ProtocolError`; its offset counts from the start of the field.
* Headers are read at once, records when asked for. Damage hides nothing that comes before it: the
  records are those that Java's reader gives before it throws, and the damage stands beside them.
  A wrong checksum is a property of the batch (`crc_ok`), not damage.
* Memory is bounded by the input: counts are held against the bytes that are there before anything
  is made. What is compressed is bounded by `Allowance` as well.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from functools import cache, cached_property, lru_cache
from itertools import islice, starmap
from typing import NamedTuple

import attrs

from kproxy.wire.protocol.compression import Allowance, AllowanceError, codec_name, decompress
from kproxy.wire.protocol.errors import ProtocolError
from kproxy.wire.protocol.record_fields import (
    RECORD_BYTES_MIN,
    Headers,
    Row,
    lengths_fit,
    read_rows,
    wrapped,
)
from kproxy.wire.protocol.wire import new_tuple

BATCH_HEADER = struct.Struct(">qiibIhiqqqhii")
"""Magic 2: base offset, length, leader epoch, magic, crc, attributes, last offset delta, base and
max timestamp, producer id and epoch, base sequence, record count; 61 bytes."""
_LENGTH = struct.Struct(">8xi")
_HEAD = struct.Struct(">q13xhi16xqhii")
"""Base offset, attributes, last offset delta, producer id and epoch, base sequence and record count
of BATCH_HEADER."""
_TIMES = struct.Struct(">q13xh4xqq14xi")
"""Base offset, attributes, base and max timestamp and record count of BATCH_HEADER."""
ENTRY_OVERHEAD = 12
"""The bytes of an entry that its length does not count: offset and length."""

NO_TIMESTAMP = -1
COMPRESSED = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20

CONTROL_TYPES = (
    "ABORT",
    "COMMIT",
    "LEADER_CHANGE",
    "SNAPSHOT_HEADER",
    "SNAPSHOT_FOOTER",
    "KRAFT_VERSION",
    "KRAFT_VOTERS",
)
"""Control records by the type in their key (ControlRecordType)."""

MESSAGE_HEADERS = (struct.Struct(">qiIbb"), struct.Struct(">qiIbbq"))
"""Magic 0 and 1: offset, length, crc, magic, attributes, in magic 1 the timestamp."""
_LENGTH_MIN = (14, 22, 49)
"""The least length by magic, as in ByteBufferLogInputStream."""


@attrs.frozen
class Record:
    """One record, at the offset and time that a consumer sees."""

    offset: int
    timestamp: int
    """Milliseconds since 1970; −1 where there is none (magic 0)."""
    key: bytes | None = None
    value: bytes | None = None
    """None is a tombstone."""
    headers: Headers = ()
    """In order, names may repeat; bytes that are not UTF-8 are kept as surrogates."""
    control_type: str | None = None
    """The type of a record in a control batch: one of CONTROL_TYPES, or "UNKNOWN_<n>"."""
    crc_ok: bool = True
    """False if this message of a message set has a checksum of its own, and it is wrong."""


RecordReader = Callable[["Batch"], tuple[list[Record], ProtocolError | None]]
"""Does what `read_records` does, with an allowance that it decides."""


def read_alone(batch: Batch) -> tuple[list[Record], ProtocolError | None]:
    """Read the records of a batch that is bounded alone."""
    return read_records(batch, Allowance())


@attrs.frozen(slots=False)  # made in half the time
class Batch:
    """One entry of a `records` field: its header as it is on the wire; records on demand.

    Fields that magic 0 and 1 lack hold Kafka's "none" value, −1.
    """

    raw: bytes = attrs.field(repr=False)
    """The whole entry, header included."""
    position: int
    """The offset of the entry in the field."""
    offset: int
    """The first eight bytes: the base offset; of a wrapper message the offset of the last."""
    magic: int
    crc: int
    """The checksum in the header."""
    attributes: int
    partition_leader_epoch: int = -1
    last_offset_delta: int = 0
    """After compaction it may be larger than the number of records less one."""
    base_timestamp: int = NO_TIMESTAMP
    """With attribute bit 6: the time at which the broker may drop the tombstones (KIP-534)."""
    max_timestamp: int = NO_TIMESTAMP
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    record_count: int | None = 1
    """The count in the header, unchecked; None for a wrapper message, which has none."""
    reader: RecordReader = attrs.field(default=read_alone, eq=False, repr=False)
    """Reads its records on first use."""

    @property
    def compression(self) -> str:
        """The codec: "none", "gzip", "snappy", "lz4", "zstd", or "unknown-5" to "unknown-7"."""
        return codec_name(self.attributes)

    @property
    def timestamp_type(self) -> str:
        """Kafka's name: "CreateTime", "LogAppendTime", and for magic 0 "NoTimestampType"."""
        if self.magic == 0:
            return "NoTimestampType"
        return "LogAppendTime" if self.attributes & LOG_APPEND_TIME else "CreateTime"

    @property
    def transactional(self) -> bool:
        """True if the batch is part of a transaction (KIP-98)."""
        return self.magic == 2 and bool(self.attributes & TRANSACTIONAL)

    @property
    def control(self) -> bool:
        """True if its records are markers that no application sees (KIP-98)."""
        return self.magic == 2 and bool(self.attributes & CONTROL)

    @property
    def wrapper(self) -> bool:
        """True for a message of magic 0 or 1 that holds a compressed message set."""
        return self.magic < 2 and bool(self.attributes & COMPRESSED)

    @cached_property
    def crc_computed(self) -> int:
        """The checksum of the actual bytes."""
        return crc_at(self.raw, 0, len(self.raw), self.magic)

    @property
    def crc_ok(self) -> bool:
        """True if the checksum in the header (`crc`) is that of the bytes (`crc_computed`)."""
        return self.crc == self.crc_computed

    @property
    def base_offset(self) -> int:
        """The offset of the first record; for a wrapper message, known only after decompressing.

        Raises:
            ProtocolError: the `damage` of a wrapper message that has no records.
        """
        if not self.wrapper:
            return self.offset
        if not self.records and self.damage is not None:
            raise self.damage
        return self.records[0].offset

    @property
    def last_offset(self) -> int:
        """The last offset that this batch takes up."""
        return self.offset + self.last_offset_delta

    @property
    def records(self) -> list[Record]:
        """The records, decompressed and read on first use; those before the `damage`, if any."""
        return self._read[0]

    @property
    def damage(self) -> ProtocolError | None:
        """The reason why the records after `records` cannot be read: bytes that are malformed, or
        go beyond what its reader grants. None: all have been read."""
        return self._read[1]

    @cached_property
    def _read(self) -> tuple[list[Record], ProtocolError | None]:
        return self.reader(self)


def crc_at(data: bytes, start: int, end: int, magic: int) -> int:
    """Compute the checksum of an entry in `data`: CRC-32C for magic 2, else CRC-32."""
    if magic < 2:
        return zlib.crc32(memoryview(data)[start + 16 : end])
    return _crc32c()(memoryview(data)[start + 21 : end])


@cache
def _crc32c() -> Callable[[memoryview], int]:
    from crc32c import crc32c

    return crc32c


def entries(data: bytes, position: int = 0) -> Iterator[tuple[int, int, int]]:
    """Walk the entries of `data` from a position: start, end, magic. End quietly at one that is cut
    off.

    Raises:
        ProtocolError: a length that no entry can have, or an unknown magic byte.
    """
    total = len(data)
    while total - position >= ENTRY_OVERHEAD:
        (length,) = _LENGTH.unpack_from(data, position)
        if length < _LENGTH_MIN[0]:
            raise ProtocolError(f"batch length {length}", offset=position + 8, field="records")
        if total - position <= 16:
            return
        magic = data[position + 16]
        if magic > 2:
            raise ProtocolError(f"unknown magic {magic}", offset=position + 16, field="records")
        if length < _LENGTH_MIN[magic]:
            raise ProtocolError(
                f"batch length {length} for magic {magic}", offset=position + 8, field="records"
            )
        end = position + ENTRY_OVERHEAD + length
        if end > total:
            return
        yield position, end, magic
        position = end


class Head(NamedTuple):
    """The place of an entry in a `records` field, and the facts in its header about its content."""

    start: int
    end: int
    magic: int
    offset: int
    last_offset: int
    record_count: int | None
    """See `Batch`, also for the other fields."""
    control: bool
    producer: tuple[int, int, int]
    """Producer id, producer epoch, base sequence."""


_NO_PRODUCER = -1, -1, -1


class Heads(list[Head]):
    """The heads in one `records` field."""

    damage: ProtocolError | None = None
    """The reason why nothing behind them can be read."""


@lru_cache(maxsize=16)  # several look at those of an exchange
def read_heads(data: bytes) -> Heads:
    """Read the heads of all whole entries in `data`, up to what is none: a fraction of the work of
    `read_header`. They are shared: nobody changes them."""
    heads = Heads()
    try:
        for start, end, magic in entries(data):
            if magic == 2:
                offset, attributes, delta, *producer, count = _HEAD.unpack_from(data, start)
                control = attributes & CONTROL != 0
                found = start, end, 2, offset, offset + delta, count, control, tuple(producer)
            else:
                offset = int.from_bytes(data[start : start + 8], "big", signed=True)
                count = None if data[start + 17] & 7 else 1
                found = start, end, magic, offset, offset, count, False, _NO_PRODUCER
            heads.append(new_tuple(Head, found))
    except ProtocolError as error:
        heads.damage = error
    return heads


def read_header(
    data: bytes, start: int, end: int, magic: int, reader: RecordReader = read_alone
) -> Batch:
    """Read the header of an entry that `entries` has found in `data`; this cannot fail."""
    raw = data[start:end]
    if magic == 2:
        head = BATCH_HEADER.unpack_from(raw)
        offset, _, epoch, _, crc, attributes, *rest = head
        return Batch(raw, start, offset, 2, crc, attributes, epoch, *rest, reader=reader)
    offset, _, crc, _, attributes, *timestamp = MESSAGE_HEADERS[magic].unpack_from(raw)
    time = timestamp[0] if timestamp else NO_TIMESTAMP
    return Batch(
        raw,
        start,
        offset,
        magic,
        crc,
        attributes,
        base_timestamp=time,
        max_timestamp=time,
        record_count=None if attributes & 7 else 1,
        reader=reader,
    )


def damage_at_a_glance(
    data: bytes, head: Head, allowance: Allowance
) -> tuple[int, ProtocolError] | None:
    """Look for damage in an entry by the lengths of its records alone: a fraction of the work of
    reading them. Return the number of records before it, and the damage; None: there is none to be
    seen, or the allowance does not suffice."""
    start, end, magic, _, _, count, *_ = head
    attributes = data[start + 22 if magic == 2 else start + 17]
    again = attrs.evolve(allowance)
    if not attributes & COMPRESSED and (magic < 2 or not count):
        return None
    try:
        if magic < 2:
            message = read_header(data, start, end, magic)
            decompress(message.compression, _message_content(message)[1] or b"", allowance)
        elif count is not None and count > 0:
            body = start + BATCH_HEADER.size
            plain, position, stop, what = content(data, body, end, attributes, count, allowance)
            if not what and lengths_fit(plain, position, stop, count):
                return None
    except AllowanceError:
        return None
    except ProtocolError:
        pass
    rows, damage = rows_at(data, start, end, magic, start, again)
    allowance.records_left = min(allowance.records_left, again.records_left)
    return None if damage is None or again.exceeded else (len(rows), damage)


def read_records(batch: Batch, allowance: Allowance) -> tuple[list[Record], ProtocolError | None]:
    """Decompress and read the records of `batch`, taking what that costs from `allowance`.

    Return the records before any damage, and the damage: malformed bytes, or an allowance that does
    not suffice; None if there is none.
    """
    raw = batch.raw
    rows, damage = rows_at(raw, 0, len(raw), batch.magic, batch.position, allowance)
    return list(starmap(Record, rows)), damage


def rows_at(
    data: bytes, start: int, end: int, magic: int, position: int, allowance: Allowance
) -> tuple[list[Row], ProtocolError | None]:
    """Do what `read_records` does for an entry that lies somewhere in `data`, without objects: it
    takes three quarters of the time. The damage tells the position of the entry in the field."""
    rows: list[Row] = []
    try:
        if magic == 2:
            rows, what = _read_batch(data, start, end, allowance)
        else:
            message = read_header(data, start, end, magic)
            if message.wrapper:
                rows, what = _read_wrapper(message, allowance)
            else:
                rows, what = [_message(message, message.offset, message.base_timestamp)], ""
    except ProtocolError as error:
        what = error.what
    return rows, ProtocolError(what, offset=position, field="records") if what else None


def _read_wrapper(wrapper: Batch, allowance: Allowance) -> tuple[list[Row], str]:
    """Read the message set inside a wrapper message; wrappers in wrappers are refused.

    Offsets inside are absolute in magic 0 and count from the first in magic 1, where the wrapper
    has that of the last (KIP-31); producers may leave the wrapper's at 0. Java's reader looks over
    all of the set first, and gives nothing of one that is damaged; only where it is cut off, it
    gives the messages before, and says nothing: that they are cut off is damage here.

    Raises:
        ProtocolError: the set is damaged.
    """
    value = _message_content(wrapper)[1]
    if value is None:
        raise ProtocolError("a wrapper message without a value")
    data, damage = decompress(
        wrapper.compression, value, allowance, lz4_checksum_ignored=wrapper.magic == 0
    )
    if damage:
        raise ProtocolError(damage)
    spans = list(islice(_messages(data), allowance.records_left + 1))
    allowance.take_records(len(spans))
    if not spans:
        raise ProtocolError("a wrapper message without a message inside")
    base = 0
    if wrapper.magic == 1 and wrapper.offset:
        last = spans[-1][0]
        base = wrapper.offset - int.from_bytes(data[last : last + 8], "big", signed=True)
        if base < 0:
            raise ProtocolError(f"a wrapper message of offset {wrapper.offset}, {-base} too low")
    appended = wrapper.timestamp_type == "LogAppendTime"
    rows: list[Row] = []
    for start, end in spans:
        magic = data[start + 16]
        if magic > 1 or end - start < ENTRY_OVERHEAD + _LENGTH_MIN[magic]:
            what = f"a message of magic {magic} and {end - start} bytes inside a wrapper message"
            return rows, what
        inner = read_header(data, start, end, magic)
        if inner.wrapper:
            return rows, "a compressed message inside a wrapper message"
        time = wrapper.base_timestamp if appended and magic else inner.base_timestamp
        try:
            rows.append(_message(inner, wrapped(base + inner.offset), time))
        except ProtocolError as error:
            return rows, error.what
    cut = spans[-1][1] != len(data)
    return rows, "the messages inside end in the middle of one" if cut else ""


def _messages(data: bytes) -> Iterator[tuple[int, int]]:
    """Walk the messages of magic 0 and 1 in `data`: start, end. End quietly at one that is cut off.

    Raises:
        ProtocolError: a length that no message can have.
    """
    position = 0
    while len(data) - position >= ENTRY_OVERHEAD:
        (length,) = _LENGTH.unpack_from(data, position)
        if length < _LENGTH_MIN[0]:
            raise ProtocolError(f"message length {length} inside a wrapper message")
        end = position + ENTRY_OVERHEAD + length
        if end > len(data):
            return
        yield position, end
        position = end


def _message(message: Batch, offset: int, timestamp: int) -> Row:
    key, value = _message_content(message)
    return offset, timestamp, key, value, (), None, message.crc_ok


def _message_content(message: Batch) -> tuple[bytes | None, bytes | None]:
    """Read key and value of a message of magic 0 or 1; bytes behind them are passed over."""
    raw = message.raw
    position = MESSAGE_HEADERS[message.magic].size
    fields: list[bytes | None] = []
    for name in ("key", "value"):
        start = position + 4
        length = int.from_bytes(raw[position:start], "big", signed=True)
        position = start + max(0, length)
        if start > len(raw) or position > len(raw):
            raise ProtocolError(f"the {name} of a message is longer than the message")
        fields.append(None if length < 0 else raw[start:position])
    return fields[0], fields[1]


def _read_batch(data: bytes, start: int, end: int, allowance: Allowance) -> tuple[list[Row], str]:
    """Read the records of a batch of magic 2."""
    offset, attributes, base_timestamp, max_timestamp, count = _TIMES.unpack_from(data, start)
    data, position, stop, damage = content(
        data, start + BATCH_HEADER.size, end, attributes, count, allowance
    )
    of_headers = allowance if attributes & COMPRESSED else None
    rows: list[Row] = []
    if count:
        base = offset, base_timestamp
        rows, damage = read_rows(data, position, stop, count, *base, damage, of_headers)
    if attributes & LOG_APPEND_TIME:
        rows = [(row[0], max_timestamp, *row[2:]) for row in rows]
    if attributes & CONTROL:
        rows = [(*row[:5], _control_type(row[2]), True) for row in rows]
    return rows, damage


def content(
    data: bytes, start: int, stop: int, attributes: int, count: int, allowance: Allowance
) -> tuple[bytes, int, int, str]:
    """Return the decompressed bytes of the `count` records of magic 2 that lie behind a header,
    with their start and end in these bytes, and the damage in words after which there are no more.
    Nothing is decompressed for a count of 0.

    Raises:
        ProtocolError: the count is negative, or the allowance does not suffice.
    """
    if count < 0:
        raise ProtocolError(f"a batch of {count} records")
    damage = ""
    if count and attributes & COMPRESSED:
        data, damage = decompress(codec_name(attributes), data[start:stop], allowance)
        start, stop = 0, len(data)
        allowance.take_records(min(count, stop // RECORD_BYTES_MIN))
    return data, start, stop, damage


def _control_type(key: bytes | None) -> str:
    """Return the type of a control record by its key: int16 version, int16 type."""
    if key is None or len(key) < 4:
        return "UNKNOWN"
    code = int.from_bytes(key[2:4], "big", signed=True)
    return CONTROL_TYPES[code] if 0 <= code < len(CONTROL_TYPES) else f"UNKNOWN_{code}"
