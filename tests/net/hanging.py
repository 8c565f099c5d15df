"""`kproxy` with a disk that hangs: `python -m tests.net.hanging WHERE SECONDS kproxy's arguments`.

From when a file named `hang` lies beside the recording (`--record`), this never returns: any write
of the recording's bytes ("write"), the write of its last ones ("summary"), closing its files
("close"). Until then, and elsewhere, the disk is as it is. After a first signal it waits for the
disk, SECONDS and those of the drain.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from kproxy.cli import main
from kproxy.net import running
from kproxy.recording.rotation import Recording
from kproxy.recording.writer import Writer

NEVER = threading.Event()
HUNG = "hung"
"""The name of a file that says that something hangs now."""


def hanging(function: Callable, switch: Path) -> Callable:
    """A function that never returns once there is the file."""

    def call(*arguments: object, **named: object) -> object:
        if switch.exists():
            switch.with_name(HUNG).touch()
            NEVER.wait()
        return function(*arguments, **named)

    return call


def hang(where: str, switch: Path) -> None:
    """Have the disk hang there."""
    if where == "write":
        os.pwritev = hanging(os.pwritev, switch)
    elif where == "summary":
        Writer.close = hanging(Writer.close, switch)
    elif where == "reserve":
        Recording.prepare_close = hanging(Recording.prepare_close, switch)
    else:
        raise ValueError(where)


if __name__ == "__main__":
    where, seconds, *arguments = sys.argv[1:]
    running._COMPLETE_SECONDS = float(seconds)
    recording = Path(arguments[arguments.index("--record") + 1])
    hang(where, recording.with_name("hang"))
    sys.exit(main(arguments))
