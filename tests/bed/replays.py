"""`kproxy replay` as a user runs it: a process, its first line, its log, its exit code."""

from __future__ import annotations

import contextlib
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import attrs

from tests.bed.proxies import KPROXY


@attrs.define(eq=False)
class Replay:
    """A running `kproxy replay`."""

    process: subprocess.Popen[str]
    bootstrap: str
    """What it says clients should connect to."""
    log_path: Path
    code: int = 0
    """With what it must end."""

    @property
    def log(self) -> str:
        """What it has written on stderr so far."""
        return self.log_path.read_text()

    def stop(self) -> None:
        """End it as Ctrl-C does; AssertionError when it does not end as it must."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        code = self.process.wait(timeout=20)
        assert code == self.code, f"kproxy replay ended with {code}: {self.log}"
        assert "Traceback" not in self.log and "defect" not in self.log, self.log


@contextlib.contextmanager
def running(recording: Path, folder: Path, *options: str) -> Iterator[Replay]:
    """Be the broker of a recording, on any ports."""
    folder.mkdir(parents=True, exist_ok=True)
    log_path = folder / "replay.log"
    command = [KPROXY, "replay", str(recording), "--listen", "127.0.0.1:0", *options]
    with log_path.open("w") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    assert process.stdout
    try:
        first = process.stdout.readline().strip()
        assert first, f"kproxy replay ended at once: {log_path.read_text()}"
        replay = Replay(process, first, log_path)
        yield replay
        replay.stop()
    except BaseException as error:
        error.add_note(f"kproxy's log: {log_path.read_text()}")
        raise
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        process.stdout.close()
