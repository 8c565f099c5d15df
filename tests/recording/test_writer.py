"""What the writer leaves on disk, as the mcap package sees it, and what it does when it cannot."""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Sequence
from pathlib import Path

import mcap.records
import pytest
from hypothesis import given

from kproxy.exchange.entries import (
    FRAGMENT,
    MORE,
    NO_RESPONSE,
    REWRITTEN,
    ChunkTimes,
    Frame,
    FrameRun,
    Requests,
    Side,
)
from kproxy.recording import Writer, entries, read, verify
from kproxy.recording.direct import Direct
from kproxy.recording.pieces import PIECE_BYTES_MIN
from tests.recording.making import (
    SETTINGS,
    START_NS,
    batches_of_entries,
    conversation,
    event,
    oracle,
    oracle_accepts,
    oracle_messages,
    plains,
    refusing,
    request,
    response,
    write,
)


@pytest.mark.parametrize("compression", ["adaptive", "none"])
def test_the_mcap_package_reads_every_message(tmp_path: Path, compression: str) -> None:
    path = write(tmp_path / "a.mcap", conversation(), compression=compression)
    pieces = oracle_messages(path, "/kafka/pieces")
    expected = [entry.data for batch in conversation() for entry in batch if type(entry) is Frame]
    expected.append(b"")  # that the last request is open when its connection ends
    assert len(pieces) == len(expected) == 7
    for piece, data in zip(pieces, expected, strict=True):
        assert len(piece) >= PIECE_BYTES_MIN and piece.endswith(data)
    assert len(oracle_messages(path, "/kafka/connections")) == 2
    assert len(oracle_messages(path, "/kafka/events")) == 2


def test_the_summary_counts_what_is_there(tmp_path: Path) -> None:
    path = write(tmp_path / "a.mcap", conversation())
    records = oracle(path)
    (statistics,) = [r for r in records if isinstance(r, mcap.records.Statistics)]
    assert statistics.message_count == 7 + 4
    assert statistics.channel_message_counts == {1: 7, 2: 2, 3: 2}
    assert statistics.chunk_count == 3
    assert statistics.message_start_time == START_NS
    assert statistics.message_end_time == START_NS + 9_000_000
    data = path.read_bytes()
    for index in [r for r in records if isinstance(r, mcap.records.ChunkIndex)]:
        assert data[index.chunk_start_offset] == 0x06
        assert data[index.chunk_start_offset + index.chunk_length] in (0x06, 0x0F)
    for offset in [r for r in records if isinstance(r, mcap.records.SummaryOffset)]:
        assert data[offset.group_start] == offset.group_opcode
    (index,) = [r for r in records if isinstance(r, mcap.records.MetadataIndex)]
    assert data[index.offset] == 0x0C


def test_the_head_says_what_is_needed_to_decode(tmp_path: Path) -> None:
    path = write(tmp_path / "a.mcap", [], metadata={"command": "kproxy run"})
    (metadata,) = [r for r in oracle(path) if isinstance(r, mcap.records.Metadata)]
    assert metadata.name == "kproxy"
    assert metadata.metadata["format_version"] == "3"
    assert metadata.metadata["schema_id"] == "5eed5eed"
    assert metadata.metadata["start_ns"] == str(START_NS)
    assert metadata.metadata["command"] == "kproxy run"


@given(batches=batches_of_entries)
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, batches: list) -> None:
    path = write(tmp_path_factory.mktemp("any") / "a.mcap", batches)
    flat = [entry for batch in batches for entry in batch]
    assert plains(entries(path)) == plains(flat)
    assert oracle_accepts(path.read_bytes())
    verify(path)


def test_a_frame_of_several_mib_is_stored_in_pieces(tmp_path: Path) -> None:
    data = request(1, random.Random(1).randbytes(2_499_988)).data
    pieces = [data[:70_000], memoryview(data)[70_000:]]
    big = request(1, b"", pieces=pieces, frame_bytes=2_500_000)
    path = write(tmp_path / "a.mcap", [[request(0, b"before"), big, response(1, b"after")]])
    _, first, second, third, _ = pieces = list(entries(path))
    sizes = [18, 1 << 20, 1 << 20, 2_500_000 - (2 << 20), 13]
    assert [len(piece.data) for piece in pieces] == sizes
    assert first.flags == second.flags == FRAGMENT | MORE
    assert third.flags == FRAGMENT
    assert first.frame_bytes == third.frame_bytes == 2_500_000
    assert first.data + second.data + third.data == data


