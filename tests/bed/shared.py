"""What all processes of a test run share: whoever needs it first makes it, and the run ends it.

pytest ─ folder() ─┬─ gw0 ─ once("kafka", start) ─▶ starts a broker, and writes down where it is
                   ├─ gw1 ─ once("kafka", start) ─▶ reads that
                   └─ end(): the programs that were started are killed, the folder goes
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pickle
import shutil
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

_NAME = "KPROXY_TEST_SHARED"
"""In the environment of all processes: their folder."""


def begin() -> Callable[[], None]:
    """Make the folder, unless a process above has; return what ends what was made here."""
    if _NAME in os.environ:
        return lambda: None
    os.environ[_NAME] = tempfile.mkdtemp(prefix="kproxy-tests-")
    return _end


def _end() -> None:
    of_all = folder()
    for path in of_all.glob("*.pid"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(path.read_text()), signal.SIGKILL)
    shutil.rmtree(of_all, ignore_errors=True)
    del os.environ[_NAME]


def folder() -> Path:
    """Where everything shared is; it goes at the end of the run."""
    return Path(os.environ[_NAME])


def once(name: str, make: Callable[[Path], T]) -> T:
    """What `make` returns, made in a folder of that name by the process that is the first."""
    with (folder() / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        kept = folder() / f"{name}.pickle"
        if not kept.exists():
            shutil.rmtree(folder() / name, ignore_errors=True)
            (folder() / name).mkdir()
            kept.write_bytes(pickle.dumps(make(folder() / name)))
        return pickle.loads(kept.read_bytes())


def kill_at_the_end(pid: int) -> None:
    """Have a program of this process outlive it, until the run ends."""
    (folder() / f"{pid}.pid").write_text(str(pid))
