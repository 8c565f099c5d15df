"""The README is true: its commands are the ones that are run, and what it names is there."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kproxy.cli import main
from tests.bed import needs

README = (needs.REPOSITORY / "README.md").read_text()


def shell_lines() -> list[str]:
    """The commands in the README's shell blocks."""
    blocks = re.findall(r"^```sh\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    return [line.partition("  #")[0].strip() for block in blocks for line in block.splitlines()]


def test_it_can_be_read_in_one_sitting() -> None:
    assert len(README.splitlines()) <= 435


def test_two_commands_do_all_the_set_up() -> None:
    demo, tests = (line for line in shell_lines() if line.startswith("python3 -m venv"))
    assert demo.endswith(".venv/bin/kproxy demo")
    assert tests.endswith(".venv/bin/pytest")


def test_ci_runs_the_test_command_character_for_character() -> None:
    command = next(line for line in shell_lines() if line.endswith(".venv/bin/pytest"))
    ci = (needs.REPOSITORY / ".ci" / "run").read_text().splitlines()
    assert ci[-1] == command
    assert "export KPROXY_REQUIRE_ALL=1" in ci


@pytest.mark.parametrize("line", [line for line in shell_lines() if "recordings/demo" in line])
def test_what_it_shows_of_the_recording_works(line: str, tmp_path: Path) -> None:
    (tmp_path / "recordings").symlink_to(needs.REPOSITORY / "recordings")
    words = shlex.split(line.partition("|")[0])
    assert words[0] == "kproxy"
    done = subprocess.run(
        [sys.executable, "-m", *words], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0 and not done.stderr
    assert done.stdout
    if "--json" in words:
        listed = re.search(r"`(number, time,[^`]+)`", README)
        named = set() if listed is None else set(re.split(r",\s+", listed[1]))
        assert named <= json.loads(done.stdout.splitlines()[0]).keys()


def test_its_recipes_show_what_it_says(capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    monkeypatch.chdir(needs.REPOSITORY)
    found = re.search(r"one line each:\n\n```sh\n(.*?)```\n\n```\n(.*?)```", README, re.DOTALL)
    assert found is not None
    commands, shown = (block.splitlines() for block in found.groups())
    for command in commands:
        main(shlex.split(command.partition("  #")[0])[1:])
        lines = capsys.readouterr().out.splitlines()
        assert shown[0] == lines[0]
        while shown and shown[0] in lines:
            del shown[0]
    assert shown == []


@pytest.mark.parametrize("line", [line for line in shell_lines() if "demo --fault" in line])
def test_its_experiments_show_what_it_says(line: str, tmp_path: Path) -> None:
    pytest.importorskip("confluent_kafka")
    command = [sys.executable, "-m", *shlex.split(line), "--expect-faults"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    name = line.partition("name=")[2].split()[0]
    for words in re.findall(rf"^.*, fault {name}$", README, re.MULTILINE):
        (api,), error = re.findall(r"(\w+) v\d+ ", words), words.rpartition("→ ")[2]
        hit = [each for each in done.stdout.splitlines() if each.endswith(f"fault {name}")]
        assert hit and all(api in each and error.split()[0] in each for each in hit)
    if name == "cut":
        assert re.search(r"12 of 12 records, \d+ of them twice", done.stdout)


def test_its_python_runs(capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    reads, tables, _, _ = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(needs.REPOSITORY)
    exec(compile(reads, "README.md", "exec"), {})
    assert "billing" in capsys.readouterr().out, "the demo has slow fetches by that client"
    names: dict[str, Any] = {}
    exec(compile(tables, "README.md", "exec"), names)
    assert "│ Fetch " in capsys.readouterr().out
    numbers = names["table"]["number"].to_list()
    assert sorted(numbers) == list(range(1, len(numbers) + 1)), "each once, as they were completed"
    assert set(names["table"]["connection"].to_list()) > {1, 2, 3}


def test_the_options_that_it_explains_are_there(capsys: pytest.CaptureFixture[str]) -> None:
    text = ""
    for command in ("run", "replay", "analyze"):
        with pytest.raises(SystemExit):
            main([command, "--help"])
        text += capsys.readouterr().out
    # Those of pytest are typed in tests/testing.
    named = set(re.findall(r"`(--(?!kproxy-)[a-z-]+)", README)) - {"--json"}
    assert named, "it explains options"
    assert [option for option in sorted(named) if option not in text] == []


def test_the_files_that_it_names_are_there() -> None:
    named = re.findall(r"`(kproxy/[\w/.]+)`", README)
    assert named
    for name in named:
        assert (Path(needs.REPOSITORY) / name).exists(), name


def test_the_pictures_that_it_shows_are_there_and_small() -> None:
    shown = re.findall(r'(?:src|srcset)="([^"]+)"', README)
    assert len(shown) == 2, "light and dark"
    for name in shown:
        data = (needs.REPOSITORY / name).read_bytes()
        assert data.startswith(b"\x89PNG") and len(data) < 150_000
