"""Compression: what others write is read, what we write others read, and nothing is a bomb."""

from __future__ import annotations

import gzip
import importlib
import random
import subprocess
import sys
import tracemalloc
import zlib
from collections.abc import Callable

import cramjam
import lz4.frame
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from kproxy.wire.protocol.compression import (
    CODECS,
    DECOMPRESSED_BYTES_MAX,
    Allowance,
    codec_name,
    compress,
    decompress,
)
from kproxy.wire.protocol.errors import ProtocolError

MIB = 1 << 20
COMPRESSED = CODECS[1:]
TEXT = b"the quick brown fox jumps over the lazy dog " * 3000
"""Larger than the first buffer, the blocks of snappy and the blocks of lz4."""
RANDOM = random.Random(1).randbytes(200_000)


def zstd_streamed(data: bytes) -> bytes:
    """Compress as Java does: without the size of the content."""
    return zstandard.ZstdCompressor(write_content_size=False).compress(data)


def theirs(name: str) -> Callable[..., bytes]:
    """A function of kafka-python, which takes its time to be imported."""

    def call(data: bytes, **more: bool) -> bytes:
        return getattr(importlib.import_module("kafka.codec"), name)(data, **more)

    return call


SNAPPY_DECODE = theirs("snappy_decode")

# What several implementations make of the same bytes; all of it must be read.
FOREIGN = {
    "gzip": [
        gzip.compress,
        theirs("gzip_encode"),
        # Members one after the other are one stream (RFC 1952); Java reads them.
        lambda data: gzip.compress(data[:50]) + gzip.compress(data[50:]),
    ],
    "snappy": [
        theirs("snappy_encode"),
        lambda data: theirs("snappy_encode")(data, xerial_compatible=False),
        lambda data: bytes(cramjam.snappy.compress_raw(data)),
    ],
    "lz4": [
        theirs("lz4_encode"),
        lz4.frame.compress,
        lambda data: lz4.frame.compress(
            data, store_size=False, block_checksum=True, content_checksum=True
        ),
        lambda data: lz4.frame.compress(data, block_size=lz4.frame.BLOCKSIZE_MAX4MB),
    ],
    "zstd": [theirs("zstd_encode"), zstandard.compress, zstd_streamed],
}

# Readers that we did not write.
READERS = {
    "gzip": [gzip.decompress, theirs("gzip_decode")],
    "snappy": [SNAPPY_DECODE],
    "lz4": [theirs("lz4_decode"), lz4.frame.decompress],
    "zstd": [theirs("zstd_decode"), zstandard.decompress],
}


@pytest.mark.parametrize("data", [b"", b"x", TEXT, RANDOM], ids=["empty", "one", "text", "random"])
@pytest.mark.parametrize("codec", COMPRESSED)
def test_reads_what_others_compressed(codec, data):
    for encode in FOREIGN[codec]:
        assert decompress(codec, encode(data)) == (data, "")


@pytest.mark.parametrize("data", [b"", b"x", TEXT, RANDOM], ids=["empty", "one", "text", "random"])
@pytest.mark.parametrize("codec", COMPRESSED)
def test_others_read_what_we_compress(codec, data):
    ours = compress(codec, data)
    for decode in READERS[codec]:
        if data or decode not in (SNAPPY_DECODE, zstandard.decompress):
            assert bytes(decode(ours)) == data
    assert decompress(codec, ours) == (data, "")
    assert len(ours) < len(data) + 100
    assert data is not TEXT or len(ours) < len(data) / 10


@pytest.mark.parametrize("codec", CODECS)
@given(data=st.binary(max_size=3000))
def test_any_bytes_come_back(codec, data):
    assert decompress(codec, compress(codec, data)) == (data, "")


@pytest.mark.parametrize("codec", COMPRESSED)
@pytest.mark.parametrize("size", [16 << 10, (16 << 10) + 1, 128 << 10, 3 * MIB])
def test_the_buffer_grows_when_it_is_full(codec, size):
    """Constant bytes outgrow the first buffer; so this also fails when cramjam words it anew."""
    assert decompress(codec, compress(codec, bytes(size))) == (bytes(size), "")


@pytest.mark.parametrize("codec", COMPRESSED)
def test_the_limit_is_exact(codec):
    packed = compress(codec, TEXT)
    assert decompress(codec, packed, Allowance(len(TEXT))) == (TEXT, "")
    with pytest.raises(ProtocolError, match=f"{codec}: .* more than {len(TEXT) - 1}"):
        decompress(codec, packed, Allowance(len(TEXT) - 1))
    with pytest.raises(ProtocolError, match="more than 0"):
        decompress(codec, packed, Allowance(0))


@pytest.mark.parametrize("codec", COMPRESSED)
def test_a_bound_is_on_what_comes_out_and_not_on_a_ratio(codec):
    """2 MB of zeros are a value as any other; more than a batch may hold are not."""
    zeros = bytes(2_000_000)
    assert decompress(codec, compress(codec, zeros)) == (zeros, "")
    bomb = compress(codec, bytes(DECOMPRESSED_BYTES_MAX + 1))
    with pytest.raises(ProtocolError, match=f"{codec}: .* more than {DECOMPRESSED_BYTES_MAX}"):
        decompress(codec, bomb)


def test_records_are_counted_over_all_batches():
    allowance = Allowance(records_left=3)
    allowance.take_records(2)
    with pytest.raises(ProtocolError, match="2 records out of compressed bytes, more than the 1"):
        allowance.take_records(2)


