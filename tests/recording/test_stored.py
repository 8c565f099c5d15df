"""Chunks whose checksum is right and whose messages are not."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from kproxy.recording import RecordingError, entries, read
from kproxy.recording.batch import RUN, RecordingBatch
from kproxy.recording.batch_messages import exchanges_message, frames_message
from kproxy.recording.builder import BatchBuilder
from kproxy.recording.mcap import CHANNEL, MESSAGE, record
from kproxy.recording.table_messages import FrameTable
from tests.recording.making import START_NS, forged, message, request, response


def tables(*made, number: int = 1) -> tuple[bytes, bytes]:
    """The messages of a batch with these entries."""
    builder = BatchBuilder(number)
    builder.add(made)
    (batch,) = builder.take() or [RecordingBatch(number)]
    frames, exchanges = frames_message(batch)[0], exchanges_message(batch)[0]
    return b"".join(frames), b"".join(exchanges)


FRAMES, EXCHANGES = tables(request(1, b"data of a frame"), response(1, b"back"))
GOOD = message(1, FRAMES) + message(2, EXCHANGES)


def neither(frames: bytes) -> bytes:
    """A table of frames with one of neither client nor broker."""
    for at, byte in enumerate(frames):
        if byte == 1 and b"data" not in frames[:at]:
            changed = frames[:at] + b"\2" + frames[at + 1 :]
            with contextlib.suppress(ValueError):
                if FrameTable(memoryview(changed)).column("side").tolist() == [0, 2]:
                    return changed
    raise AssertionError


WRONG = {
    "ends in the middle of a record": b"\5\0\0",
    "has a record that runs past its end": message(3, b"{}")[:-1],
    "has a message that is too short": record(MESSAGE, b"12"),
    "has a message on an unknown channel": message(9, b"{}"),
    "has a record of kind 4": record(CHANNEL, b"\0" * 16),
    "is empty": b"",
    "has other tables than belong there": message(2, EXCHANGES) + message(1, FRAMES),
    "has messages of several batches": GOOD + message(3, b"{}", sequence=2),
    "has other times than its messages": GOOD + message(3, b"{}", START_NS + 1),
    "has a note that is not a JSON object: Expecting property name": GOOD + message(3, b"{"),
    "has a note that is not a JSON object: it is too deep": message(1, FRAMES)
    + message(2, EXCHANGES)
    + message(4, b"[" * 12_000),
    "has a note that is not a JSON object: it is no object": GOOD + message(3, b"[]"),
    "has a table that does not decode: its metadata": message(1, b"??") + message(2, EXCHANGES),
    "has a table that does not decode: it has a frame of neither": message(1, neither(FRAMES))
    + message(2, EXCHANGES),
}


@pytest.mark.parametrize("what", WRONG)
def test_it_is_named(tmp_path: Path, what: str) -> None:
    path = forged(tmp_path / "a.mcap", WRONG[what])
    with pytest.raises(RecordingError, match=f"is damaged: a chunk {what}"):
        list(entries(path))


def test_frames_must_be_followed_by_the_exchanges_of_their_batch(tmp_path: Path) -> None:
    frames = message(1, FRAMES)
    for following, what in {
        message(2, EXCHANGES): None,
        message(2, EXCHANGES, sequence=2): "has messages of several batches",
        frames: "has other tables than belong there",
        message(3, b"{}"): "has other tables than belong there",
    }.items():
        path = forged(tmp_path / "a.mcap", frames, following)
        if what is None:
            assert len(list(entries(path))) == 3  # the frames, and that the file is torn
            continue
        with pytest.raises(RecordingError, match=what):
            list(entries(path))


def test_channels_of_others_are_passed_over(tmp_path: Path) -> None:
    path = forged(tmp_path / "a.mcap", message(3, b"{}") + message(9, b"?"), native=False)
    note, torn = entries(path)
    assert (note.body, torn.body["event"]) == ({}, "torn")


def test_a_channel_that_does_not_decode_is_named(tmp_path: Path) -> None:
    path = forged(tmp_path / "a.mcap", record(CHANNEL, b"\1\0\0\0\xff"), native=False)
    with pytest.raises(RecordingError, match="has a channel that does not decode"):
        list(entries(path))


@pytest.mark.parametrize("sizes", [(8,), (-1,), (8, 8), (24, -4), (12, 12)])
def test_frames_whose_sizes_are_not_those_of_their_data_are_refused(sizes: tuple[int, ...]) -> None:
    batch = RecordingBatch(1)
    batch.runs += RUN.pack(1, 1, 1, 1, 0, 0, 0, len(sizes), 0, 0, 20)
    batch.sizes += sizes
    batch.pieces, batch.data_bytes = [bytes(20)], 20
    parts, _ = frames_message(batch)
    table = FrameTable(memoryview(b"".join(parts)))
    for nth in (0, 0, 1):  # what is remembered is refused, too
        assert table.whole(0, nth) is None
    with pytest.raises(ValueError, match="sizes are not those of its data"):
        table.run(0)


LARGE, LARGE_EXCHANGES = tables(request(1, b"q" * 20_000), response(1, b"back"))
ONE, TWO = message(1, LARGE), message(1, LARGE, sequence=2)
REST = message(2, LARGE_EXCHANGES)


@pytest.mark.parametrize(
    ("chunks", "what"),
    [
        ((TWO, REST), "has messages of several batches"),
        ((ONE + message(3, b"{}"), REST), "has other tables than belong there"),
        ((ONE + ONE, REST), "has other tables than belong there"),
        ((message(1, LARGE, START_NS + 1), REST), "has other times than its messages"),
        ((ONE, REST, GOOD + message(3, b"{}", sequence=2)), "has messages of several batches"),
        ((ONE, REST, GOOD + message(3, b"{}", START_NS + 1)), "has other times"),
        ((ONE, REST + message(1, FRAMES)), "has other tables than belong there"),
    ],
)
def test_a_forged_chunk_is_named_whether_frames_are_passed_over_or_not(
    tmp_path: Path, chunks: tuple[bytes, ...], what: str
) -> None:
    """The checksums are right: the layout is not."""
    path = forged(tmp_path / "a.mcap", *chunks)
    with pytest.raises(RecordingError, match=what):
        list(entries(path))
    with pytest.raises(RecordingError, match=what):
        for exchange in read(path, told=lambda note: None):
            assert exchange.request_frame
