"""Streams without Spark: which files they follow, and how far, over restarts."""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kproxy import recording
from kproxy.recording import RecordingError
from kproxy.spark.stream import StreamReader
from kproxy.tables import reading
from kproxy.tables.views import chosen
from tests.bed import needs
from tests.recording import making

pytest.importorskip("pyspark")

DEMO = needs.REPOSITORY / "recordings" / "demo.mcap"
OTHER = needs.REPOSITORY / "tests" / "exchange" / "mock_cluster.mcap"
THIRD = needs.REPOSITORY / "tests" / "recording" / "formats" / "3" / "kafkajs.mcap"


def reader(path: Path) -> StreamReader:
    """One of the view `exchanges`."""
    schema: Any = None
    return StreamReader((str(path),), "exchanges", schema, 1 << 27)


def count(path: Path) -> int:
    """How many rows a recording has."""
    return len(list(recording.read(path)))


class Query:
    """What Spark does with a reader, whose checkpoint is JSON."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.offset: dict[str, Any] = {}
        self.restart()

    def restart(self) -> None:
        """Go on with another process."""
        self.reader = reader(self.path)

    def batch(self) -> int:
        """Read what there is now; return how many rows that is."""
        start = json.loads(json.dumps(self.offset))
        end = json.loads(json.dumps(self.reader.latestOffset(start)))
        parts: Any = self.reader.partitions(start, end) if start != end else []
        self.offset = end
        columns = chosen("exchanges")
        return sum(
            len(each)
            for part in parts
            for stretch in part.stretches
            for each in reading.record_batches(stretch, "exchanges", columns)
        )


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        here = os.getcwd()
        os.chdir(path.parent)
        try:
            bound.bind(path.name)
        finally:
            os.chdir(here)


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda path: path.write_bytes(b"hello, I am no mcap" * 100), "bad.mcap: is "),
        (lambda path: path.mkdir(), "bad.mcap: is not a file"),
        (lambda path: path.symlink_to("/nowhere"), "bad.mcap: does not exist"),
        (lambda path: path.symlink_to(path.name), "bad.mcap: cannot be read: "),
        (os.mkfifo, "bad.mcap: is not a file"),
        (_socket, "bad.mcap: is not a file"),
        (lambda path: path.touch(), ""),
        (lambda path: path.write_bytes(DEMO.read_bytes()[:20]), ""),
    ],
    ids=["foreign", "folder", "dangling", "ring", "fifo", "socket", "empty", "just begun"],
)
@pytest.mark.parametrize("pattern", ["", "*.mcap"])
def test_a_bad_file_in_a_folder_is_left_out_and_said_once(
    make: Callable[[Path], Any],
    what: str,
    pattern: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    query = Query(tmp_path / pattern)
    assert query.batch() == 0, "there is nothing yet"
    make(tmp_path / "bad.mcap")
    assert query.batch() == 0, "nor with a bad one alone"
    shutil.copy(DEMO, tmp_path / "a.mcap")
    if pattern and (tmp_path / "bad.mcap").is_dir():
        what = ""  # what matches is a folder with recordings, which has none yet
    assert query.batch() == count(DEMO)
    shutil.copy(OTHER, tmp_path / "b.mcap")
    assert query.batch() == count(OTHER)
    said = capsys.readouterr().err
    assert what in said and said.count("\n") == bool(what)
    if not what and (tmp_path / "bad.mcap").is_file():
        (tmp_path / "bad.mcap").write_bytes(THIRD.read_bytes())
        assert query.batch() == count(THIRD), "it was waited for"


def test_a_folder_that_is_not_there_is_said_once_and_waited_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    query = Query(tmp_path / "mistyped")
    assert (query.batch(), query.batch()) == (0, 0)
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and f"{tmp_path}/mistyped: is not there yet" in said
    (tmp_path / "mistyped").mkdir()
    shutil.copy(DEMO, tmp_path / "mistyped")
    assert query.batch() == count(DEMO)


def test_a_bad_file_that_was_named_is_said(tmp_path: Path) -> None:
    path = tmp_path / "bad.mcap"
    assert Query(path).batch() == 0
    path.touch()
    assert Query(path).batch() == 0
    path.write_bytes(b"hello, I am no mcap" * 100)
    with pytest.raises(RecordingError, match=r"bad\.mcap"):
        Query(path).batch()


@pytest.mark.parametrize("restart", [True, False])
@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize(("first", "second"), [(DEMO, OTHER), (OTHER, DEMO)])
def test_another_recording_under_the_same_name_is_read_whole(
    first: Path, second: Path, in_place: bool, restart: bool, tmp_path: Path
) -> None:
    path = tmp_path / "a.mcap"
    shutil.copy(first, path)
    query = Query(tmp_path)
    assert query.batch() == count(first)
    if not in_place:
        path.rename(tmp_path / "a.old")
    shutil.copy(second, path)
    if restart:
        query.restart()
    assert query.batch() == count(second)
    assert query.batch() == 0


@pytest.mark.parametrize("restart", [True, False])
def test_a_file_that_lost_what_was_read_is_said(restart: bool, tmp_path: Path) -> None:
    path = making.write(
        tmp_path / "a.mcap",
        [[making.request(n, b"ask"), making.response(n, b"ok")] for n in range(1, 50)],
    )
    query = Query(tmp_path)
    assert query.batch() == 49
    os.truncate(path, query.offset[str(path)][0] // 2)
    if restart:
        query.restart()
    with pytest.raises(RecordingError, match=r"ends at byte .* give each recording its own name"):
        query.batch()


@pytest.mark.parametrize("restart", [True, False])
def test_a_file_that_is_completed_elsewhere_goes_on(restart: bool, tmp_path: Path) -> None:
    batches = [[making.request(n, b"ask"), making.response(n, b"ok")] for n in range(1, 50)]
    whole = making.write(tmp_path / "whole", batches)
    path = tmp_path / "a.mcap"
    path.write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
    query = Query(tmp_path)
    some = query.batch()
    assert 0 < some < 49
    whole.rename(path)
    if restart:
        query.restart()
    assert query.batch() == 49 - some


def test_checkpoints_of_older_versions_go_on(tmp_path: Path) -> None:
    path = tmp_path / "a.mcap"
    shutil.copy(DEMO, path)
    query = Query(tmp_path)
    assert query.batch() == count(DEMO)
    query.offset = {str(path): query.offset[str(path)][0]}
    query.restart()
    assert query.batch() == 0
    shutil.copy(OTHER, tmp_path / "b.mcap")
    assert query.batch() == count(OTHER)


def test_what_was_to_be_read_and_is_another_recording_now_is_said(tmp_path: Path) -> None:
    path = tmp_path / "a.mcap"
    shutil.copy(DEMO, path)
    end = reader(tmp_path).latestOffset({})
    shutil.copy(OTHER, path)
    with pytest.raises(RecordingError, match="is another recording now"):
        reader(tmp_path).partitions({}, end)
