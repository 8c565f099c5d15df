"""How entries fill chunks."""

from __future__ import annotations

import struct

from kproxy.recording.format import CHUNK_BYTES, MESSAGE_HEAD
from kproxy.recording.pack import header_chunk, packed_chunks
from tests.recording.making import START_NS, event, opened, request


def test_a_chunk_ends_once_it_is_full() -> None:
    frames = [request(number, b"f" * 905) for number in range(600)]
    chunks = list(packed_chunks(iter(frames), 0))
    assert [chunk.messages[0] for chunk in chunks] == [263, 263, 74]
    assert all(chunk.size == sum(map(len, chunk.parts)) for chunk in chunks)
    assert CHUNK_BYTES <= chunks[0].size < CHUNK_BYTES + 1000


def test_nothing_makes_no_chunk() -> None:
    assert list(packed_chunks(iter([]), 0)) == []


def test_a_chunk_knows_its_times_and_counts() -> None:
    entries = [event("e", START_NS + 9), request(1, b"f"), opened(time_ns=START_NS + 3)]
    (chunk,) = packed_chunks(iter(entries), 0)
    assert (chunk.start_ns, chunk.end_ns) == (START_NS + 3, START_NS + 1_000_000)
    assert chunk.messages == (1, 0, 1, 1)


def test_entries_are_numbered_through() -> None:
    entries = [request(1, b"f" * 200_000), event("e"), request(2, b"f" * 200_000), event("e")]
    numbers = []
    for chunk in packed_chunks(iter(entries), 0xFFFFFFFE):
        records, at = b"".join(chunk.parts), 0
        while at < len(records):
            _, length, _, number, _, _ = MESSAGE_HEAD.unpack_from(records, at)
            numbers.append(number)
            at += 9 + length
    assert numbers == [0xFFFFFFFE, 0xFFFFFFFF, 0, 1]


def test_big_frames_decide_whether_a_chunk_is_compressed() -> None:
    small = [request(number, b"s" * 1000) for number in range(30)]
    for big, compressible in ((0, True), (20_000, True), (40_000, False)):
        (chunk,) = packed_chunks(iter([*small, request(99, b"b" * big)]), 0)
        assert chunk.compressible is compressible
        assert header_chunk(chunk, 0).compressible is compressible


def test_pieces_are_not_copied() -> None:
    pieces = [b"a" * 50_000, memoryview(b"b" * 50_000)]
    (chunk,) = packed_chunks(iter([request(1, b"", pieces=pieces)]), 0)
    assert chunk.parts[1] is pieces[0] and chunk.parts[2] is pieces[1]


def test_the_header_chunk_has_the_rows() -> None:
    (chunk,) = packed_chunks(iter([request(1, b"one"), request(2, b"two")]), 0)
    table = header_chunk(chunk, 7)
    records = b"".join(table.parts)
    opcode, length, channel, number, log_ns, _ = MESSAGE_HEAD.unpack_from(records)
    assert (opcode, channel, number, log_ns) == (5, 2, 7, chunk.end_ns)
    assert length == len(records) - 9 and len(records) == MESSAGE_HEAD.size + 128
    assert [struct.unpack_from("<Q", records, 31 + at + 16)[0] for at in (0, 64)] == [1, 2]
