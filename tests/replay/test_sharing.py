"""A small recording is read once by a process, for all tests that share it; each begins anew."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from kproxy.recording.opened import OpenRecordings
from kproxy.replay.opening import Wanted, open_recorded
from tests.bed import needs

DEMO = needs.REPOSITORY / "recordings" / "demo.mcap"


def test_it_is_read_once_until_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path(shutil.copy(DEMO, tmp_path / "demo.mcap"))
    read, exchanges = [], OpenRecordings.exchanges

    def counted(self: OpenRecordings, *given: object):
        read.append(self)
        return exchanges(self, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(OpenRecordings, "exchanges", counted)
    first, second = (open_recorded([path], Wanted()).loaded for _ in range(2))
    assert len(read) == 1
    assert first.cluster.topics.keys() == second.cluster.topics.keys() != set()
    first.cluster.topics.clear()  # as a client that deletes topics
    assert open_recorded([path], Wanted()).loaded.cluster.topics.keys() == (
        second.cluster.topics.keys()
    )
    open_recorded([path], Wanted(faults=True))
    assert len(read) == 2
    os.utime(path, ns=(1, 1))
    open_recorded([path], Wanted())
    assert len(read) == 3
