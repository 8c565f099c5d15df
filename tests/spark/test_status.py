"""What `kproxy analyze` says while it works, and when it is stopped."""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest

pytest.importorskip("pyspark")

from kproxy.analyze import appending
from kproxy.analyze.making import Making
from kproxy.analyze.place import Place
from kproxy.commands import analyze


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ("looking for what is new", ""),
        ("reading: 0 of 1 parts", "stopped: the run that was being made is not added"),
        ("making tables: 3 of 7", "stopped: the run that was being made is not added"),
    ],
)
def test_a_run_that_is_thrown_away_is_told(
    status: str,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def follow(making: Making, *_: Any) -> Iterator[None]:
        making.on_status("looking for what is new")
        yield None
        making.on_status(status)
        raise KeyboardInterrupt

    monkeypatch.setattr(appending, "follow", follow)
    options = argparse.Namespace(files=[str(tmp_path)], follow=True, every=None)
    work, _ = analyze._adding(options, Place(tmp_path / "lake"))
    spark: Any = None
    assert work is not None
    with pytest.raises(KeyboardInterrupt):
        work(Making(spark))
    assert capsys.readouterr().err == (said and f"kproxy analyze: {said}\n")


def test_steps_are_printed_in_a_pipe_and_waiting_once(capsys: pytest.CaptureFixture[str]) -> None:
    looking, waiting = "looking for what is new", "waiting for what comes"
    run = ["reading: 0 of 1 parts", "reading: 1 of 1 parts", "making tables: 0 of 7", ""]
    with analyze._status_line("looking") as on_status:
        for text in [looking, *run, waiting, *[looking, waiting] * 3, looking, *run]:
            on_status(text)
    begun = [looking, run[0], run[2], waiting, looking, run[0], run[2]]
    assert capsys.readouterr().err.splitlines() == [f"kproxy analyze: {each} …" for each in begun]


def test_a_status_that_stands_shows_for_how_long(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(analyze.time, "monotonic", lambda: now)
    master, terminal = os.openpty()
    with open(master, "rb", 0) as shown:
        with open(terminal, "w") as stderr:
            monkeypatch.setattr("sys.stderr", stderr)
            with analyze._status_line("looking") as on_status:
                on_status("reading: 0 of 1 parts")
                now += 12.3
                on_status("reading: 0 of 1 parts")
                on_status("making tables: 3 of 7")
        painted = everything(shown)
    assert painted.split("\r\x1b[K")[2:] == [
        "reading: 0 of 1 parts …",
        "reading: 0 of 1 parts, 12 s …",
        "making tables: 3 of 7 …",
        "",
    ]


def everything(terminal: IO[bytes]) -> str:
    """What was written to a terminal that is closed; one read may return a part of it."""
    pieces: list[bytes] = []
    with contextlib.suppress(OSError):  # its end
        while piece := terminal.read(10_000):
            pieces.append(piece)
    return b"".join(pieces).decode()


@pytest.mark.parametrize("reader", ["full", "gone"])
def test_what_was_made_is_there_though_nobody_reads(reader: str) -> None:
    code = "from kproxy.commands.analyze import _say; _say('12 exchanges: out/report.html')"
    ours, theirs = os.pipe()
    os.close(ours)
    with open("/dev/full", "wb") if reader == "full" else os.fdopen(theirs, "wb") as out:
        done = subprocess.run([sys.executable, "-c", code], stdout=out, stderr=subprocess.PIPE)
    said = done.stderr.decode().splitlines()
    if reader == "full":
        os.close(theirs)
    assert done.returncode == 0
    assert [line.rpartition(": ")[2] for line in said] == (
        ["No space left on device"] if reader == "full" else []
    )
