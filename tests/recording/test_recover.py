"""Completing torn recordings; and that a writer can be killed at any time."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from mcap.records import ChunkIndex

from kproxy.cli import main
from kproxy.exchange.entries import Note, each_frame
from kproxy.recording import RecordingError, Writer, entries, read, recover, verify
from tests.recording import killed
from tests.recording.making import (
    SETTINGS,
    conversation,
    cuts,
    oracle,
    oracle_accepts,
    plains,
    refusing,
    request,
    rewrite,
    write,
)
from tests.versions import ALL

ROOT = Path(__file__).parents[2]
KILLS = 200 if ALL else 8
"""How often a writer is killed."""


def said(path: Path) -> list[tuple]:
    """What is said of exchanges, and their frames."""
    positions = {"request_position": 0, "response_position": 0}
    return [
        (exchange.row._replace(**positions), exchange.request_frame, exchange.response_frame)
        for exchange in read(path)
    ]


@pytest.mark.parametrize("compression", ["adaptive", "none"])
def test_a_file_cut_anywhere_is_completed(tmp_path: Path, compression: str) -> None:
    path = write(tmp_path / "a.mcap", conversation(), compression=compression)
    whole = path.read_bytes()
    head_bytes = min(r.chunk_start_offset for r in oracle(path) if isinstance(r, ChunkIndex))
    completed = 0
    for end in cuts(path):
        path.write_bytes(whole[:end])
        *before, _ = entries(path)
        if end < head_bytes:
            continue
        told = said(path)
        done = recover(path)
        *after, closing = entries(path)
        assert not done.was_complete and done.entries == len(before)
        assert plains(after) == plains(before)
        assert closing.body == {"event": "recovered", "dropped_bytes": done.dropped_bytes}
        assert said(path) == told
        verify(path)
        assert oracle(path)
        recovered = path.read_bytes()
        assert recover(path).was_complete
        assert path.read_bytes() == recovered
        completed += 1
    assert completed > 30


def test_a_complete_file_is_left_alone(tmp_path: Path) -> None:
    path = write(tmp_path / "a.mcap", conversation())
    before = path.read_bytes()
    done = recover(path)
    assert done.was_complete and "nothing to do" in str(done)
    assert path.read_bytes() == before


def test_what_was_done_is_said(tmp_path: Path) -> None:
    path = write(tmp_path / "a.mcap", [[request(1, b"one")], [request(2, b"two")]])
    os.truncate(path, path.stat().st_size - 800)
    done = recover(path)
    assert str(done) == (
        f"{path}: completed; {done.entries} entries are safe, "
        f"{done.dropped_bytes} bytes of an unfinished chunk were dropped"
    )


class Killed(BaseException):
    """Ends a recovery as a kill would: nothing in it runs on."""


def killing_write(failing: int, share: float) -> Callable[[int, list[bytes], int], int]:
    """A pwritev of which one call writes only a share of its bytes, and then all is over."""
    pwritev, calls = os.pwritev, itertools.count()

    def put(fd: int, buffers: list[bytes], at: int) -> int:
        data = b"".join(buffers)
        if next(calls) < failing:
            return pwritev(fd, [data], at)
        pwritev(fd, [data[: int(len(data) * share)]], at)
        raise Killed

    return put


def test_recovery_can_be_killed_at_any_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "a.mcap", conversation())
    whole = path.read_bytes()
    torn = whole[: whole.rindex(b"\x0f\x04\0\0\0\0\0\0\0") - 70]
    path.write_bytes(torn)
    *before, _ = plains(entries(path))
    for failing, share in itertools.product(range(4), (0.0, 0.5, 1.0)):
        path.write_bytes(torn)
        with monkeypatch.context() as patched:
            patched.setattr(os, "pwritev", killing_write(failing, share))
            with contextlib.suppress(Killed):
                recover(path)
        assert plains(entries(path))[: len(before)] == before
        recover(path)
        verify(path)
        *after, closing = entries(path)
        assert plains(after) == before
        assert closing.body["event"] == "recovered"


def test_a_full_disk_leaves_a_torn_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "a.mcap", conversation())
    os.truncate(path, path.stat().st_size - 10)
    before = plains(entries(path))[:-1]

    monkeypatch.setattr(os, "pwritev", refusing(28))
    assert main(["recover", str(path)]) == 1
    assert capsys.readouterr().err == f"kproxy recover: {path}: No space left on device\n"
    assert plains(entries(path))[:-1] == before


def test_a_file_that_is_being_written_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.mcap"
    writer = Writer(path, **SETTINGS)
    writer.write([request(1, b"one")])
    before = path.read_bytes()
    with pytest.raises(RecordingError, match="is still being written"):
        recover(path)
    assert path.read_bytes() == before
    writer.close()
    assert recover(path).was_complete


def test_what_cannot_be_recovered_says_why(tmp_path: Path) -> None:
    path = write(tmp_path / "a.mcap", conversation(), compression="none")
    copy = rewrite(path, tmp_path / "b.mcap")
    os.truncate(copy, copy.stat().st_size - 9)
    with pytest.raises(RecordingError, match="complete it with `mcap recover`"):
        recover(copy)
    data = path.read_bytes()
    path.write_bytes(data.replace(b"x" * 90, b"y" * 90)[:-20])
    with pytest.raises(RecordingError, match="is damaged"):
        recover(path)
    for size in (500, 5):
        path.write_bytes(data[:size])
        with pytest.raises(RecordingError, match="there is nothing to recover, delete it"):
            recover(path)
    path.write_bytes(b"")
    with pytest.raises(RecordingError, match="is empty"):
        recover(path)


def test_a_file_that_may_not_be_written_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "a.mcap", conversation())
    os.truncate(path, path.stat().st_size - 9)

    monkeypatch.setattr(os, "open", refusing(13))
    with pytest.raises(RecordingError, match="cannot be completed: Permission denied"):
        recover(path)


def test_a_writer_that_is_killed_leaves_everything_that_it_said_it_wrote(tmp_path: Path) -> None:
    chance = random.Random(20)
    for seed in range(KILLS):
        path = tmp_path / f"{seed}.mcap"
        program = [sys.executable, "-m", "tests.recording.killed", str(path), str(seed)]
        with subprocess.Popen(program, stdout=subprocess.PIPE, cwd=ROOT) as writer:
            for _ in range(chance.randrange(1, 40)):
                said = int(writer.stdout.readline())
            writer.kill()
        expected = each_frame(itertools.chain.from_iterable(killed.batches(seed)))
        *read, torn = entries(path)
        assert isinstance(torn, Note) and torn.body["event"] == "torn"
        assert len(read) >= said
        assert plains(read) == plains(itertools.islice(expected, len(read)))
        assert recover(path).entries == len(read)
        verify(path)
        assert oracle_accepts(path.read_bytes())
        path.unlink()
