"""The recipes of the manual page `testing` for JUnit, Go and Node: each test runs against one
recording, and is red when the app does otherwise."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from confluent_kafka import Producer

from kproxy.commands.parser import command_parser
from kproxy.testing import record
from tests.bed import jvm, needs, programs
from tests.bed.pages import PAGES
from tests.versions import some

(PAGE,) = (page for page in PAGES if page.name == "testing")
JUNIT = "org.junit.platform:junit-platform-console-standalone:1.13.4"
UNMET = 3


@pytest.fixture(scope="module")
def orders(mock_brokers: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording of an order of alice's, by librdkafka."""
    path = tmp_path_factory.mktemp("recipes") / "orders.mcap"
    with record(mock_brokers, path) as broker:
        # Java's partitioner, which the others have, too.
        settings = {"bootstrap.servers": broker.bootstrap, "partitioner": "murmur2_random"}
        producer = Producer(settings)
        producer.produce("orders", '{"state": "new"}', "alice")
        assert producer.flush(10) == 0
    return path


def junit(folder: Path, code: str) -> list[str]:
    """The command that runs a class of JUnit tests."""
    source = folder / "OrdersTest.java"
    source.write_text(code)
    launcher, client = jvm.jars("junit-1.13.4", JUNIT), jvm.client_jars("4.4.0")
    classes = folder / "classes"
    path = f"{launcher}/*:{client}/*"
    javac = needs.program("javac")
    needs.run_or_fail([javac, "-nowarn", "-cp", path, "-d", str(classes), str(source)])
    main = "org.junit.platform.console.ConsoleLauncher"
    return jvm.java([classes, launcher, client], main, "execute", "--scan-classpath", str(classes))


def go(folder: Path, code: str) -> list[str]:
    """The command that runs a Go test."""
    program = needs.program("go")
    (folder / "orders_test.go").write_text(code)
    for command in (["mod", "init", "orders"], ["get", programs.FRANZ_GO]):
        needs.fetched([program, *command], "franz-go", folder)
    return [program, "test", "-count=1", "./..."]


def node(folder: Path, code: str) -> list[str]:
    """The command that runs Node's own test runner."""
    (folder / "node_modules").symlink_to(programs.node_modules())
    (folder / "orders.test.js").write_text(code)
    return [needs.program("node"), "--test", "orders.test.js"]


RECIPES = [
    pytest.param("java", junit, marks=pytest.mark.java),
    pytest.param("go", go),
    pytest.param("js", node, marks=pytest.mark.node),
]


@pytest.mark.broker
@pytest.mark.parametrize(("language", "prepare"), some(RECIPES, RECIPES[2:]))
def test_a_recipe_is_green_and_red_when_the_app_does_otherwise(
    language: str, prepare: Callable[[Path, str], list[str]], orders: Path, tmp_path: Path
) -> None:
    (code,) = PAGE.blocks(language)
    green = replayed(orders, prepare(made(tmp_path / "green"), code), tmp_path / "green")
    assert green.returncode == 0, green.stdout + green.stderr

    other = code.replace('new\\"', 'paid\\"').replace('"new"', '"paid"')
    assert other != code
    red = replayed(orders, prepare(made(tmp_path / "red"), other), tmp_path / "red")
    assert red.returncode == UNMET, red.stdout + red.stderr
    assert 'state "paid", recorded "new"' in red.stderr


def made(folder: Path) -> Path:
    """A new folder."""
    folder.mkdir()
    return folder


def replayed(path: Path, command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command with a recording as the broker."""
    words = [sys.executable, "-m", "kproxy", "replay", str(path), "--", *command]
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=120)


def test_the_workflow_runs_a_command_with_a_recording() -> None:
    (steps,) = [yaml.safe_load(code)["steps"] for code in PAGE.blocks("yaml")]
    runs = [step["run"] for step in steps if "run" in step]
    assert runs[0] == "pip install ./kproxy", "its name on PyPI is kproxy-kafka"
    name, command, *words = shlex.split(runs[-1].partition(" -- ")[0])
    assert (name, command) == ("kproxy", "replay")
    options = command_parser("replay").parse_args(words)
    assert options.compare == {"records", "commits"} and options.fail_fast
