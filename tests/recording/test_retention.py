"""Files of recordings that are removed: which, when the disk is full, and what is told of them."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kproxy.cli import main
from kproxy.exchange.entries import Note
from kproxy.exchange.filter import parse
from kproxy.recording import Recording, RecordingError, read, recordings, recover
from kproxy.recording.excerpt import excerpt
from kproxy.recording.keeping import KEPT_FROM, KeepLimits
from kproxy.recording.notices import notice
from kproxy.recording.retention import Retention
from tests.bed.logged import to
from tests.recording.making import SETTINGS, START_NS, conversation, request, response, write

BY = "--keep 2"
MS = 1_000_000


def begun(path: Path, limits: KeepLimits, log: list[str] | None = None) -> Retention:
    """A recording with limits, each batch of which goes into a file of its own."""
    about = SETTINGS | {"start_ns": START_NS + MS, "metadata": {"keep": BY}}
    made = Recording(path, **about, rotate_ns=MS)
    return Retention(made, limits, BY, to(log if log is not None else []))


def fill(kept: Retention, files: int, first: int = 1) -> None:
    """Write this many files, each with an exchange."""
    for number in range(first, first + files):
        kept.recording.write([request(number, b"q" * 900), response(number, b"a" * 900)])


def remove(kept: Retention, files: int) -> list[str]:
    """Remove what is due when there are so many files; return the names."""
    due = kept.due()
    for file in due:
        kept.remove(file)
    kept.recording.write(kept.notes(START_NS + files * MS))
    return [file.path.name for file in due]


def told(paths: Any) -> list[str]:
    """What a reader says of the state of the recording."""
    notes: list[Note] = []
    list(read(paths, told=notes.append))
    return list(filter(None, map(notice, notes)))


def test_the_oldest_go_and_a_reader_says_once_by_what(tmp_path: Path) -> None:
    log: list[str] = []
    kept = begun(tmp_path / "run.mcap", KeepLimits(files=2), log)
    fill(kept, 5)
    assert remove(kept, 5) == ["run.mcap", "run-0002.mcap", "run-0003.mcap"]
    kept.recording.close()
    assert (kept.files_removed, len(log)) == (3, 3)
    (said,) = told(tmp_path)
    removed = f"of its recording: parts 1 to 3 were removed by {BY}"
    assert said.endswith(f"run-0004.mcap is part 4 {removed}")
    left = sorted(tmp_path.glob("*.mcap"))
    assert left == kept.recording.paths
    (said,) = told(left[1])
    beside = "part 4 is not read; it lies beside it: give all files, or their folder"
    assert said.endswith(f"{removed}; {beside}")


def test_files_of_earlier_runs_go_too_and_no_others(tmp_path: Path) -> None:
    write(tmp_path / "mine.mcap", [[request(1, b"q")]])
    (tmp_path / "notes.mcap").write_bytes(b"no recording")
    first = begun(tmp_path / "a.mcap", KeepLimits())
    fill(first, 3)
    other = begun(tmp_path / "b.mcap", KeepLimits())  # still being written
    fill(other, 2)
    first.recording.close()
    kept = begun(tmp_path / "c.mcap", KeepLimits(files=2))
    fill(kept, 1)
    assert remove(kept, 1) == ["a.mcap", "a-0002.mcap"]
    other.recording.close()
    kept.recording.close()
    (said,) = told([tmp_path / "a-0003.mcap", tmp_path / "c.mcap"])
    assert said.endswith(f"parts 1 to 2 were removed by {BY}")
    names = {path.name for path in tmp_path.glob("*.mcap")}
    assert names == {
        "mine.mcap", "notes.mcap", "a-0003.mcap", "b.mcap", "b-0002.mcap", "c.mcap"
    }  # fmt: skip


def test_a_full_disk_takes_what_the_oldest_file_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = begun(tmp_path / "run.mcap", KeepLimits(free_bytes=1))
    fill(kept, 3)
    pwritev = os.pwritev

    def full(fd: int, buffers: list[bytes], offset: int) -> int:
        if kept.files_removed < 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return pwritev(fd, buffers, offset)

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwritev", full)
        fill(kept, 1, 4)
    assert kept.files_removed == 1 and not (tmp_path / "run.mcap").exists()
    kept.recording.write(kept.notes(START_NS + 5 * MS))
    kept.recording.close()
    (said,) = told(tmp_path)
    assert said.endswith("part 1 was removed by a full disk")
    assert [exchange.number for exchange in read(tmp_path)] == [2, 3, 4]

    def hopeless(fd: int, buffers: list[bytes], offset: int) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    again = begun(tmp_path / "next.mcap", KeepLimits(free_bytes=1))
    with monkeypatch.context() as patched, pytest.raises(OSError, match="No space"):
        patched.setattr(os, "pwritev", hopeless)
        fill(again, 1)
    again.recording.close()


def test_an_excerpt_of_a_file_that_goes_has_what_matches(tmp_path: Path) -> None:
    kept = begun(tmp_path / "run.mcap", KeepLimits(size_bytes=1))
    fill(kept, 3)
    made = excerpt(tmp_path / "run-0002.mcap", parse("number:2"))
    assert made == tmp_path / "run-0002-kept.mcap" and excerpt(made, parse("number:9")) is None
    assert excerpt(tmp_path / "run-0002.mcap", parse("number:2")) == made, "again, after a kill"
    (exchange,) = read(made)
    assert (exchange.number == 2 and exchange.response is not None) or exchange.frames[1]
    (tmp_path / "run-kept.mcap").write_bytes(b"of somebody else")
    other = excerpt(tmp_path / "run.mcap", parse("number:1"))
    assert other == tmp_path / "run-kept-2.mcap"
    kept.recording.close()


def two_runs(folder: Path, *heads: dict[str, str]) -> list[Path]:
    """Two recordings, ten seconds between them, with this in their heads."""
    return [
        write(folder / f"{n}.mcap", conversation(), start_ns=START_NS + n * 10_000 * MS,
              metadata={"recording": f"run {n}", "part": "1"} | head)
        for n, head in enumerate(heads)
    ]  # fmt: skip


@pytest.mark.parametrize("kept", [(), (0,), (1,), (0, 1)])
def test_what_an_excerpt_leaves_out_was_recorded(tmp_path: Path, kept: tuple[int, ...]) -> None:
    of = {n: {KEPT_FROM: f"5eed/{n}"} for n in kept}
    said = told(two_runs(tmp_path, *({"keep": BY} | of.get(n, {}) for n in range(2))))
    assert ["was not recording" in each for each in said] == ([] if kept else [True])


@pytest.mark.parametrize("head", [{}, {"keep": BY}])
def test_who_was_killed_was_so_too_when_its_file_is_completed(
    tmp_path: Path, head: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    killed, _ = two_runs(tmp_path, head, head)
    os.truncate(killed, killed.stat().st_size - 1)
    _, before = told(tmp_path)
    assert before.endswith("it was killed, or the machine went down")
    recover(killed)
    assert told(tmp_path) == [before]
    for command in (["why", str(tmp_path), "group:no"], ["scan", str(tmp_path)],
                    ["diff", str(tmp_path), str(tmp_path)], ["why", str(tmp_path)]):  # fmt: skip
        main(command)
        assert capsys.readouterr().err.count(before) == (2 if command[0] == "diff" else 1), command


KILLED = """
import os, signal, sys
from kproxy.recording import excerpt
excerpt.stand_behind = lambda: None  # it would wait until nobody else works
if moment := sys.argv.pop(1):
    setattr(os, moment, lambda *given: os.kill(os.getpid(), signal.SIGKILL))
