"""Streams without Spark: which files they follow, and how far, over restarts."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kproxy import recording
from kproxy.recording import RecordingError
from tests.bed import needs
from tests.recording import making

pytest.importorskip("pyspark")

from tests.spark.test_admission import Query

DEMO = needs.REPOSITORY / "recordings" / "demo.mcap"
OTHER = needs.REPOSITORY / "tests" / "exchange" / "mock_cluster.mcap"
THIRD = needs.REPOSITORY / "tests" / "recording" / "formats" / "3" / "kafkajs.mcap"


def count(path: Path) -> int:
    """How many rows a recording has."""
    return len(list(recording.read(path)))


def took(query: Query) -> int:
    """How many rows there are now that were not read."""
    return query.batches[-1] if query.batch() else 0


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
def test_a_bad_file_in_a_folder_is_left_out_and_said_once(
    make: Callable[[Path], Any],
    what: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    query = Query(tmp_path)
    assert took(query) == 0, "there is nothing yet"
    make(tmp_path / "bad.mcap")
    assert took(query) == 0, "nor with a bad one alone"
    shutil.copy(DEMO, tmp_path / "a.mcap")
    assert took(query) == count(DEMO)
    shutil.copy(OTHER, tmp_path / "b.mcap")
    assert took(query) == count(OTHER)
    said = capsys.readouterr().err
    assert what in said and said.count("\n") == bool(what)
    if not what and (tmp_path / "bad.mcap").is_file():
        (tmp_path / "bad.mcap").write_bytes(THIRD.read_bytes())
        assert took(query) == count(THIRD), "it was waited for"


def test_a_folder_that_is_not_there_is_said_once_and_waited_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    query = Query(tmp_path / "mistyped")
    assert (took(query), took(query)) == (0, 0)
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and f"{tmp_path}/mistyped: is not there yet" in said
    (tmp_path / "mistyped").mkdir()
    shutil.copy(DEMO, tmp_path / "mistyped")
    assert took(query) == count(DEMO)


def test_a_bad_file_that_was_named_is_said(tmp_path: Path) -> None:
    path = tmp_path / "bad.mcap"
    assert took(Query(path)) == 0
    path.touch()
    assert took(Query(path)) == 0
    path.write_bytes(b"hello, I am no mcap" * 100)
    with pytest.raises(RecordingError, match=r"bad\.mcap"):
        took(Query(path))


@pytest.mark.parametrize("restart", [True, False])
def test_a_file_that_lost_what_was_read_is_said(restart: bool, tmp_path: Path) -> None:
    path = making.write(
        tmp_path / "a.mcap",
        [[making.request(n, b"ask"), making.response(n, b"ok")] for n in range(1, 50)],
    )
    query = Query(tmp_path)
    assert took(query) == 49
    os.truncate(path, query.offset[str(path)][0] // 2)
    if restart:
        query.restart()
    with pytest.raises(RecordingError, match=r"ends at byte .* give each recording its own name"):
        took(query)


def test_what_was_to_be_read_and_is_another_recording_now_is_said(tmp_path: Path) -> None:
    path = tmp_path / "a.mcap"
    shutil.copy(DEMO, path)
    end = Query(tmp_path).plan()
    shutil.copy(OTHER, path)
    with pytest.raises(RecordingError, match="is another recording now"):
        Query(tmp_path).reader.partitions({}, end)
