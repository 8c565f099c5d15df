"""Chunks whose checksum is right and whose messages are not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kproxy.exchange.entries import FRAGMENT, MORE, TRUNCATED
from kproxy.exchange.follower import BROKER_SIDE, LATE
from kproxy.recording import RecordingError, RecordingFile, entries, read, recover
from kproxy.recording.mcap import CHANNEL, MESSAGE, record
from kproxy.recording.pieces import PIECE, PIECE_BYTES_MIN
from tests.recording.making import START_NS, forged, message, request, response
from tests.versions import some

MAX = (1 << 63) - 1


def piece(
    data: bytes, flags: int = 0, number: int = 1, extras: bytes = b"", size: int | None = None
) -> bytes:
    """A piece's message."""
    about = number, 0, 3, 2, flags, 0, 11, len(extras) if size is None else size
    head = PIECE.pack(0, 0, 0, 0, 0, 0, *about)[-PIECE_BYTES_MIN:]
    return message(1, head + extras + data)


ASK, TELL = request(1, b"ask").data, response(1, b"tell").data
GOOD = piece(ASK) + piece(TELL, BROKER_SIDE)


WRONG = {
    "ends in the middle of a record": b"\5\0\0",
    "has a record that runs past its end": message(2, b"{}")[:-1],
    "has a message that is too short": record(MESSAGE, b"12"),
    "has a message on an unknown channel": message(9, b"{}"),
    "has a record of kind 4": record(CHANNEL, b"\0" * 16),
    "is empty": b"",
    "has messages of several chunks": GOOD + message(2, b"{}", sequence=2),
    "has other times than its messages": GOOD + message(2, b"{}", START_NS + 1),
    "has a note that is not a JSON object: Expecting property name": GOOD + message(2, b"{"),
    "has a note that is not a JSON object: it is too deep": GOOD + message(3, b"[" * 12_000),
    "has a note that is not a JSON object: it is no object": GOOD + message(2, b"[]"),
    "does not decode: a piece is too short": message(1, b"??"),
    "does not decode: the extras of a piece run past its end": piece(ASK, size=1000),
    "does not decode: the extras of a piece do not decode": piece(ASK, extras=b"[" * 9),
    "does not decode: a piece has bytes that are no whole frame": piece(ASK + b"\0\0\1\0"),
}


@pytest.mark.parametrize("what", WRONG)
def test_it_is_named(tmp_path: Path, what: str) -> None:
    path = forged(tmp_path / "a.mcap", WRONG[what])
    with pytest.raises(RecordingError, match=f"is damaged: a chunk {what}"):
        list(entries(path))


def test_channels_of_others_are_passed_over(tmp_path: Path) -> None:
    path = forged(tmp_path / "a.mcap", message(2, b"{}") + message(9, b"?"), native=False)
    note, torn = entries(path)
    assert (note.body, torn.body["event"]) == ({}, "torn")


def test_a_channel_that_does_not_decode_is_named(tmp_path: Path) -> None:
    path = forged(tmp_path / "a.mcap", record(CHANNEL, b"\1\0\0\0\xff"), native=False)
    with pytest.raises(RecordingError, match="has a channel that does not decode"):
        list(entries(path))


ODD = [
    *({name: value} for name in ("at", "frame_bytes", "correlation_id", "error_code", "behind",
                                 "fault_ns") for value in (-1, 1 << 31, MAX, -MAX, 1 << 32)),
    *({"at": 1 << 32 | run << 16} for run in range(4)),
    *({"at": -MAX - 1, "request": {"request_sent_ns": value}} for value in (-MAX, MAX, 0)),
    {"request": {"number": 7, "connection": 9}}, {"fault_ids": [MAX, -1]}, {"withheld": [1]},
    {"splices": [[MAX, MAX, ""], [-1, -1, "eHg="]]}, {"client_ended": 1}, {"new": {}},
]  # fmt: skip
SIZES = [(0).to_bytes(4), b"\x7f\xff\xff\xff", b"\xff" * 4, b"\x80\0\0\0", b"\0\0\0\5"]
FLAGS = [0, LATE, FRAGMENT, FRAGMENT | MORE, TRUNCATED, 32, 64, 128, (1 << 30) - 1]


@pytest.mark.parametrize("side", [0, BROKER_SIDE])
@pytest.mark.parametrize("flags", some(FLAGS, [0, LATE, FRAGMENT | MORE, TRUNCATED, FLAGS[-1]]))
def test_odd_pieces_are_read_or_refused(tmp_path: Path, flags: int, side: int) -> None:
    """Places that lead nowhere, or in a circle; sizes and numbers that nothing has."""
    for nth, odd in enumerate([*ODD, *SIZES, MAX, -MAX, -1]):
        extras = json.dumps(odd).encode() if isinstance(odd, dict) else b""
        data = odd + bytes(9) if isinstance(odd, bytes) else TELL if side else ASK
        number = odd if isinstance(odd, int) else 1
        one = piece(data, flags | side, number, extras)
        path = forged(tmp_path / f"{nth}.mcap", GOOD + one + one + piece(TELL, LATE | side))
        _read_all(path)


def _read_all(path: Path) -> None:
    """Read a file in every way: it is read, or refused."""
    try:
        list(entries(path))
        for exchange in read(path, told=lambda note: None):
            repr((exchange.text, exchange.frames, exchange.row))
        with RecordingFile(path) as file:
            batches = list(file.batches())
            for batch in reversed(batches):
                for row in file.exchanges(batch):
                    file.frame_bytes(row.request_position)
                    file.frame_bytes(row.response_position)
        recover(path)
    except RecordingError as error:
        assert "\n" not in str(error)
