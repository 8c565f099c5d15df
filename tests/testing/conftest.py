"""Commands in the process of a test: a start of Python takes longer than most of them."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from kproxy import cli

Do = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def do(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Do:
    """What runs kproxy without a start of Python; outside of CI, unless it is said."""

    def run(*words: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
        with monkeypatch.context() as patch:
            for name, value in {"CI": "", **env}.items():
                patch.setenv(name, value)
            try:
                code = cli.main([*map(str, words)])
            except SystemExit as ended:
                code = int(ended.code or 0)
        return subprocess.CompletedProcess(words, code, *capfd.readouterr())

    return run
