"""Files that were made to harm: an error, or what is right, and never much memory."""

from __future__ import annotations

import random
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kproxy.recording import RecordingError, entries, read
from kproxy.recording.layout import PROFILE
from kproxy.recording.mcap import CHUNK_BYTES_MAX, MAGIC, RECORD, record, string
from tests.recording.making import conversation, forged, request, rewrite, write

HEADER = record(1, string(PROFILE) + string("some tool"))


def read_all(path: Path) -> str:
    """Read entries and exchanges; return the error, or nothing."""
    what = ""
    for each in (entries, read):
        try:
            for value in each(path):
                repr(value)
        except RecordingError as error:
            what = error.what
    return what


@given(tail=st.binary(max_size=200), native=st.booleans())
def test_any_bytes_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, tail: bytes, native: bool
) -> None:
    path = tmp_path_factory.mktemp("any") / "a.mcap"
    header = record(1, string(PROFILE) + string("kproxy 1" if native else "tool"))
    for start in (b"", MAGIC, MAGIC + header):
        path.write_bytes(start + tail)
        read_all(path)


@given(seed=st.integers(0, 1 << 30), foreign=st.booleans())
def test_mutated_files_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, seed: int, foreign: bool
) -> None:
    folder = tmp_path_factory.mktemp("mutated")
    path = write(folder / "a.mcap", conversation())
    if foreign:
        path = rewrite(path, folder / "b.mcap", enable_crcs=False)
    chance = random.Random(seed)
    data = bytearray(path.read_bytes())
    for _ in range(chance.randrange(1, 5)):
        at = chance.randrange(len(data))
        match chance.randrange(4):
            case 0:
                data[at] = chance.randrange(256)
            case 1:
                del data[at : at + chance.randrange(30)]
            case 2:
                data[at:at] = chance.randbytes(chance.randrange(30))
            case 3:
                data[at : at + 8] = chance.choice((b"\xff" * 8, b"\0" * 8, b"\0" * 7 + b"\x7f"))
    path.write_bytes(data)
    read_all(path)


@pytest.mark.parametrize("opcode", range(1, 18))
@pytest.mark.parametrize("length", [1 << 34, 1 << 62, (1 << 64) - 1])
def test_a_huge_length_allocates_nothing(tmp_path: Path, opcode: int, length: int) -> None:
    path = tmp_path / "a.mcap"
    path.write_bytes(MAGIC + HEADER + RECORD.pack(opcode, length) + b"\xff" * 100)
    tracemalloc.start()
    try:
        read_all(path)
        assert tracemalloc.get_traced_memory()[1] < 18 << 20
    finally:
        tracemalloc.stop()


def test_a_chunk_that_is_too_big_says_what_to_do(tmp_path: Path) -> None:
    path = forged(tmp_path / "a.mcap", b"", size=CHUNK_BYTES_MAX + 1)
    with pytest.raises(RecordingError, match="reads 64 MiB: rewrite the file with smaller chunks"):
        list(entries(path))


def test_an_unknown_compression_is_named(tmp_path: Path) -> None:
    path = forged(tmp_path / "a.mcap", b"xxxx", compression="br")
    with pytest.raises(RecordingError, match="compression 'br' is not known"):
        list(entries(path))


def test_a_head_that_is_not_complete_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "a.mcap"
    header = record(1, string(PROFILE) + string("kproxy 0.1.0"))
    for after in (record(0x0F, b"\0\0\0\0"), record(6, b"")):
        path.write_bytes(MAGIC + header + after)
        with pytest.raises(RecordingError, match="its head is not complete"):
            list(entries(path))


def test_a_record_of_the_head_is_not_endless(tmp_path: Path) -> None:
    path = tmp_path / "a.mcap"
    path.write_bytes(MAGIC + HEADER + record(0x0C, bytes(17 << 20)))
    with pytest.raises(RecordingError, match="is longer than any that is"):
        list(entries(path))


def test_memory_stays_flat_over_a_long_file(tmp_path: Path) -> None:
    batch = [request(1, b"m" * 50_000)] * 6
    short = write(tmp_path / "short.mcap", [batch] * 10, compression="none")
    long = write(tmp_path / "long.mcap", [batch] * 100, compression="none")
    peaks = []
    for path in (short, short, long):
        tracemalloc.start()
        for _ in entries(path):
            pass
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[2] < peaks[1] * 1.2 + 100_000


def test_bytes_behind_the_end_are_noticed(tmp_path: Path) -> None:
    path = write(tmp_path / "a.mcap", conversation())
    with path.open("ab") as file:
        file.write(b"\0")
    with pytest.raises(RecordingError, match="there are bytes behind its end"):
        list(entries(path))
