"""Recordings that are small, and cut nevertheless."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pytest

from kproxy import recording
from kproxy.recording import recovery, writer


@pytest.fixture(scope="session")
def indexed(broken: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recording of `broken`, whose files have an index of their chunks."""
    folder = tmp_path_factory.mktemp("indexed")
    with (
        mock.patch.object(recovery, "FILE_BYTES_MIN", 0),
        mock.patch.object(writer, "FILE_BYTES_MIN", 0),
    ):
        for path in broken.glob("*.mcap"):
            (folder / path.name).write_bytes(path.read_bytes()[:-9])
            recording.recover(folder / path.name)
    return folder
