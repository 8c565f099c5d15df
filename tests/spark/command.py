"""`kproxy analyze` as users run it."""

from __future__ import annotations

import os
import subprocess
import sys


def run(*arguments: str, umask: int = -1, **env: str) -> subprocess.CompletedProcess[str]:
    """Run `kproxy analyze`."""
    command = [sys.executable, "-m", "kproxy", "analyze", *arguments]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=900,
        env={**os.environ, **env},
        umask=umask,
    )
