"""The records of magic 2, read out of the decompressed bytes of one batch.

    length │ attributes │ time delta │ offset delta │ key length, key │ value … │ headers

Numbers are zig-zag varints; lengths count bytes, and any negative one means null, as in Kafka. The
facts are Kafka's: DefaultRecord.

Invariants: any bytes give the records before the damage, and the damage in words; no field goes
beyond its record. Memory is bounded by the input.
"""

from __future__ import annotations

from collections.abc import Callable

from kproxy.wire.protocol.compression import Allowance
from kproxy.wire.protocol.errors import ProtocolError

RECORD_BYTES_MIN = 7
"""Length, attributes, two deltas, null key, null value, no headers: one byte each."""

Headers = tuple[tuple[str, bytes | None], ...]


Row = tuple[int, int, bytes | None, bytes | None, Headers, str | None, bool]
"""The fields of a `record_batch.Record`, in order; of a control record still without its type."""


def read_rows(
    data: bytes,
    position: int,
    stop: int,
    count: int,
    base_offset: int,
    base_timestamp: int,
    damage: str = "",
    allowance: Allowance | None = None,
) -> tuple[list[Row], str]:
    """Read the `count` records of magic 2 that `data`, decompressed, has from `position` to `stop`.

    Return the records before any damage, with the timestamps of their producer, and the damage in
    words; "" if there is none. `damage` is what follows `stop`, if bytes are missing there. A last
    record that is followed by damage, or by bytes that should not be there, is left out, as Java's
    reader does. Headers are taken from `allowance`; None: the bytes were not compressed.
    """
    rows: list[Row] = []
    base = base_offset, base_timestamp
    try:
        position = _read(data, position, stop, count, rows.append, *base, allowance)
        if position != stop:
            damage = f"{stop - position} bytes after the last record"
        if damage:
            del rows[-1:]
    except ProtocolError as error:
        damage = damage or f"record {len(rows) + 1} of {count}: {error.what}"
    except IndexError:
        damage = damage or f"{count} records that end in the middle of record {len(rows) + 1}"
    return rows, damage


def wrapped(number: int) -> int:
    """Return the 64 bits that a sum in Java leaves of a number."""
    return (number + (1 << 63) & (1 << 64) - 1) - (1 << 63)


def _read(
    data: bytes,
    position: int,
    stop: int,
    count: int,
    take: Callable[[Row], None],
    base_offset: int,
    base_timestamp: int,
    allowance: Allowance | None,
) -> int:
    """Read the records, and return the end of the last one.

    The lengths of a byte or two, which most records have, are read in place: this decides how fast
    records are read, for a call takes longer than all the rest of a field.

    Raises:
        ProtocolError, IndexError: the bytes are malformed.
    """
    p = position
    for _ in range(count):
        if p >= stop:
            raise IndexError
        n = data[p]
        p += 1
        if n > 127:
            n, p = (n + (data[p] << 7) - 128, p + 1) if data[p] < 128 else varint(data, p - 1)
        start, end = p, p + (n >> 1)
        if n & 1 or n < 2 * RECORD_BYTES_MIN - 2 or end > stop:
            raise ProtocolError(f"record length {_signed(n)}")
        n = data[p + 1]  # behind one byte of attributes, all unused so far
        p += 2
        if n > 127:
            n, p = (n + (data[p] << 7) - 128, p + 1) if data[p] < 128 else varint(data, p - 1, 10)
        timestamp = base_timestamp + (n >> 1 ^ -(n & 1))
        n = data[p]
        p += 1
        if n > 127:
            n, p = (n + (data[p] << 7) - 128, p + 1) if data[p] < 128 else varint(data, p - 1)
        offset = base_offset + (n >> 1 ^ -(n & 1))
        n = data[p]
        p += 1
        if n > 127:
            n, p = (n + (data[p] << 7) - 128, p + 1) if data[p] < 128 else varint(data, p - 1)
        if n & 1:
            key = None
        else:
            key = data[p : (p := p + (n >> 1))]
            if p > end:
                raise _too_long(n, end - p)
        n = data[p]
        p += 1
        if n > 127:
            n, p = (n + (data[p] << 7) - 128, p + 1) if data[p] < 128 else varint(data, p - 1)
        if n & 1:
            value = None
        else:
            value = data[p : (p := p + (n >> 1))]
            if p > end:
                raise _too_long(n, end - p)
        headers, p = _headers(data, p, end, allowance) if data[p] else ((), p + 1)
        if p != end:
            raise ProtocolError(f"a record of {end - start} bytes whose fields take {p - start}")
        if not (-1 << 63 <= offset < 1 << 63 and -1 << 63 <= timestamp < 1 << 63):
            offset, timestamp = wrapped(offset), wrapped(timestamp)
        take((offset, timestamp, key, value, headers, None, True))
    return p


def lengths_fit(data: bytes, position: int, stop: int, count: int) -> bool:
    """Return whether `count` records, by their lengths alone, end at `stop`."""
    p = position
    try:
        for _ in range(count):
            if p >= stop:
                return False
            n = data[p]
            if n < 128:
                p += 1 + (n >> 1)
            elif (high := data[p + 1]) < 128:
                p += 2 + ((n + (high << 7) - 128) >> 1)
            else:
                n, p = varint(data, p)
                p += n >> 1
    except (ProtocolError, IndexError):
        return False
    return p == stop


def _headers(
    data: bytes, position: int, end: int, allowance: Allowance | None
) -> tuple[Headers, int]:
    n, position = data[position], position + 1
    if n > 127:
        n, position = varint(data, position - 1)
    if n & 1 or n >> 1 > (end - position) // 2:
        raise ProtocolError(
            f"a record of {_signed(n)} headers with {end - position} bytes for them"
        )
    if allowance is not None:
        allowance.take_records(n >> 1, "headers")
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(n >> 1):
        key, position = _bytes(data, position, end)
        if key is None:
            raise ProtocolError("a record header without a name")
        value, position = _bytes(data, position, end)
        headers.append((key.decode("utf-8", "surrogateescape"), value))
    return tuple(headers), position


def _bytes(data: bytes, position: int, end: int) -> tuple[bytes | None, int]:
    """Read bytes behind a varint length, where any negative one is null as in Kafka."""
    n, start = data[position], position + 1
    if n > 127:
        n, start = varint(data, position)
    if n & 1:
        return None, start
    position = start + (n >> 1)
    if position > end:
        raise _too_long(n, end - position)
    return data[start:position], position


def varint(data: bytes, position: int, bytes_max: int = 5) -> tuple[int, int]:
    """Read a varint of 32 bits, or with `bytes_max=10` of 64; `_signed` undoes its zig-zag."""
    value = shift = 0
    for at in range(position, position + bytes_max):
        byte = data[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & (0xFFFFFFFF if bytes_max == 5 else 0xFFFFFFFFFFFFFFFF), at + 1
        shift += 7
    raise ProtocolError(f"a varint of more than {bytes_max} bytes")


def _too_long(n: int, bytes_left: int) -> ProtocolError:
    size = n >> 1
    return ProtocolError(f"{size} bytes in a record that has {max(0, size + bytes_left)} left")


def _signed(n: int) -> int:
    return n >> 1 ^ -(n & 1)
