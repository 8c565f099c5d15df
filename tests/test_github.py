"""What the code host is told: workflows that run what the README says, pages for contributors."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import pytest
import yaml

from kproxy import __version__
from tests.bed import needs
from tests.bed.pages import README, Page, kproxy_arguments
from tests.test_house import ROOMS

GITHUB = needs.REPOSITORY / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))


def workflow(name: str) -> dict[Any, Any]:
    """A workflow as its runner reads it."""
    return yaml.safe_load((GITHUB / "workflows" / f"{name}.yml").read_text())


def steps(found: dict[Any, Any]) -> list[dict[str, Any]]:
    """The steps of all jobs."""
    return [step for job in found["jobs"].values() for step in job["steps"]]


def test_ci_runs_the_tests_on_all_that_is_supported() -> None:
    found = workflow("ci")
    matrix = found["jobs"]["test"]["strategy"]["matrix"]
    assert matrix["python"] == ["3.11", "3.12", "3.13", "3.14"]
    assert {name.partition("-")[0] for name in matrix["os"]} == {"ubuntu", "macos"}
    ran = [step["run"] for step in found["jobs"]["test"]["steps"] if "run" in step]
    assert ran == [".ci/run"]
    requires = tomllib.loads((needs.REPOSITORY / "pyproject.toml").read_text())["project"]
    assert requires["requires-python"] == f">={matrix['python'][0]}"


def test_ci_audits_what_users_install() -> None:
    ran = [step.get("run", "") for step in workflow("ci")["jobs"]["audit"]["steps"]]
    extras = tomllib.loads((needs.REPOSITORY / "pyproject.toml").read_text())["project"]
    named = re.search(r"'\.\[([\w,]+)\]'", "\n".join(ran))
    assert named and {*named[1].split(",")} == {*extras["optional-dependencies"]} - {"test"}
    assert "pip-audit --strict --path audited/lib/python3.13/site-packages" in ran[-1]


def test_a_tag_builds_the_wheel() -> None:
    found = workflow("wheel")
    assert found[True]["push"]["tags"] == ["v*"], "`on` is true in YAML 1.1"
    typed = "\n".join(step.get("run", "") for step in steps(found))
    assert "python -m build" in typed and "kproxy help run" in typed


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_use_nothing_but_actions_of_the_host(path: Any) -> None:
    found = yaml.safe_load(path.read_text())
    used = [step["uses"] for step in steps(found) if "uses" in step]
    assert used and all(re.fullmatch(r"actions/[\w-]+@v\d+", each) for each in used)
    may_push = {"packages": "write"} if path.stem == "image" else {}
    assert found["permissions"] == {"contents": "read", **may_push}
    assert "://" not in path.read_text() and "secrets." not in path.read_text()


def test_a_tag_builds_the_image_and_pushes_it_where_a_variable_says() -> None:
    found = workflow("image")
    assert found[True]["push"]["tags"] == ["v*"]
    typed = [step for step in steps(found) if "run" in step]
    assert typed[0]["run"] == "docker build -f .github/Dockerfile -t kproxy ."
    assert "--read-only" in typed[1]["run"]
    (push,) = (step for step in typed if "docker push" in step["run"])
    assert push["if"].startswith("env.REGISTRY != ''")
    assert found["jobs"]["image"]["env"]["REGISTRY"] == "${{ vars.REGISTRY }}"


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


def test_a_bug_report_asks_for_a_recording_that_was_looked_at() -> None:
    page = Page(GITHUB / "ISSUE_TEMPLATE" / "bug.md")
    _, front, _ = page.text.split("---\n", 2)
    assert {"name", "about"} <= set(yaml.safe_load(front))
    typed = [(kproxy_arguments(line) or [""])[0] for line in page.shell_lines()]
    assert typed.index("export") < typed.index("scan")
