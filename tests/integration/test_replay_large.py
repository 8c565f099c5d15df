"""A large recording: the first start says how far it is, the next ones know what there is."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from tests.recording import making
from tests.replay.making import Recorded, batch

BATCHES = 36
"""Of a MiB each."""
AT_ONCE = """
import sys
from kproxy.cli import main
from kproxy.look.lines import progress

progress.AFTER_SECONDS = progress._EVERY_SECONDS = 0
sys.exit(main())
"""
"""kproxy, on a machine so slow that all progress is worth showing."""


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One that is worth an index."""
    recorded = Recorded().metadata()
    for number in range(BATCHES):
        recorded.fetched(batch(os.urandom(1 << 19).hex(), base_offset=number), offset=number)
    path = tmp_path_factory.mktemp("large") / "large.mcap"
    return making.write(path, ([entry] for entry in recorded.entries))


def start(recording: Path, cache: Path, terminal: bool) -> str:
    """Start a replay and end it when it listens; what it said on stderr."""
    reading, writing = pty.openpty() if terminal else os.pipe()
    command = [sys.executable, "-c", AT_ONCE, "replay", str(recording), "--listen", "127.0.0.1:0"]
    env = os.environ | {"XDG_CACHE_HOME": str(cache)}
    try:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=writing, text=True, env=env
        )
        with process:
            os.set_blocking(reading, False)
            assert process.stdout and process.stdout.readline().startswith("127.0.0.1:")
            process.terminate()
        assert process.returncode == 0
        return os.read(reading, 1 << 20).decode()
    finally:
        os.close(reading)
        os.close(writing)


def test_the_first_start_shows_progress_and_the_next_has_none(
    recording: Path, tmp_path: Path
) -> None:
    first, second = (start(recording, tmp_path, terminal=True) for _ in range(2))
    assert "kproxy replay: ━" in first and "%" in first
    assert "━" not in second
    for said in first, second:
        assert f"1 topic, {BATCHES} batches" in said
    assert len(list((tmp_path / "kproxy" / "replay").iterdir())) == 1


def test_a_log_has_no_progress_in_it(recording: Path, tmp_path: Path) -> None:
    said = start(recording, tmp_path, terminal=False)
    assert "━" not in said and f"{BATCHES} batches" in said
