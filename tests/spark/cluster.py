"""A cluster of processes: a master, and a worker or two with a JVM each; `spark-submit` on it, and
an executor that is killed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.versions import ALL

_WORKERS = 2 if ALL else 1
_QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.log.level": "OFF",
    "spark.driver.extraJavaOptions": _QUICK,
    "spark.executor.extraJavaOptions": _QUICK,
}


def submit(
    folder: Path, *arguments: str | Path, seconds_max: float = 240
) -> subprocess.CompletedProcess[str]:
    """Submit a program from a folder, and wait for it."""
    command = [str(Path(sys.executable).with_name("spark-submit"))]
    command += ["--master", f"local-cluster[{_WORKERS},1,1024]"]
    command += [part for item in _SETTINGS.items() for part in ("--conf", "=".join(item))]
    python = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    return subprocess.run(
        [*command, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=seconds_max,
        cwd=folder,
        env={**os.environ, **python, "SPARK_LOCAL_IP": "127.0.0.1"},
    )


def kill_an_executor(folder: Path) -> bool:
    """Kill the JVM of a task that is writing a file below a folder; return whether there was
    one."""
    for worker in _writers(folder):
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker, signal.SIGSTOP)  # it cannot end its task meanwhile
            if worker in _writers(folder):
                os.kill(_parent(_parent(worker)), signal.SIGKILL)
                os.kill(worker, signal.SIGCONT)
                return True
            os.kill(worker, signal.SIGCONT)
    return False


def _writers(folder: Path) -> Iterator[int]:
    """Yield the workers that have a part of a table open."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or is of another user
            names = [os.readlink(each) for each in (process / "fd").iterdir()]
            if any(name.startswith(f"{folder}/") and "/.part-" in name for name in names):
                yield int(process.name)


def _parent(process: int) -> int:
    """The process that started one: a daemon starts workers, and a JVM the daemon."""
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
