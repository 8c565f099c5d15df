"""What `kproxy analyze` says while it works and when it is stopped, with a Spark that does nothing;
and how a Spark starts whose archive of classes is damaged."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

pytest.importorskip("pyspark")
import pyspark.sql as pyspark_sql
from pyspark.errors import PySparkException

from kproxy.analyze import appending, job
from kproxy.analyze.job import Analysis
from kproxy.analyze.making import MadeTables, TableMaker
from kproxy.analyze.place import Place
from kproxy.cli import main
from kproxy.look.report.part import ReportPart
from kproxy.spark import java
from tests.bed import needs

session = importlib.import_module("kproxy.spark.session")  # a function has its name, too
DEMO = str(needs.REPOSITORY / "recordings" / "demo.mcap")
STEPS = ["reading: 0 of 1 parts", "reading: 1 of 1 parts", "making tables: 3 of 7"]


@pytest.fixture(autouse=True)
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "check", lambda: None)
    monkeypatch.setattr(session, "session_without_format", lambda *_: MagicMock())
    # The command ends the JVM of its process; here it is that of other tests.
    monkeypatch.setattr(java, "stop_spark", lambda: None)
    monkeypatch.setattr(java, "wait_for_spark", lambda: None)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let an analysis be made at once: its steps are said, and one takes 12.3 s."""
    real = time.monotonic

    def analyze(maker: TableMaker, _: Any, out: Place, *__: Any) -> Analysis:
        maker.on_status(STEPS[0])
        monkeypatch.setattr(time, "monotonic", lambda: real() + 12.3)
        for text in STEPS:
            maker.on_status(text)
        return MagicMock(
            made=MadeTables({"exchanges": 12}, ReportPart()), folder=Path(str(out)), notices=[],
            differences=[],
        )  # fmt: skip

    monkeypatch.setattr(job, "analyze", analyze)


@pytest.mark.usefixtures("made")
def test_in_a_pipe_each_step_has_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", DEMO, "--out", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr()
    assert printed.out == f"12 exchanges: {tmp_path}/out/report.html\n"
    steps = [each.removeprefix("kproxy analyze: ") for each in printed.err.splitlines()]
    # A long step says every few seconds how far it is.
    assert steps[-3:] == [f"{STEPS[0]} …", f"{STEPS[0]} …", f"{STEPS[2]} …"]


@pytest.mark.usefixtures("made")
def test_in_a_terminal_a_line_says_how_long_a_step_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    master, terminal = os.openpty()
    with open(terminal, "w") as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        assert main(["analyze", DEMO, "--out", str(tmp_path / "out")]) == 0
    painted = everything(master).split("\r\x1b[K")
    assert painted[1] == "looking at the recordings …"
    assert painted[-6:] == [
        f"{STEPS[0]} …", f"{STEPS[0]}, 12 s …", f"{STEPS[1]} …", f"{STEPS[2]} …", "", "",
    ]  # fmt: skip


def everything(terminal: int) -> str:
    """What was written to a terminal that is closed; one read may return a part of it."""
    pieces: list[bytes] = []
    with open(terminal, "rb", 0) as shown, contextlib.suppress(OSError):  # its end
        while piece := shown.read(10_000):
            pieces.append(piece)
    return b"".join(pieces).decode()


@pytest.mark.usefixtures("made")
@pytest.mark.parametrize("reader", ["full", "gone"])
def test_what_was_made_is_there_though_nobody_reads(
    reader: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    with os.fdopen(theirs, "w") as gone, open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full if reader == "full" else gone)
        assert main(["analyze", DEMO, "--out", str(tmp_path / "out")]) == 0
    *_, last = capsys.readouterr().err.splitlines()
    assert ("which stdout does not take: No space left on device" in last) is (reader == "full")


@pytest.mark.parametrize(
    ("status", "is_lost"), [("looking for what is new", False), *((each, True) for each in STEPS)]
)
def test_a_run_that_is_thrown_away_is_told(
    status: str, is_lost: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    def follow(maker: TableMaker, *_: Any) -> Iterator[None]:
        yield None
        maker.on_status(status)
        raise KeyboardInterrupt

    monkeypatch.setattr(appending, "follow", follow)
    assert main(["analyze", DEMO, "--follow", "--out", str(tmp_path / "lake")]) == 0
    said = "kproxy analyze: stopped: the run that was being made is not added"
    assert (said in capsys.readouterr().err.splitlines()) is is_lost


def test_a_damaged_archive_of_classes_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs.program("java")
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    jars = Path(pyspark_sql.__file__).parent.with_name("jars")
    begun = java.archive_options(java.java(), jars).split()[0].partition("=")[2]
    archive = Path(begun.partition(".")[0] + ".jsa")
    archive.write_bytes(b"x" * 1000)
    started: list[str] = []

    class Builder(MagicMock):
        """Starts Spark unless its JVM has an archive, which is damaged."""

        def config(self, name: str, value: str) -> Builder:
            if name == "spark.driver.extraJavaOptions":
                started.append(value)
            return self

        def getOrCreate(self) -> str:
            if archive.exists():
                raise PySparkException("[JAVA_GATEWAY_EXITED]")
            return "a session"

    builder = Builder()
    builder.appName.return_value = builder.master.return_value = builder
    monkeypatch.setattr(pyspark_sql.SparkSession, "getActiveSession", lambda: None)
    monkeypatch.setattr(pyspark_sql.SparkSession, "Builder", lambda: builder)
    assert session.session_without_format("local[1]", {}, None, False) == "a session"
    assert ["SharedArchiveFile" in each for each in started] == [True, False]
