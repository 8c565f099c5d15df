"""`kproxy replay` as a user runs it: a process, its first line, its log, its exit code."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

from tests.bed import proxies


def running(recording: Path, folder: Path, *options: str) -> AbstractContextManager[proxies.Proxy]:
    """Be the broker of a recording, on any ports."""
    command = ["replay", str(recording), *options]
    return proxies.started(command, recording, folder / "replay.log")