def test_what_is_produced_and_refused_is_paid_for():
    """Else a thousand bombs would take a thousand times as long as one."""
    for codec in ("gzip", "zstd"):
        allowance = Allowance(32 * MIB)
        with pytest.raises(ProtocolError, match=f"more than {32 * MIB}"):
            decompress(codec, compress(codec, bytes(64 * MIB)), allowance)
        assert allowance.bytes_left == 0
        with pytest.raises(ProtocolError, match="more than 0"):
            decompress("snappy", compress("snappy", b"x"), allowance)


@pytest.mark.parametrize("codec", COMPRESSED)
def test_an_allowance_is_used_up_by_what_came_out(codec):
    allowance = Allowance(2 * len(TEXT))
    for left in (len(TEXT), 0):
        assert decompress(codec, compress(codec, TEXT), allowance) == (TEXT, "")
        assert allowance.bytes_left == left


@pytest.mark.parametrize(
    ("codec", "data"),
    [
        ("snappy", b"\xff\xff\xff\xff\x0f\x00"),
        ("snappy", b"\x80\x80\x80\x40\x00"),
        ("snappy", b"\x82SNAPPY\x00" + bytes(8) + b"\x7f\xff\xff\xff\x00"),
        ("snappy", b"\x82SNAPPY\x00" + bytes(8) + b"\x00\x00\x00\x06\xff\xff\xff\xff\x07\x00"),
        # Frame headers that promise 2^60 bytes, and a window of 3.75 TiB.
        ("zstd", bytes.fromhex("28b52ffd e0 0000000000000010 010000")),
        ("zstd", bytes.fromhex("28b52ffd 00 ff 010000")),
        ("lz4", bytes.fromhex("04224d18 60 70 73 ffffff7f 00")),
        ("gzip", b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"),
    ],
)
def test_claims_are_not_believed(codec, data):
    tracemalloc.start()
    try:
        plain, damage = decompress(codec, data)
        assert damage
        assert not plain
        assert tracemalloc.get_traced_memory()[1] < 1 * MIB
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("codec", COMPRESSED)
def test_damaged_bytes_give_what_is_before_the_damage(codec):
    choose = random.Random(2)
    for packed in (encode(TEXT[:2000]) for encode in FOREIGN[codec]):
        for end in range(len(packed)):
            plain, damage = decompress(codec, packed[:end])
            assert TEXT.startswith(plain)
            assert damage or codec == "snappy" or len(packed) - end <= 4 or len(plain) == 50
        for _ in range(300):
            damaged = bytearray(packed)
            damaged[choose.randrange(len(damaged))] ^= 1 << choose.randrange(8)
            _total(codec, bytes(damaged))
    for size in range(200):
        _total(codec, choose.randbytes(size))
        _total(codec, packed[:8] + choose.randbytes(size))


def _total(codec: str, data: bytes) -> None:
    for ignored in (False, True):
        plain, damage = decompress(codec, data, lz4_checksum_ignored=ignored)
        assert isinstance(plain, bytes)
        assert "\n" not in damage


def test_lz4_header_checksum_of_magic_0():
    """What Java writes for the descriptor `60 40`: 1a in magic 0, 82 otherwise."""
    assert compress("lz4", TEXT)[6] == 0x82
    broken = compress("lz4", TEXT, lz4_checksum_broken=True)
    assert broken[6] == 0x1A
    assert decompress("lz4", broken) == (b"", "lz4: the checksum of the header is wrong")
    assert decompress("lz4", broken, lz4_checksum_ignored=True) == (TEXT, "")


@pytest.mark.parametrize("options", [{}, {"store_size": False}, {"block_linked": False}])
def test_lz4_header_checksum_is_mended_for_every_descriptor(options):
    frame = bytearray(lz4.frame.compress(TEXT, **options))
    frame[14 if frame[4] & 8 else 6] ^= 0x55
    assert decompress("lz4", bytes(frame))[1]
    assert decompress("lz4", bytes(frame), lz4_checksum_ignored=True) == (TEXT, "")


def test_lz4_frames_are_such_as_java_reads():
    """Independent blocks (bit 5 of the flags), no dictionary, blocks of 64 KiB."""
    info = lz4.frame.get_frame_info(compress("lz4", TEXT))
    assert not info["block_linked"]
    assert info["block_size"] == 64 << 10


def test_a_wrong_checksum_inside_gzip_is_an_error():
    packed = bytearray(gzip.compress(TEXT))
    packed[-8:-4] = (zlib.crc32(TEXT) ^ 1).to_bytes(4, "little")
    plain, damage = decompress("gzip", bytes(packed))
    assert plain == TEXT
    assert damage.startswith("gzip: ")


def test_codecs_have_names():
    assert [codec_name(code) for code in range(8)] == [
        *CODECS,
        "unknown-5",
        "unknown-6",
        "unknown-7",
    ]
    assert codec_name(0x78 | 3) == "lz4"
    assert decompress("unknown-6", b"x") == (b"", "compression codec unknown-6 does not exist")
    with pytest.raises(ValueError, match="brotli"):
        compress("brotli", b"x")


def test_libraries_are_loaded_on_first_use():
    code = (
        "import sys, kproxy.wire.protocol.records as r\n"
        "assert not {'cramjam', 'crc32c', 'lz4', 'zstandard'} & set(sys.modules)\n"
        "r.batches(r.encode_batch([r.Record(0, 0)], compression='zstd'))[0].records\n"
        "assert 'cramjam' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
