"""What is remembered of a file while it grows."""

from __future__ import annotations

from kproxy.recording.ending import ChunkInfo, Index


def chunk(offset: int, start_ns: int, compression: str = "") -> ChunkInfo:
    """A chunk of 100 bytes with two frames."""
    return ChunkInfo(start_ns, start_ns + 5, offset, 100, compression, 51, 51, (2, 0, 1))


def test_chunks_add_up() -> None:
    index = Index(b"s", b"c", 10, 20, 1000, 0)
    index.add(chunk(1000, 50), 1)
    index.add(chunk(1100, 40, "zstd"), 2)
    assert (index.size, index.crc, index.chunks) == (1200, 2, 2)
    assert (index.start_ns, index.end_ns) == (40, 55)
    assert index.messages == [4, 0, 2]


def test_a_chunk_is_remembered_in_less_than_80_bytes() -> None:
    index = Index(b"s", b"c", 10, 20, 1000, 0)
    for number in range(100):
        index.add(chunk(1000 + 100 * number, number, "zstd"), 0)
    assert len(index.records) < 80 * 100


def test_a_file_of_no_chunks_has_an_ending_too() -> None:
    ending = Index(b"s", b"c", 10, 20, 1000, 0).ending()
    assert ending.startswith(b"\x0f\4") and ending.endswith(b"\x89MCAP0\r\n")
