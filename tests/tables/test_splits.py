"""Plans of what tasks read."""

from __future__ import annotations

import shutil
from pathlib import Path

from kproxy import tables
from kproxy.recording import Writer
from kproxy.tables import splits
from tests.bed import needs
from tests.recording.making import SETTINGS, conversation, request, response, write

RECORDINGS = needs.REPOSITORY / "recordings"


def test_files_are_looked_for_once(tmp_path: Path) -> None:
    shutil.copy(RECORDINGS / "demo.mcap", tmp_path / "first.mcap")
    (tmp_path / "empty.mcap").touch()
    found = splits.find([str(tmp_path)])
    for path in (tmp_path / "second.mcap", tmp_path / "empty.mcap"):
        shutil.copy(RECORDINGS / "demo.mcap", path)
    told: list[str] = []
    assert {each.path for each in splits.stretches(found, on_message=told.append)} == {
        str(tmp_path / "first.mcap")
    }
    assert found.bytes == (tmp_path / "first.mcap").stat().st_size
    assert told == [f"{tmp_path}/empty.mcap: is empty: nothing was recorded into it"]


def test_recordings_without_an_id_of_the_same_file_name_are_told_apart(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a/cut.mcap", "b/cut.mcap", "b/other.mcap")]
    for path in paths:
        path.parent.mkdir(exist_ok=True)
        write(path, conversation())
    found = tables.read(list(map(str, paths))).read_all()
    names = [*map(str, paths[:2]), "other"]
    assert set(found["recording"].to_pylist()) == set(names)
    assert set(tables.read(paths[0]).read_all()["recording"].to_pylist()) == {"cut"}


def test_of_many_files_without_an_index_none_is_passed_over(tmp_path: Path) -> None:
    first = tmp_path / "recording.mcap"
    writer = Writer(first, **SETTINGS)
    for number in range(1, 60):
        writer.write([request(number, b"ask"), response(number, b"ok")])
    writer.close()
    for number in range(15):
        shutil.copy(first, tmp_path / f"recording-{number}.mcap")
    few, many = (
        splits.stretches(splits.find(every), first.stat().st_size // 3, lead_batches=2)
        for every in ([str(first)], [str(tmp_path)])
    )
    assert len(few) == 3
    assert len(many) == 16
