"""`kproxy analyze` that is stopped: nothing of it goes on, nothing is left, nothing is printed."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bed import needs
from tests.bed.waiting import until
from tests.versions import ALL, some

DEMO = str(needs.REPOSITORY / "recordings" / "demo.mcap")

_HANGS = """#!/bin/sh
case "$*" in
    -version) echo 'openjdk version "21.0.1"' >&2;;
    *) echo $$ >> {pids}; sleep 1000 & wait;;
esac
"""


def analyzing(folder: Path, **environment: str) -> subprocess.Popen[str]:
    """A command that analyzes."""
    command = [sys.executable, "-m", "kproxy", "analyze", DEMO, "--out", str(folder / "out")]
    more = {"TMPDIR": str(folder), "JAVA_HOME": os.environ.get("JAVA_HOME", "")} | environment
    return subprocess.Popen(
        command, env=os.environ | more, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


@pytest.mark.parametrize("number", some([signal.SIGINT, signal.SIGTERM], [signal.SIGTERM]))
def test_a_jvm_that_is_starting_ends_too(number: signal.Signals, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    program = tmp_path / "java" / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(_HANGS.format(pids=pids))
    program.chmod(0o700)
    started = analyzing(tmp_path, JAVA_HOME=str(tmp_path / "java"))
    until(lambda: pids.exists() and pids.read_text().endswith("\n"), "Java starts", 60)
    started.send_signal(number)
    said, _ = started.communicate(timeout=300)
    assert started.returncode == 128 + number
    assert "Traceback" not in said
    groups = list(map(int, pids.read_text().split()))
    until(lambda: not any(map(_lives, groups)), "it has ended", 10)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.java
@pytest.mark.skipif(not ALL, reason="a JVM each; KPROXY_TEST_ALL=1")
@pytest.mark.parametrize("said", ["starting", "working"])
def test_whoever_is_impatient_gets_no_traceback(said: str, tmp_path: Path) -> None:
    needs.program("java")
    started = analyzing(tmp_path)
    first = {"starting": "kproxy-analyze-*/blockmgr-*", "working": ".out.*.partial/exchanges/*"}
    until(lambda: list(tmp_path.glob(first[said])), first[said], 180)
    for _ in range(3):
        started.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            started.wait(0.3)
    printed, _ = started.communicate(timeout=300)
    assert started.returncode == 130
    steps = printed.splitlines()
    step = re.compile("kproxy analyze: (reading|starting|looking|maker).* …")
    assert steps and all(map(step.fullmatch, steps))
    assert not list(tmp_path.iterdir())


def test_what_a_killed_job_left_is_removed_by_the_next(tmp_path: Path) -> None:
    out = tmp_path / "out [1]"
    code = "import sys; from kproxy.analyze import place, publish\n"
    code += "with publish.new_analysis(place.Place.named(sys.argv[1])) as new:\n"
    code += "    (new / 'table').write(b''); print(new, flush=True); sys.stdin.read()\n"
    command = [sys.executable, "-c", code, str(out)]

    def begin() -> tuple[subprocess.Popen[str], Path]:
        begun = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert begun.stdout is not None
        return begun, Path(begun.stdout.readline().strip())

    killed, left = begin()
    killed.kill()
    killed.communicate()
    assert left.is_dir()
    living, other = begin()
    assert set(tmp_path.iterdir()) == {other}
    third, its = begin()
    assert set(tmp_path.iterdir()) == {other, its}, "what another still fills stays"
    third.communicate()
    living.communicate()
    assert (third.returncode, living.returncode) == (0, 1), "the first that is complete stays"
    assert set(tmp_path.iterdir()) == {out}
