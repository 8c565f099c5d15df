"""What a test needs of the machine, and what happens where it is missing.

A missing JVM, Node or broker skips the test by name. Where KPROXY_REQUIRE_ALL=1 is set (continuous
integration sets it) the same is a failure, so that no part of the suite goes quietly unrun.
Docker is never required: Maven and the mock cluster stand in for it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import NoReturn

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


def missing(what: str) -> NoReturn:
    """Skip the running test because of `what`; fail it where everything is required."""
    if os.environ.get("KPROXY_REQUIRE_ALL") == "1":
        pytest.fail(f"required here, but {what}", pytrace=False)
    pytest.skip(what)


def program(name: str) -> str:
    """The path of a program on the search path; skips the test without it."""
    path = shutil.which(name)
    if path is None:
        missing(f"this machine has no {name}")
    return path


def cache() -> Path:
    """The folder for what is fetched from registries: KPROXY_TEST_CACHE or .cache/testbed."""
    folder = Path(os.environ.get("KPROXY_TEST_CACHE") or REPOSITORY / ".cache" / "testbed")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def fetched(command: list[str], what: str, folder: Path) -> None:
    """Run a package manager in `folder`; skips the test when it cannot get `what`."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        lines = (done.stdout + done.stderr).strip().splitlines()
        reason = next(
            (line for line in lines if "ERR" in line),
            lines[-1] if lines else "no output",
        )
        missing(f"{what} could not be fetched: {reason.strip()}")


def cached(name: str, build) -> Path:
    """The cache's folder `name`; where it is absent, `build(folder)` fills it first.

    It is filled under another name and renamed when complete, so a killed or a second test run
    never sees half of it.
    """
    complete = cache() / name
    if complete.is_dir():
        return complete
    partial = cache() / f"{name}.{os.getpid()}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        build(partial)
        try:
            partial.rename(complete)
        except OSError:
            if not complete.is_dir():  # otherwise another test run was first
                raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return complete


def run_or_fail(command: list[str]) -> str:
    """Run a program that has no reason to fail; its output, or a failed test that shows it."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        pytest.fail(f"{command[0]} ended with {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout
