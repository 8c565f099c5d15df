"""Decompression stays within what was declared."""

from __future__ import annotations

import tracemalloc

import lz4.frame
import pytest
import zstandard

from kproxy.recording.mcap import decompress

DATA = b"some records, some records, some more records" * 100


def zstd(data: bytes, **options: bool) -> bytes:
    """Compress as a stream does (no content size), or in one go."""
    return zstandard.ZstdCompressor(level=1, **options).compress(data)


PACKED = {
    "stored": ("", DATA),
    "zstd": ("zstd", zstd(DATA)),
    "zstd without its size": ("zstd", zstd(DATA, write_content_size=False)),
    "lz4": ("lz4", lz4.frame.compress(DATA)),
    "lz4 without its size": ("lz4", lz4.frame.compress(DATA, store_size=False)),
}


@pytest.mark.parametrize("name", PACKED)
@pytest.mark.parametrize("by", [-1, 1])
def test_another_size_is_refused(name: str, by: int) -> None:
    compression, packed = PACKED[name]
    with pytest.raises(ValueError):
        decompress(compression, packed, len(DATA) + by)


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
def test_nonsense_is_refused(compression: str) -> None:
    with pytest.raises(ValueError):
        decompress(compression, b"this is not compressed at all", 100)
    assert decompress(compression, b"", 0) == b""


@pytest.mark.parametrize("name", ["zstd", "zstd without its size", "lz4"])
def test_a_bomb_does_not_go_off(name: str) -> None:
    zeros = bytes(100_000_000)
    compress = {
        "zstd": zstd,
        "zstd without its size": lambda data: zstd(data, write_content_size=False),
        "lz4": lz4.frame.compress,
    }[name]
    bomb = compress(zeros)
    del zeros
    tracemalloc.start()
    try:
        with pytest.raises(ValueError):
            decompress(name.split(maxsplit=1)[0], bomb, 1000)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_a_frame_that_claims_to_be_huge_allocates_nothing() -> None:
    claim = b"\x28\xb5\x2f\xfd\xe0" + (1 << 50).to_bytes(8, "little") + b"\1\0\0"
    with pytest.raises(ValueError, match="1000 bytes"):
        decompress("zstd", claim, 1000)
