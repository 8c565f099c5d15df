"""Plans of what tasks read."""

from __future__ import annotations

import shutil
from pathlib import Path

from kproxy.tables import splits
from tests.bed import needs

RECORDINGS = needs.REPOSITORY / "recordings"


def test_files_are_looked_for_once(tmp_path: Path) -> None:
    shutil.copy(RECORDINGS / "demo.mcap", tmp_path / "first.mcap")
    (tmp_path / "empty.mcap").touch()
    found = splits.find([str(tmp_path)])
    for path in (tmp_path / "second.mcap", tmp_path / "empty.mcap"):
        shutil.copy(RECORDINGS / "demo.mcap", path)
    told: list[str] = []
    assert {each.path for each in splits.stretches(found, told=told.append)} == {
        str(tmp_path / "first.mcap")
    }
    assert found.bytes == (tmp_path / "first.mcap").stat().st_size
    assert told == [f"{tmp_path}/empty.mcap: is empty: nothing was recorded into it"]
