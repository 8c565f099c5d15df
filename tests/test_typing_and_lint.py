"""Types, lint and layout: pyright, ruff and TypeScript have no complaint about what git tracks.

Which rules hold, and why some do not, stands in pyproject.toml.
"""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.bed import needs, programs

ROOT = needs.REPOSITORY

PLACES = [
    *sorted(
        str(path.relative_to(ROOT))
        for path in (ROOT / "kproxy").iterdir()
        if path.suffix == ".py" or (path / "__init__.py").exists()
    ),
    "tests/wire/protocol/typing",
]
"""The rooms of kproxy, its modules that are in none, and what says which types messages have."""


def run(*command: str) -> subprocess.CompletedProcess[str]:
    """Run a Python tool on the repository. It has all the time that it needs: on a busy machine
    pyright takes minutes, and one that was given up would be started again for each room."""
    return subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True
    )


@cache
def pyright_is_here() -> bool:
    """Whether pyright runs: its package fetches it when it is used first."""
    return run("pyright", "--version").returncode == 0


@cache
def complaints() -> list[tuple[Path, str]]:
    """What pyright finds wrong: the file, and where and what it is."""
    done = run("pyright", "--pythonpath", sys.executable, "--outputjson")
    assert done.stdout, done.stderr
    report = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] > len(PLACES)
    found = []
    for each in report["generalDiagnostics"]:
        path = Path(each["file"]).relative_to(ROOT)
        line = each["range"]["start"]["line"] + 1
        found.append((path, f"{path}:{line} {each['message']} ({each.get('rule')})"))
    return found


@pytest.mark.node
@pytest.mark.parametrize("place", PLACES)
def test_types_hold(place: str) -> None:
    needs.program("node")
    if not pyright_is_here():
        needs.missing("pyright could not be fetched")
    assert [text for path, text in complaints() if path.is_relative_to(place)] == []


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
