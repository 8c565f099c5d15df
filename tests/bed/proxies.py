"""`kproxy run` as a user runs it: a process, its first line, its log, its recording.

::

    with running(broker.address, folder) as proxy:
        … clients use proxy.bootstrap …
    proxy.recording, proxy.log

The process is ended with SIGINT, as Ctrl-C would, and must then end well: exit code 0, nothing of
a traceback in its log; and in its recording, no client was told where a broker is.
"""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

import attrs
from prometheus_client.parser import text_string_to_metric_families

from kproxy import recording
from tests.bed import leak
from tests.bed.waiting import until

KPROXY = str(Path(sys.executable).with_name("kproxy"))


@attrs.define(eq=False)
class Proxy:
    """A running `kproxy run` or `kproxy replay`, or one that has ended."""

    process: subprocess.Popen
    bootstrap: str
    """What it says clients should connect to."""
    recording: Path
    log_path: Path
    code: int = 0
    """With what it must end."""

    @property
    def port(self) -> int:
        """The port of its bootstrap listener, on 127.0.0.1."""
        return int(self.bootstrap.rpartition(":")[2])

    @property
    def log(self) -> str:
        """What it has written on stderr so far."""
        return self.log_path.read_text()

    def says(self, pattern: str) -> str:
        """Wait until a line of the log matches, and return it."""

        def find() -> str | None:
            return next(
                (line for line in self.log.splitlines() if re.search(pattern, line)),
                None,
            )

        return str(until(find, f"the log says {pattern!r}"))

    def metrics(self) -> dict[str, float]:
        """What it counts, as Prometheus reads it; of a metric with labels the last one."""
        url = self.says(r"metrics: http").partition("metrics: ")[2]
        with urllib.request.urlopen(url, timeout=10) as answer:
            text = answer.read().decode()
        families = text_string_to_metric_families(text)
        return {sample.name: sample.value for family in families for sample in family.samples}

    def stop(self) -> None:
        """End it as Ctrl-C does; AssertionError when it does not end well."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        code = self.process.wait(timeout=20)
        assert code == self.code, f"it ended with {code}: {self.log}"
        assert "Traceback" not in self.log and "defect" not in self.log, self.log


@contextlib.contextmanager
def started(command: Sequence[str], recording: Path, log_path: Path) -> Iterator[Proxy]:
    """Run a command of kproxy on any port; it is ended as Ctrl-C does."""
    log_path.parent.mkdir(parents=True, exist_ok=True)
    with log_path.open("w") as log:
        words = [KPROXY, command[0], "--listen", "127.0.0.1:0", *command[1:]]
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=log, text=True)
    assert process.stdout
    try:
        first = process.stdout.readline().strip()
        assert first, f"it ended at once: {log_path.read_text()}"
        proxy = Proxy(process, first, recording, log_path)
        yield proxy
        proxy.stop()
    except BaseException as error:
        error.add_note(f"kproxy's log: {log_path.read_text()}")
        raise
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        process.stdout.close()


@contextlib.contextmanager
def running(bootstrap: str, folder: Path, *options: str) -> Iterator[Proxy]:
    """Run kproxy before the cluster at `bootstrap`, recording into `folder`."""
    path = folder / "recording.mcap"
    command = ["run", "--bootstrap", bootstrap, "--record", str(path), *options]
    with started(command, path, folder / "kproxy.log") as proxy:
        yield proxy
    leak.check(recording.entries(folder.glob("*.mcap")))
