"""Recordings whose checksums are right, and whose values are such as kproxy never writes."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kproxy import recording
from kproxy.recording import RecordingError
from kproxy.recording.layout import FIRST, Channel
from tests.bed import needs
from tests.recording.making import rewrite
from tests.tables.test_reading import rows

DEMO = needs.REPOSITORY / "recordings" / "demo.mcap"
EXCHANGE_TABLE, FRAME_TABLE = FIRST[Channel.EXCHANGES], FIRST[Channel.FRAMES]
VIEWS = ("exchanges", "records", "frames", "events")


def forged(path: Path, schema: Any, name: str, index: int, value: int, code: str) -> Path:
    """A recording with one other value in a column of its first table."""
    done = False

    def change(data: bytes) -> bytes:
        nonlocal done
        try:
            columns = schema.decode(memoryview(data))
        except (ValueError, struct.error):
            return data
        column = columns[[each.name for each in schema.columns].index(name)]
        if done or len(column) <= index:
            return data
        done = True
        at = np.frombuffer(column, np.uint8).ctypes.data - np.frombuffer(data, np.uint8).ctypes.data
        new = bytearray(data)
        struct.pack_into(code, new, at + index * struct.calcsize(code), value)
        return bytes(new)

    rewrite(DEMO, path, change=change)
    assert done
    return path


def noted(path: Path, name: str, value: Any) -> Path:
    """A recording in whose notes a name has another value."""

    def change(data: bytes) -> bytes:
        if data[:1] != b"{":
            return data
        return json.dumps({**json.loads(data), name: value}).encode()

    rewrite(DEMO, path, change=change)
    return path


@pytest.mark.parametrize(
    ("schema", "name", "index", "value", "code"),
    [
        (EXCHANGE_TABLE, "response_received_ns", 0, -(1 << 63), "<q"),
        (EXCHANGE_TABLE, "request_received_ns", 2, -1, "<q"),
        (EXCHANGE_TABLE, "request_received_ns", 1, (1 << 63) - 1, "<q"),
        (FRAME_TABLE, "heads", 1, 1 << 41, "<q"),
        (FRAME_TABLE, "heads", 1, 40000 << 16 | 3, "<q"),
        (FRAME_TABLE, "side", 0, 100, "<b"),
        (FRAME_TABLE, "side", 0, -1, "<b"),
        (FRAME_TABLE, "received_ns", 0, -(1 << 63), "<q"),
    ],
)
def test_a_value_that_cannot_be_is_read_or_said(
    schema: Any, name: str, index: int, value: int, code: str, tmp_path: Path
) -> None:
    path = forged(tmp_path / "a.mcap", schema, name, index, value, code)
    check(path)


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
