"""Types, lint and layout: pyrefly, ruff and TypeScript have no complaint about what git tracks.

Which rules hold, and why some do not, stands in pyproject.toml.
"""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.bed import needs, programs

ROOT = needs.REPOSITORY


def run(*command: str) -> subprocess.CompletedProcess[str]:
    """Run a Python tool on the repository."""
    return subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True
    )


def test_types_hold() -> None:
    done = run("pyrefly", "check", "--python-interpreter-path", sys.executable, "--summary=full")
    assert done.returncode == 0, done.stdout
    modules = re.search(r"([0-9,]+) modules", done.stderr)
    assert modules and int(modules[1].replace(",", "")) > 400, done.stderr


@pytest.mark.node
def test_types_hold_in_the_browser() -> None:
    """The page is plain JavaScript, with its types in comments."""
    node = needs.program("node")
    modules = programs.npm_packages("typescript-5.9.3", ["typescript@5.9.3"])
    strict = ["--checkJs", "--allowJs", "--noEmit", "--strict"]
    browser = ["--target", "es2022", "--module", "es2022", "--lib", "es2022,dom,dom.iterable"]
    files = sorted((ROOT / "kproxy" / "look" / "page" / "files").glob("*.js"))
    assert len(files) > 10
    done = subprocess.run(
        [node, modules / "typescript" / "bin" / "tsc", *strict, *browser, *files],
        cwd=ROOT, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("command", [["check", "--output-format=concise"], ["format", "--check"]])
def test_ruff_has_no_complaint(command: list[str]) -> None:
    done = run("ruff", *command)
    assert done.returncode == 0, done.stdout + done.stderr