def test_a_long_batch_becomes_several_chunks(tmp_path: Path) -> None:
    batch = [request(number, b"y" * 1000) for number in range(2000)]
    path = write(tmp_path / "a.mcap", [batch])
    assert plains(entries(path)) == plains(batch)
    index = [r for r in oracle(path) if isinstance(r, mcap.records.ChunkIndex)]
    sizes = [chunk.uncompressed_size for chunk in index]
    assert max(sizes) < 300 * 1024
    assert len(sizes) == 9


def test_small_frames_are_compressed_and_batches_are_not(tmp_path: Path) -> None:
    small = [request(number, b'{"some": "json"}' * 20) for number in range(100)]
    big = [request(200, b'{"some": "json"}' * 2000)]
    path = write(tmp_path / "a.mcap", [small, big, small + big + big])
    index = [r for r in oracle(path) if isinstance(r, mcap.records.ChunkIndex)]
    frames = [chunk.compression for chunk in index if chunk.uncompressed_size > 30_000]
    assert frames == ["zstd", "", ""]
    assert path.stat().st_size < write(
        tmp_path / "b.mcap", [small, big, small + big], compression="none"
    ).stat().st_size  # fmt: skip


def test_frames_that_come_together_take_few_bytes(tmp_path: Path) -> None:
    """Ten heartbeats at a time, each answered: 30 and 16 bytes of payload."""
    entries, number = [], 0
    for run in range(200):
        numbers = range(number + 1, number + 11)
        entries += pipelined(numbers, START_NS + run * 350_000)
        number += 10
    path = tmp_path / "a.mcap"
    writer = Writer(path, **SETTINGS)
    before = writer.bytes_written
    writer.write(entries)
    assert (writer.bytes_written - before) / (2 * number) < 12
    writer.close()


def pipelined(numbers: Sequence[int], now: int) -> list[FrameRun]:
    """A run of heartbeats and the run of their responses."""
    sent = ChunkTimes(now, now + 20_123)
    count = len(numbers)
    requests = Requests(numbers[0], 12, 4, 0, [*numbers], [30] * count, sent)
    asked = b"".join(struct.pack(">ihhi18s", 26, 12, 4, n, b"\0\4app") for n in numbers)
    answered = b"".join(struct.pack(">ii8s", 12, n, b"") for n in numbers)
    back = ChunkTimes(now + 300_000 + now % 977, now + 310_000 + now % 971)
    return [
        FrameRun(Side.CLIENT, 3, sent, [asked], requests, 0, [30] * count),
        FrameRun(Side.BROKER, 3, back, [answered], requests, 0, [16] * count),
    ]


def test_an_existing_file_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "a.mcap"
    path.write_bytes(b"precious")
    with pytest.raises(FileExistsError):
        Writer(path, **SETTINGS)
    assert path.read_bytes() == b"precious"


def test_settings_that_make_no_sense_leave_no_file(tmp_path: Path) -> None:
    for wrong in ({"compression": "gzip"}, {"metadata": {"schema_id": "x"}}):
        with pytest.raises(ValueError):
            Writer(tmp_path / "a.mcap", **SETTINGS, **wrong)
    assert list(tmp_path.iterdir()) == []


def test_what_was_sent_on_instead_is_there(tmp_path: Path) -> None:
    splices = ((4, 2, b"longer"), (9, 0, b"\xff"))
    frame = response(7, b"\0\0\0\6abcdef", flags=REWRITTEN, splices=splices)
    path = write(tmp_path / "a.mcap", [[request(7, b"r"), frame, request(8, b"r")]])
    _, read, _ = entries(path)
    assert read.splices == splices and read.sent == frame.sent
    copy = write(tmp_path / "b.mcap", [list(entries(path))])
    assert plains(entries(copy)) == plains(entries(path))


# ---------------------------------------------------------------- the disk


