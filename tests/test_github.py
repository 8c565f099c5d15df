"""What the code host is told: workflows that run what the README says, pages for contributors."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from kproxy import __version__
from tests.bed import needs
from tests.bed.pages import README, Page
from tests.test_house import ROOMS

GITHUB = needs.REPOSITORY / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))


def steps(found: dict[Any, Any]) -> list[dict[str, Any]]:
    """The steps of all jobs."""
    return [step for job in found["jobs"].values() for step in job["steps"]]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_use_nothing_but_actions_of_the_host(path: Any) -> None:
    found = yaml.safe_load(path.read_text())
    used = [step["uses"] for step in steps(found) if "uses" in step]
    assert used and all(re.fullmatch(r"actions/[\w-]+@v\d+", each) for each in used)
    may_push = {"packages": "write"} if path.stem == "image" else {}
    assert found["permissions"] == {"contents": "read", **may_push}
    assert "://" not in path.read_text() and "secrets." not in path.read_text()


def test_contributors_are_shown_the_command_and_all_rooms() -> None:
    page = Page(GITHUB / "CONTRIBUTING.md")
    command = next(line for line in README.shell_lines() if line.endswith(".venv/bin/pytest"))
    assert command in page.shell_lines()
    rooms = [name for name in ROOMS if name not in ("wire", "look", "cli")]
    assert re.findall(r"^\| `kproxy/([\w/]+)`", page.text, re.MULTILINE) == rooms
    for name in re.findall(r"`((?:kproxy|tests)/[\w/.]+)`", page.text):
        assert (needs.REPOSITORY / name).exists(), name


def test_the_changes_have_this_version() -> None:
    text = (GITHUB / "CHANGELOG.md").read_text()
    assert re.search(rf"^## {re.escape(__version__)}$", text, re.MULTILINE)
