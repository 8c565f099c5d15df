"""One batch at a time: its rarer forms, and hostile bytes: the values before the damage."""

from __future__ import annotations

import contextlib
import json
import random
import re
import struct
import time
import tracemalloc
import zlib
from collections.abc import Callable

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from kproxy.wire.protocol.compression import CODECS, RECORDS_MAX, Allowance, compress
from kproxy.wire.protocol.errors import ProtocolError
from kproxy.wire.protocol.message_sets import encode_message_set
from kproxy.wire.protocol.record_batch import read_records
from kproxy.wire.protocol.record_json import json_pieces
from kproxy.wire.protocol.records import (
    Record,
    batches,
    encode_batch,
    rebase,
)
from tests.versions import some
from tests.wire.protocol.making import records_plain

MIB = 1 << 20
NOW = 1_700_000_000_000
RECORDS = [Record(i, NOW + i, b"k%d" % i, b"value " * i, (("h", b"x"),)) for i in range(4)]
MAKERS: dict[str, Callable[[], bytes]] = {
    f"{magic}-{codec}": (
        (lambda codec=codec: encode_batch(RECORDS, compression=codec))
        if magic == 2
        else lambda magic=magic, codec=codec: encode_message_set(
            RECORDS, magic=magic, compression=codec
        )
    )
    for magic in (0, 1, 2)
    for codec in CODECS
}

NEWEST = [name for name in MAKERS if name.startswith("2")]


def total(data: bytes) -> None:
    """Do everything that can be done with `data`; nothing may come of it but records, and one line
    that names the damage."""
    with contextlib.suppress(ProtocolError):
        rebase(data, 5)
    found = batches(data)
    assert 0 <= found.bytes_left <= len(data)
    shown = json.loads("".join(json_pieces(data, Allowance())))
    if found.damage is not None:
        assert found.damage.offset is not None
        assert len(data) - found.bytes_left <= found.damage.offset < len(data)
        assert shown.pop()["error"] == str(found.damage)
    assert shown == records_plain(found)
    for batch, plain in zip(found, shown, strict=True):
        assert len(batch.records) == len(plain["records"] or ())
        assert plain.get("error") == (None if batch.damage is None else str(batch.damage))
        if batch.records:
            assert batch.base_offset == plain["base_offset"]


def is_sound(data: bytes) -> bool:
    """Whether all of it is read, and every checksum is right."""
    found = batches(data)
    if found.damage is not None or any(batch.damage is not None for batch in found):
        return False
    if not all(batch.crc_ok for batch in found):
        return False
    inner = [record for batch in found for record in batch.records]
    return not found.bytes_left and all(each.crc_ok for each in inner)


def batch_of(body: bytes, count: int, attributes: int = 0) -> bytes:
    """Make a batch of magic 2 around any body."""
    no_producer = (-1, -1, -1)
    checked = struct.pack(">hiqqqhii", attributes, 0, 0, 0, *no_producer, count) + body
    return struct.pack(">qiibI", 0, 9 + len(checked), 0, 2, crc32c(checked)) + checked


def wrapper_of(content: bytes | None, magic: int = 1, codec: str = "gzip") -> bytes:
    """Make a wrapper message around any content."""
    value = None if content is None else compress(codec, content)
    data = bytearray(encode_message_set([Record(9, NOW, None, value)], magic=magic))
    data[17] |= CODECS.index(codec)
    data[12:16] = zlib.crc32(data[16:]).to_bytes(4, "big")
    return bytes(data)


@pytest.mark.parametrize(
    ("key", "name"),
    [
        (b"\0\0\0\0", "ABORT"),
        (b"\0\0\0\2", "LEADER_CHANGE"),
        (b"\0\0\0\3", "SNAPSHOT_HEADER"),
        (b"\0\0\0\4", "SNAPSHOT_FOOTER"),
        (b"\0\0\0\5", "KRAFT_VERSION"),
        (b"\0\0\0\6", "KRAFT_VOTERS"),
        (b"\0\0\0\7", "UNKNOWN_7"),
        (b"\0\0\xff\xff", "UNKNOWN_-1"),
        (b"\0\0", "UNKNOWN"),
        (None, "UNKNOWN"),
    ],
)
def test_control_types(key, name):
    (batch,) = batches(encode_batch([Record(5, NOW, key, b"")], control=True))
    assert batch.records[0].control_type == name
    assert records_plain(batch)["records"][0]["control_type"] == name


