"""Telling files that grow from files that were left."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kproxy.recording import RecordingError
from kproxy.recording.files import being_written, lock, open_recording
from tests.recording.making import refusing


def test_a_lock_lasts_as_long_as_its_descriptor(tmp_path: Path) -> None:
    path = tmp_path / "a.mcap"
    path.touch()
    fd, second = os.open(path, os.O_RDWR), os.open(path, os.O_RDWR)
    with open_recording(path) as file:
        assert not being_written(file)
        assert lock(fd) and not lock(second)
        assert being_written(file)
        os.close(fd)
        assert not being_written(file)
        assert lock(second)
    os.close(second)


def test_locks_that_do_not_exist_are_no_obstacle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.mcap"
    path.touch()

    with open_recording(path) as file:
        monkeypatch.setattr("kproxy.recording.files.fcntl.flock", refusing(38))
        assert lock(file.fileno()) and not being_written(file)
        monkeypatch.setattr("kproxy.recording.files.fcntl", None)
        assert lock(file.fileno()) and not being_written(file)


def test_what_is_not_a_file_is_refused(tmp_path: Path) -> None:
    for path, what in ((tmp_path, "is not a file"), (tmp_path / "no", "does not exist")):
        with pytest.raises(RecordingError, match=what):
            open_recording(path)
