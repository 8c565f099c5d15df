"""Recordings whose checksums are right, and whose values are such as kproxy never writes."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from kproxy import recording
from kproxy.recording import RecordingError
from tests.bed import needs
from tests.recording.making import rewrite
from tests.tables.test_reading import rows

DEMO = needs.REPOSITORY / "recordings" / "demo.mcap"
NUMBER, BEFORE_NS, CONNECTION, NODE_ID, FLAGS, API_KEY, EXTRAS = 0, 8, 16, 20, 24, 28, 32
"""Where a piece has these (`recording.layout`)."""
VIEWS = ("exchanges", "records", "frames", "events")


def forged(path: Path, nth: int, at: int, code: str, value: int) -> Path:
    """A recording with one other value in its nth piece."""
    count = 0

    def change(data: bytes) -> bytes:
        nonlocal count
        if data[:1] == b"{":
            return data
        count += 1
        new = bytearray(data)
        if count == nth:
            struct.pack_into(code, new, at, value)
        return bytes(new)

    rewrite(DEMO, path, change=change)
    return path


def noted(path: Path, name: str, value: Any) -> Path:
    """A recording in whose notes a name has another value."""

    def change(data: bytes) -> bytes:
        if data[:1] != b"{":
            return data
        return json.dumps({**json.loads(data), name: value}).encode()

    rewrite(DEMO, path, change=change)
    return path


@pytest.mark.parametrize("nth", [1, 2, 40])
@pytest.mark.parametrize(
    ("at", "code", "value"),
    [
        (NUMBER, "<q", -(1 << 63)),
        (NUMBER, "<q", (1 << 63) - 1),
        (BEFORE_NS, "<q", -(1 << 63)),
        (BEFORE_NS, "<q", (1 << 63) - 1),
        (CONNECTION, "<I", (1 << 32) - 1),
        (NODE_ID, "<i", -(1 << 31)),
        (FLAGS, "<I", (1 << 32) - 1),
        (API_KEY, "<h", -(1 << 15)),
        (API_KEY, "<h", (1 << 15) - 1),
        (EXTRAS, "<I", 1),
        (EXTRAS, "<I", (1 << 32) - 1),
        (EXTRAS + 4, ">i", -1),
        (EXTRAS + 4, ">i", (1 << 31) - 1),
    ],
)
def test_a_value_that_cannot_be_is_read_or_said(
    nth: int, at: int, code: str, value: int, tmp_path: Path
) -> None:
    check(forged(tmp_path / "a.mcap", nth, at, code, value))


@pytest.mark.parametrize("value", [None, 1 << 31, 1 << 63, 1e300, "\ud800", [[1]], {}])
@pytest.mark.parametrize(
    "name", ["event", "connection", "node_id", "client_id", "client_address", "rules", "topic_id"]
)
def test_a_note_that_cannot_be_is_read_or_said(name: str, value: Any, tmp_path: Path) -> None:
    path = noted(tmp_path / "a.mcap", name, value)
    check(path)


def check(path: Path) -> None:
    """Check that each view can be read, or says which file is damaged."""
    for view in VIEWS:
        try:
            rows([path], view)
        except RecordingError as error:
            assert error.path == path and "is damaged" in str(error)
    try:
        list(recording.read(path))
    except RecordingError as error:
        assert error.path == path
