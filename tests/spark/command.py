"""`kproxy analyze` as users run it."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from typing import Any

import pytest

from kproxy.cli import main

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


def run_in(session: Any, *arguments: str, umask: int) -> subprocess.CompletedProcess[str]:
    """Run `kproxy analyze` in this process, in a session of Spark that goes on."""
    out, err, own = io.StringIO(), io.StringIO(), os.umask(umask)
    try:
        with (
            pytest.MonkeyPatch.context() as kept,
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            kept.setattr(type(session), "stop", lambda session: None)
            code = main(["analyze", *arguments])
    finally:
        os.umask(own)
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())