class Disk:
    """Stands in for the disk: the n-th write, and the `failures - 1` after it, fail half-way."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, failing: int, failures: int):
        self.calls = 0
        self._failing = range(failing, failing + failures)
        self._half_way = False
        self._pwrite, self._pwritev = os.pwrite, os.pwritev
        monkeypatch.setattr(os, "pwritev", self.pwritev)
        monkeypatch.setattr(os, "pwrite", self.pwrite)

    def pwritev(self, fd: int, buffers: list[bytes], offset: int) -> int:
        if hasattr(os, "memfd_create") and "memfd:" in os.readlink(f"/proc/self/fd/{fd}"):
            return self._pwritev(fd, buffers, offset)
        return self.pwrite(fd, b"".join(buffers), offset)

    def pwrite(self, fd: int, data: bytes | memoryview, offset: int) -> int:
        if self._half_way:
            self._half_way = False
            raise OSError(28, "No space left on device")
        self.calls += 1
        if self.calls in self._failing:
            self._half_way = True
            size = max(1, len(data) * 2 // 3)
            data = data[: size - size % 4096 or size]  # a disk takes blocks
        return self._pwrite(fd, data, offset)


@pytest.mark.parametrize("failures", [1, 2, 100])
@pytest.mark.parametrize("failing", range(1, 9))
def test_a_write_that_fails_leaves_no_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int, failures: int
) -> None:
    disk = Disk(monkeypatch, failing, failures)
    batches = [
        [event("batch", START_NS + n), request(n, bytes([n]) * 500, flags=NO_RESPONSE)]
        for n in range(6)
    ]
    written = []
    path = tmp_path / "a.mcap"
    try:
        writer = Writer(path, **SETTINGS, compression="none")
    except OSError:
        assert failing == 1 and not path.exists()
        return
    for batch in batches:
        size = writer.bytes_written
        try:
            writer.write(batch)
        except OSError:
            assert writer.bytes_written == path.stat().st_size == size
        else:
            written += batch
    closing = 8  # the head, six batches, and then the end
    if closing in range(failing, failing + failures):
        with pytest.raises(OSError):
            writer.close()
        *read, torn = entries(path)
        assert torn.body["event"] == "torn"
    else:
        writer.close()
        read = list(entries(path))
        verify(path)
        assert oracle_accepts(path.read_bytes())
    assert plains(read) == plains(written)
    assert disk.calls == closing


def test_what_cannot_be_cut_off_at_once_is_cut_off_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.mcap"
    writer = Writer(path, **SETTINGS)
    with monkeypatch.context() as patched:
        Disk(patched, 1, 1)
        patched.setattr(os, "ftruncate", refusing(5))
        with pytest.raises(OSError):
            writer.write([request(1, b"lost" * 1000)])
        with pytest.raises(OSError):
            writer.write([request(1, b"lost")])
    writer.write([request(2, b"kept")])
    writer.close()
    verify(path)
    assert [entry.number for entry in entries(path)] == [2]


def test_more_buffers_than_one_call_takes(tmp_path: Path) -> None:
    data = b"d" * 16_384
    pieces = [struct.pack(">i", 50 * 16_384 - 4) + data[4:], *[data] * 49]
    batch = [request(n, b"", pieces=pieces, frame_bytes=50 * 16_384) for n in range(30)]
    path = write(tmp_path / "a.mcap", [batch])
    assert sum(len(frame.data) for frame in entries(path)) == 30 * 50 * 16_384


@pytest.mark.parametrize("failing", range(2, 7))  # fewer than a slow disk is asked
def test_a_long_batch_is_written_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    disk = Disk(monkeypatch, failing, 1)
    path = tmp_path / "a.mcap"
    writer = Writer(path, **SETTINGS)
    batch = [request(n, bytes([n]) * 1_000_000) for n in range(12)]
    written = 0
    for _ in range(2):
        try:
            writer.write(batch)
        except OSError:
            assert path.stat().st_size == writer.bytes_written
        else:
            written += 12
    writer.close()
    verify(path)
    # How many calls it takes depends on the disk: a slow one is spared.
    assert len(list(entries(path))) == written == (12 if disk.calls >= failing else 24)


def test_much_of_small_frames_goes_past_the_page_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged = []
    stage = Direct.stage

    def seen(self: Direct, parts: list[bytes], size: int, at: int) -> memoryview | None:
        found = stage(self, parts, size, at)
        staged.append(0 if found is None else size)
        return found

    monkeypatch.setattr(Direct, "stage", seen)
    chance = random.Random(1)
    batch = [request(n, chance.randbytes(8_000)) for n in range(300)]
    read = entries(write(tmp_path / "a.mcap", [batch]))
    assert plains(read) == plains(batch)
    assert sum(staged) > 2_000_000


@pytest.mark.parametrize("side", ["request", "response"])
def test_what_leaves_long_after_it_was_due_was_held_until_it_was_due(
    tmp_path: Path, side: str
) -> None:
    """Between the two, a slow reader holds it; it is written then, and again when it has left."""
    ask = request(1, b"ask", sent_ns=0, flags=NO_RESPONSE if side == "request" else 0)
    entry = ask if side == "request" else response(1, b"tell", sent_ns=0)
    writer = Writer(tmp_path / "a.mcap", **SETTINGS)
    entry.fault_ns = 20_000_000
    writer.write([ask] if entry is ask else [request(1, b"ask"), entry])
    entry.sent_ns = entry.received_ns + 33_000_000
    writer.write([])
    writer.close()
    (exchange,) = read(tmp_path / "a.mcap")
    assert (exchange.fault_ms, round(exchange.proxy_ms or 0)) == (20, 13)
