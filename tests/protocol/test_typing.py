"""The types of the room and of its messages hold, as pyright's strict mode sees them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.bed import needs

FOLDER = Path(__file__).parent / "typing"


@pytest.mark.node
def test_pyright_has_no_complaint():
    needs.program("node")
    pyright = [sys.executable, "-m", "pyright"]
    if subprocess.run([*pyright, "--version"], capture_output=True, timeout=300).returncode:
        needs.missing("pyright could not be fetched")
    command = [*pyright, "--pythonpath", sys.executable, "-p", str(FOLDER)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert "0 errors" in done.stdout, done.stdout + done.stderr
