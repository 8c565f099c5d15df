"""What users typed stays: names may be added, and none is taken away or renamed."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys

import pytest

from tests.bed import needs
from tests.bed.promises import EXIT_CODES, FILE, promised

PROMISED = json.loads(FILE.read_text())


@pytest.fixture(scope="module")
def found() -> dict[str, list[str]]:
    """The names as the code has them now."""
    return promised()


@pytest.mark.parametrize("group", PROMISED)
def test_no_name_that_users_typed_is_gone(group: str, found: dict[str, list[str]]) -> None:
    gone = sorted(set(PROMISED[group]) - set(found.get(group, ())))
    assert gone == [], (
        f"{group}: {', '.join(gone)} is gone, and scripts of users name it."
        " Keep it beside what takes its place; tests/data/promises.json is only added to."
    )


def test_what_is_promised_is_not_nothing() -> None:
    assert all(PROMISED.values()) and len(PROMISED) > 30
    assert "--bootstrap" in PROMISED["options of kproxy run"]
    assert "service_ms" in PROMISED["columns of exchanges"]


@pytest.mark.parametrize("typed", EXIT_CODES)
def test_exit_codes_stay(typed: str) -> None:
    command = [sys.executable, "-m", *shlex.split(typed)]
    env = {**os.environ, "PYTHONUTF8": "1"}
    done = subprocess.run(command, cwd=needs.REPOSITORY, env=env, capture_output=True, timeout=60)
    assert done.returncode == EXIT_CODES[typed], done.stderr.decode()
