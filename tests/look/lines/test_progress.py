"""Progress bars: on a terminal, from two seconds on, gone at the end."""

from __future__ import annotations

import io
import shutil
import sys

import pytest

from kproxy.cli import main
from kproxy.look.lines import progress as module
from kproxy.look.lines.progress import Progress
from tests.bed import needs

DEMO = needs.REPOSITORY / "recordings" / "demo.mcap"


class Terminal(io.StringIO):
    """A terminal that keeps what it is given."""

    def isatty(self) -> bool:
        return True


class Clock:
    """A clock that the test sets."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_it_comes_after_two_seconds_and_goes_at_the_end() -> None:
    out, clock = Terminal(), Clock()
    with Progress("stats", 1000, out, clock) as progress:
        clock.now += 1.9
        progress.update(100)
        assert out.getvalue() == ""
        clock.now += 2.1
        progress.update(250)
        assert "kproxy stats: ━━━━━━────────────────── 25%, 12.0 s left" in out.getvalue()
        before = out.getvalue()
        progress.update(251)
        assert out.getvalue() == before, "not for every batch"
        clock.now += 4
        progress.update(1000)
    shown = out.getvalue()
    assert shown.endswith("\r\x1b[K") and "100%" in shown and "\n" not in shown


@pytest.mark.parametrize(
    "typed",
    [
        ["stats", "FILE"],
        ["scan", "FILE"],
        ["why", "FILE", "group:billing"],
        ["export", "FILE", "--to", "made.jsonl"],
        ["export", "FILE", "--to", "made.mcap"],
        ["recover", "FILE"],
    ],
)
def test_whatever_reads_recordings_shows_how_far_it_is(typed, tmp_path, monkeypatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(module, "AFTER_SECONDS", 0.0)
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.chdir(tmp_path)
    shutil.copy(DEMO, "demo.mcap")
    main([each.replace("FILE", "demo.mcap") for each in typed])
    shown = terminal.getvalue()
    assert f"kproxy {typed[0]}: ━" in shown
    assert shown.rpartition("━")[2].rpartition("\r\x1b[K")[1], "it is taken away"


@pytest.mark.parametrize("mode", ["state", "semantic", "strict"])
def test_a_replay_shows_how_far_it_has_read(mode, monkeypatch, tmp_path) -> None:
    recording = shutil.copy(DEMO, tmp_path)  # what this process has read before, it keeps
    terminal = Terminal()
    monkeypatch.setattr(module, "AFTER_SECONDS", 0.0)
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr("trio.run", lambda serve: None)
    assert main(["replay", str(recording), "--mode", mode, "--listen", "127.0.0.1:0"]) == 0
    assert "kproxy replay: ━" in terminal.getvalue()
