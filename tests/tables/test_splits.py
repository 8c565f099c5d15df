"""Plans of what tasks read."""

from __future__ import annotations

import functools
import shutil
from pathlib import Path
from typing import Any
from unittest import mock

import hypothesis
import pytest
from hypothesis import strategies as st

from kproxy import recording, tables
from kproxy.recording import Recording, Writer, writer
from kproxy.tables import reading, splits
from kproxy.tables.views import chosen
from tests.bed import needs
from tests.recording import killed_pending
from tests.recording.making import SETTINGS, conversation, request, response, write

RECORDINGS = needs.REPOSITORY / "recordings"
COLUMNS = [
    "number", "time", "client_id", "api", "broker_ms", "queued_ms", "service_ms", "fault_ms",
    "held_behind", "unanswered", "topics", "errors", "request_bytes", "response_bytes",
    "request_frame", "response_frame",
]  # fmt: skip


@pytest.fixture(scope="module", params=["an index", "no index"])
def rotated(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording of some files, over which exchanges of every kind are pending."""
    folder = tmp_path_factory.mktemp("rotated")
    size = 0 if request.param == "an index" else 1 << 30
    with mock.patch.object(writer, "FILE_BYTES_MIN", size):
        rotated = Recording(folder / "a.mcap", rotate_bytes=12_000, **SETTINGS)
        rotated.write(list(killed_pending.first()))
        for number in range(10, 600, 9):
            rotated.write([
                entry
                for each in range(number, number + 9)
                for entry in killed_pending.answered(each)
            ])  # fmt: skip
        rotated.close()
    return folder


@functools.cache
def whole(path: Path) -> list[dict[str, Any]]:
    """The rows of a recording that is not split, and of them those that `kproxy show` shows."""
    rows = tables.read(path, columns=COLUMNS).read_all().to_pylist()
    assert [row["number"] for row in rows] == [each.number for each in recording.read(path)]
    return rows


@hypothesis.given(st.integers(1, 20_000), st.integers(1, 5))
@hypothesis.settings(max_examples=15)
def test_a_recording_that_is_split_anywhere_has_the_same_rows(
    rotated: Path, size: int, lead_batches: int
) -> None:
    for path in (RECORDINGS / "demo.mcap", rotated):
        found = splits.stretches(splits.find([str(path)]), size, lead_batches=lead_batches)
        rows = [
            row
            for each in found
            for batch in reading.record_batches(each, "exchanges", chosen("exchanges", COLUMNS))
            for row in batch.to_pylist()
        ]
        assert rows == whole(path)


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