def test_offsets_after_compaction():
    records = [Record(12, NOW, b"a"), Record(17, NOW + 5, b"b")]
    (batch,) = batches(encode_batch(records, base_offset=10, last_offset=19))
    assert (batch.base_offset, batch.last_offset, batch.last_offset_delta) == (10, 19, 9)
    assert [record.offset for record in batch.records] == [12, 17]


def test_the_broker_s_time_on_a_wrapper_counts_for_what_is_inside():
    """The broker stamps the wrapper only (KIP-32)."""
    data = bytearray(encode_message_set(RECORDS, magic=1, compression="gzip"))
    data[17] |= 0x08
    data[18:26] = struct.pack(">q", NOW + 77)
    (batch,) = batches(bytes(data))
    assert {record.timestamp for record in batch.records} == {NOW + 77}


def test_a_producer_may_leave_the_wrapper_s_offset_at_zero():
    """Then the offsets inside count (some versions of librdkafka do so)."""
    data = bytes(8) + encode_message_set(RECORDS, magic=1, compression="gzip")[8:]
    assert [record.offset for record in batches(data)[0].records] == [0, 1, 2, 3]


def test_a_wrong_checksum_inside_a_wrapper_is_named():
    inner = bytearray(encode_message_set(RECORDS, magic=1))
    inner[12] ^= 1
    outer = bytearray(
        encode_message_set([Record(102, NOW, None, compress("gzip", bytes(inner)))], magic=1)
    )
    outer[17] |= 1
    assert [record.crc_ok for record in batches(bytes(outer))[0].records] == [
        False,
        True,
        True,
        True,
    ]
    assert [
        record.get("crc_ok") for record in records_plain(batches(bytes(outer))[0])["records"]
    ] == [
        False,
        None,
        None,
        None,
    ]


@pytest.mark.parametrize("name", MAKERS)
def test_every_truncation(name):
    """Cut off by the broker, and cut short with a length that hides it."""
    data = MAKERS[name]()
    ends = [batch.position + len(batch.raw) for batch in batches(data)]
    assert ends[-1] == len(data)
    for size in range(len(data)):
        total(data[:size])
        whole = [end for end in ends if end <= size]
        found = batches(data[:size])
        assert len(found) == len(whole)
        assert found.bytes_left == size - max(whole, default=0)
        if size > 12:
            shorter = data[:8] + (size - 12).to_bytes(4, "big") + data[12:size]
            total(shorter)
            assert is_sound(shorter) == (size in ends[:1])


