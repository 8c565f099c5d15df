"""The recordings that our own tests use still are what a real broker does."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.bed import needs

RECORDED = "tests/integration/test_recorded.py"


@pytest.mark.broker
def test_a_real_broker_does_what_was_recorded(real_broker: str) -> None:
    """Verify, in a process of its own: the mode is that of a whole run of pytest."""
    environment = {**os.environ, "KPROXY_TEST_BROKER": real_broker}
    command = [sys.executable, "-m", "pytest", "-q", "--kproxy-mode=verify", RECORDED]
    done = subprocess.run(
        command,
        cwd=needs.REPOSITORY,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-1000:]
    assert "6 passed" in done.stdout
