"""Which recordings paths stand for, and how often their files are opened for that."""

from __future__ import annotations

import io
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from kproxy.look.lines.show import show_connection
from kproxy.recording.file import RecordingFile
from kproxy.recording.paths import by_recording, ids, names
from tests.bed import needs

DEMO = needs.REPOSITORY / "recordings" / "demo.mcap"
OTHER = needs.REPOSITORY / "tests" / "exchange" / "mock_cluster.mcap"


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each file was opened."""
    found: Counter[str] = Counter()
    open_file = RecordingFile.__init__

    def counted(self: RecordingFile, path: Path, *args: Any, **options: Any) -> None:
        found[Path(path).name] += 1
        open_file(self, path, *args, **options)

    monkeypatch.setattr(RecordingFile, "__init__", counted)
    return found


def test_finding_recordings_opens_each_file_once(tmp_path: Path, opened: Counter[str]) -> None:
    for file in (DEMO, OTHER):
        shutil.copy(file, tmp_path)
    found = by_recording(tmp_path)
    assert sorted(names(found).values()) == ["demo", "mock_cluster"] and len(ids(found)) == 2
    assert opened == {"demo.mcap": 1, "mock_cluster.mcap": 1}


def test_a_file_that_is_alone_is_opened_for_its_head(opened: Counter[str]) -> None:
    (alone,) = by_recording(DEMO)
    assert names([alone]) == {} and not opened
    assert alone.head.start_ns == alone.heads[0].start_ns > 0 and opened == {"demo.mcap": 1}


def test_the_name_of_a_file_cannot_steer_a_terminal(tmp_path: Path) -> None:
    hostile = tmp_path / "a\x1b[2J.mcap"
    shutil.copy(DEMO, hostile)
    out = io.StringIO()
    assert show_connection([hostile, OTHER], "1", out)
    assert "\x1b" not in out.getvalue() and "a\\x1b[2J:\n" in out.getvalue()
