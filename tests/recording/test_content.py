"""Chunks whose checksum is right and whose messages are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from kproxy.exchange.entries import REWRITTEN
from kproxy.recording import RecordingError, entries
from kproxy.recording.format import CHANNEL, FRAMES, MESSAGE, ROW, record
from tests.recording.making import START_NS, event, forged, message, response, write


def row(**values: int) -> bytes:
    """A row of a frame that was received at the start."""
    fields = [START_NS, 0, 1, 0, 0, 0, 4, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0]
    for name, value in values.items():
        fields[{"received_ns": 0, "position": 5, "side": 15}[name]] = value
    return ROW.pack(*fields)


WRONG = {
    "ends in the middle of a record": b"\5\0\0",
    "has a record that runs past its end": message(3, b"{}")[:-1],
    "has a message that is too short": record(MESSAGE, b"12"),
    "has a frame that is too short": message(FRAMES, b"12"),
    "has a note that is not JSON: JSONDecodeError": message(3, b"{"),
    "has a note that is not JSON: RecursionError": message(4, b"[" * 100_000),
    "has a note that is not a JSON object": message(3, b"[]"),
    "has a frame of neither client nor broker": message(FRAMES, row(side=2)),
    "has a frame whose row contradicts its message": message(FRAMES, row(position=1)),
    "has a message on an unknown channel": message(9, b"{}"),
    "has a record of kind 4": record(CHANNEL, b"\0" * 16),
    "has other times than its messages": message(3, b"{}", START_NS + 1),
    "has two tables of headers": message(2, b"") + message(2, b""),
}


@pytest.mark.parametrize("what", WRONG)
def test_it_is_named(tmp_path: Path, what: str) -> None:
    path = forged(tmp_path / "a.mcap", WRONG[what])
    with pytest.raises(RecordingError, match=f"is damaged: a chunk {what}"):
        list(entries(path))


def test_a_table_must_follow_and_be_that_of_its_frames(tmp_path: Path) -> None:
    frame = message(FRAMES, row() + b"data")
    for table, what in {
        message(2, row()): None,
        message(2, b""): "a table of headers differs from its frames",
        message(2, row() * 2): "a table of headers differs from its frames",
        message(2, row()[:60]): "a chunk has no table of headers",
        frame: "a chunk has a frame where a table belongs",
        message(3, b"{}"): "a chunk has a frame where a table belongs",
    }.items():
        path = forged(tmp_path / "a.mcap", frame, table)
        if what is None:
            assert len(list(entries(path))) == 2  # the frame, and that the file is torn
            continue
        with pytest.raises(RecordingError, match=what):
            list(entries(path))


def test_a_note_about_another_frame_or_in_no_sense_changes_nothing(tmp_path: Path) -> None:
    frame = response(7, b"data", flags=REWRITTEN)
    for number, splices in ((8, []), (7, "what?"), (7, [[1, 2]]), (7, [[1, 2, "not base64"]])):
        note = event("rewritten", number=number, side="broker", splices=splices)
        path = tmp_path / "a.mcap"
        path.unlink(missing_ok=True)
        *_, read = entries(write(path, [[note, frame]]))
        assert read.splices == ()


def test_channels_of_others_are_passed_over(tmp_path: Path) -> None:
    path = forged(tmp_path / "a.mcap", message(3, b"{}") + message(9, b"?"), native=False)
    note, torn = entries(path)
    assert (note.body, torn.body["event"]) == ({}, "torn")


def test_a_channel_that_does_not_decode_is_named(tmp_path: Path) -> None:
    path = forged(tmp_path / "a.mcap", record(CHANNEL, b"\1\0\0\0\xff"), native=False)
    with pytest.raises(RecordingError, match="has a channel that does not decode"):
        list(entries(path))