@pytest.mark.parametrize("name", some(list(MAKERS), ["0-gzip", "1-lz4", *NEWEST]))
def test_every_bit_flipped(name):
    """Where a checksum covers it, it is said."""
    data = MAKERS[name]()
    assert is_sound(data)
    unchecked = 17 if name.startswith("2") else 12
    checked = [(each.position + unchecked, each.position + len(each.raw)) for each in batches(data)]
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        total(bytes(damaged))
        if any(first <= bit // 8 < end for first, end in checked):
            assert not is_sound(bytes(damaged))


@given(st.binary(max_size=400))
def test_random_bytes(noise):
    total(noise)
    for magic in (0, 1, 2):
        total(bytes(8) + len(noise).to_bytes(4, "big") + bytes(4) + bytes([magic]) + noise)
    for codec in range(8):
        total(batch_of(noise, len(noise) // 7, codec))
    total(wrapper_of(noise))


@given(st.lists(st.binary(min_size=6, max_size=30), max_size=9), st.integers(-1, 12))
def test_random_records(bodies, count):
    """Records whose length is right, so that what is inside is reached."""
    body = b"".join(bytes([2 * len(record)]) + record for record in bodies)
    for codec in CODECS:
        total(batch_of(compress(codec, body), count, CODECS.index(codec)))


GOOD = b"\x0c\0\0\0\1\1\0"
OLD = encode_message_set(RECORDS, magic=1)
REASONS = [
    (batch_of(b"", 1), "1 records that end in the middle of record 1", 0),
    (batch_of(b"", -1), "-1 records", 0),
    (batch_of(GOOD * 3, 2**31 - 1), "2147483647 records that end .* of record 4", 3),
    (batch_of(compress("gzip", GOOD * 3), 4, 1), "4 records that end in the middle of record 4", 3),
    (batch_of(compress("gzip", GOOD * 3)[:-1], 3, 1), "gzip: the checksum or the length", 2),
    (batch_of(GOOD * 3, 2), "7 bytes after the last record", 1),
    (batch_of(b"\x0c\0\0\0\1\1\0" + b"x", 1), "1 bytes after the last record"),
    (batch_of(b"\x0e\0\0\0\1\1\0" + b"x", 1), "fields take 6"),
    (batch_of(b"\x0a\0\0\0\1\1\0", 1), "record length 5"),
    (batch_of(b"\xfe\xff\xff\xff\x0f\0\0", 1), "record length 2147483647"),
    (batch_of(b"\xff" * 14, 1), "varint of more than 5"),
    (batch_of(b"\x0c\0\0\0\x02\1\0", 1), "1 records that end in the middle"),
    (batch_of(b"\x0c\0\0\0\x7e\1\0", 1), "63 bytes in a record"),
    (batch_of(b"\x0c\0\0\0\1\x0a\0", 1), "5 bytes in a record"),
    (batch_of(b"\x0c\0\0\0\1\1\1", 1), "-1 headers"),
    (batch_of(b"\x0e\0\0\0\1\1\xfe\x01", 1), "127 headers with 0 bytes"),
    (batch_of(b"\x10\0\0\0\1\1\2\1\1", 1), "header without a name"),
    (batch_of(b"\x10\0\0\0\1\1\2\0\4", 1), "2 bytes in a record"),
    (batch_of(GOOD * 2 + b"\x0c\0\0\0\1\x0a\0", 3), "record 3 of 3: 5 bytes in a record", 2),
    (batch_of(b"x", 1, 5), "unknown-5", 0),
    (wrapper_of(None), "without a value", 0),
    (wrapper_of(b""), "without a message inside", 0),
    (wrapper_of(OLD[:-1]), "end in the middle of one", 3),
    (wrapper_of(OLD + bytes(11)), "end in the middle of one", 4),
    (wrapper_of(OLD + bytes(12)), "message length 0 inside", 0),
    (wrapper_of(encode_batch(RECORDS)), "magic 2 .* inside a wrapper", 0),
    (wrapper_of(OLD + wrapper_of(OLD)), "compressed message inside", 4),
]


@pytest.mark.parametrize(
    ("data", "reason", "before"),
    [(*each, 0)[:3] for each in REASONS],
    ids=[each[1] for each in REASONS],
)
def test_reasons(data, reason, before):
    """One line each that says what is wrong; the header and the records before are there all the
    same, and so are the batches around."""
    whole = encode_batch(RECORDS)
    first, batch, last = batches(whole + data + whole)
    assert batch.crc_ok
    assert re.search(f"^records at offset {len(whole)}: .*{reason}", str(batch.damage))
    assert len(batch.records) == before
    assert len(records_plain(batch)["records"] or ()) == before
    assert first.records == last.records == RECORDS


@pytest.mark.parametrize("attributes", range(8))
@pytest.mark.parametrize("payload", [b"", b"x"])
def test_an_empty_batch_is_not_decompressed(payload, attributes):
    (batch,) = batches(batch_of(payload, 0, attributes))
    assert (batch.records, batch.damage) == ([], None)
    assert records_plain(batch)["records"] == []


def test_times_and_offsets_wrap_as_in_java():
    end = 2**63 - 1
    late = encode_batch([Record(0, end), Record(1, -(2**63) + 4)], max_timestamp=end)
    assert [each.timestamp for each in batches(late)[0].records] == [end, -(2**63) + 4]
    last = rebase(encode_batch(RECORDS[:2]), end)
    assert [each.offset for each in batches(last)[0].records] == [end, -(2**63)]


def test_a_message_of_magic_0_in_a_wrapper_of_magic_1_has_no_time():
    data = wrapper_of(encode_message_set(RECORDS, magic=0))
    (batch,) = batches(data)
    assert batch.damage is None
    assert [each.timestamp for each in batch.records] == [-1] * 4


@pytest.mark.parametrize(
    ("data", "reason", "offset"),
    [
        (bytes(8) + b"\xff\xff\xff\xff" + bytes(90), "batch length -1", 8),
        (bytes(8) + b"\0\0\0\x0d" + bytes(90), "batch length 13", 8),
        (bytes(8) + b"\0\0\0\x15" + bytes(4) + b"\1" + bytes(90), "batch length 21 .*magic 1", 8),
        (bytes(8) + b"\0\0\0\x30" + bytes(4) + b"\2" + bytes(90), "batch length 48 .*magic 2", 8),
        (bytes(8) + b"\x7f\xff\xff\xff" + bytes(4) + b"\3", "unknown magic 3", 16),
    ],
)
def test_what_is_no_batch(data, reason, offset):
    good = encode_batch(RECORDS)
    found = batches(good + data)
    assert [each.records for each in found] == [RECORDS]
    assert found.damage is not None
    assert re.match(reason, found.damage.what)
    assert found.damage.offset == len(good) + offset
    assert found.rest(good + data) == data
    assert batches(good + data)[:1] == batches(good)


def test_wrappers_in_wrappers_do_not_multiply():
    """Twenty layers; each is small, the one inside is refused before it is opened."""
    data = encode_message_set(RECORDS, magic=1)
    for _ in range(20):
        data = wrapper_of(data)
    assert "inside a wrapper" in str(batches(data)[0].damage)


def test_compressed_records_are_counted():
    """A kilobyte that would become more than a million records is refused."""
    body = b"\x0c\0\0\0\1\1\0" * (RECORDS_MAX + 1)
    many = batch_of(compress("zstd", body), RECORDS_MAX + 1, CODECS.index("zstd"))
    assert len(many) < 2000
    assert "1000001 records" in str(batches(many)[0].damage)
    inner = encode_message_set([Record(0, -1)], magic=0) * 5
    found, damage = read_records(batches(wrapper_of(inner, magic=0))[0], Allowance(records_left=4))
    assert not found
    assert "5 records" in str(damage)


DENSE = {
    "records": lambda n: batch_of(b"\x0c\0\0\0\1\1\0" * n, n),
    "headers": lambda n: batch_of(
        _varint(5 + 3 + 2 * n) + b"\0\0\0\1\1" + _varint(n) + bytes(2 * n), 1
    ),
    "messages": lambda n: encode_message_set([Record(0, -1)], magic=0) * n,
    "empty batches": lambda n: batch_of(b"", 0) * n,
    "hollow batches": lambda n: batch_of(b"", 2**31 - 1) * n,
    "hollow wrappers": lambda n: wrapper_of(b"", codec="snappy") * n,
    "noise": lambda n: batch_of(random.Random(3).randbytes(9 * n), n),
}


def _varint(value: int) -> bytes:
    value <<= 1
    return bytes([value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14])


@pytest.mark.parametrize("kind", DENSE)
def test_memory_is_at_most_200_times_the_input(kind):
    data = DENSE[kind](1500)
    total(DENSE[kind](3))
    tracemalloc.start()
    try:
        found = batches(data)
        records_plain(found)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= 200 * len(data) + MIB


@pytest.mark.parametrize("kind", DENSE)
def test_time_is_linear(kind):
    """Sixteen times the input may take 64 times the time on a busy machine, but never 256."""

    def seconds(count: int) -> float:
        data = DENSE[kind](count)
        best = float("inf")
        for _ in range(2):
            start = time.process_time()
            records_plain(batches(data))
            best = min(best, time.process_time() - start)
        return best

    assert seconds(2000) <= 64 * seconds(125) + 0.005