excerpt.main()
"""


def test_who_is_killed_while_an_excerpt_is_made_loses_nothing(tmp_path: Path) -> None:
    batches = [[request(n, b"q" * 2000), response(n, b"a" * 2000)] for n in range(1, 40)]
    path = write(tmp_path / "run.mcap", batches)
    given = "number:1..30", str(path)
    for moment in ("pwritev", "fsync", "replace"):
        killed = subprocess.run([sys.executable, "-c", KILLED, moment, *given])
        assert killed.returncode == -signal.SIGKILL
        unfinished = tmp_path / ".run-kept"
        assert set(tmp_path.iterdir()) == {path, unfinished} and len(list(read(path))) == 39
    subprocess.run([sys.executable, "-c", KILLED, "", *given], check=True)
    left = {each.name: len(list(read(each))) for each in tmp_path.iterdir()}
    assert left == {"run-kept.mcap": 30, "run.mcap": 39}


def test_a_file_of_a_folder_that_is_removed_meanwhile_is_left_out(tmp_path: Path) -> None:
    there = [write(tmp_path / f"{name}.mcap", [[request(1, b"q")]]) for name in "ac"]
    gone = tmp_path / "b.mcap"
    gone.symlink_to(tmp_path / "removed")
    assert recordings(tmp_path) == there
    with pytest.raises(RecordingError, match="does not exist"):
        recordings([*there, gone])
