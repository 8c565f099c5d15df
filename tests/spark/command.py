"""`kproxy analyze` as users run it."""

from __future__ import annotations

import os
import subprocess
import sys

WITHOUT_ARCHIVE = {"XDG_CACHE_HOME": "/dev/null"}
"""No room for an archive of Java's classes: to write one takes a JVM longer than what tests do."""


def run(*arguments: str, umask: int = -1, **env: str) -> subprocess.CompletedProcess[str]:
    """Run `kproxy analyze`."""
    command = [sys.executable, "-m", "kproxy", "analyze", *arguments]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=900,
        env={**os.environ, **WITHOUT_ARCHIVE, **env},
        umask=umask,
    )
