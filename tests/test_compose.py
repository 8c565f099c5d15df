"""compose.yaml is what the compose specification says, and its image can be built.

There need be no Docker: the schema comes with the specification's own Go module, and the steps of
.github/Dockerfile are run in a clean virtual environment. What is not tried here: that the image
runs without root, and its health check as Docker runs it.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
import yaml

from kproxy import __version__, recording
from tests.bed import needs
from tests.versions import ALL

COMPOSE_GO = "github.com/compose-spec/compose-go/v2@v2.16.2"


@pytest.fixture
def compose() -> dict:
    """compose.yaml."""
    return yaml.safe_load((needs.REPOSITORY / "compose.yaml").read_text())


def test_it_follows_the_compose_schema(compose: dict) -> None:
    go = shutil.which("go")
    if go is None:
        pytest.skip("this machine has no go, with which the schema comes")
    command = [go, "mod", "download", "-json", COMPOSE_GO]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if done.returncode:
        needs.missing(f"{COMPOSE_GO} could not be fetched")
    folder = Path(json.loads(done.stdout)["Dir"])
    schema = json.loads((folder / "schema" / "compose-spec.json").read_text())
    validator = jsonschema.Draft202012Validator(schema)
    validator.validate(compose)
    broken = {"services": {"kproxy": {**compose["services"]["kproxy"], "prots": []}}}
    with pytest.raises(jsonschema.ValidationError):
        validator.validate(broken)


def test_a_profile_serves_a_recording_instead(compose: dict) -> None:
    services = compose["services"]
    replay, kproxy = services["replay"], services["kproxy"]
    assert kproxy["build"] == {"context": ".", "dockerfile": ".github/Dockerfile"}
    assert [name for name, each in services.items() if "profiles" in each] == ["replay"]
    assert replay["build"] == kproxy["build"] and "depends_on" not in replay
    command, given, *options = replay["command"]
    assert options == kproxy["command"][-4:], "the application's address is the same"
    (mounted,) = replay["volumes"]
    assert mounted == "./recordings:/kproxy/recordings:ro"
    (default,) = re.findall(r"^\$\{KPROXY_RECORDING:-(.*)\}$", given)
    nodes = {exchange.node_id for exchange in recording.read(needs.REPOSITORY / default)}
    brokers = {19092 + 1 + node for node in nodes if node is not None}
    first, last = map(int, replay["ports"][1].rpartition(":")[2].split("-"))
    assert replay["ports"][0] == kproxy["ports"][0] and brokers
    assert brokers <= set(range(first, last + 1))
    options[options.index("--listen") + 1] = "127.0.0.1:0"
    program = [sys.executable, "-m", "kproxy", command, default, *options]
    with subprocess.Popen(program, stdout=subprocess.PIPE, cwd=needs.REPOSITORY, text=True) as ran:
        assert ran.stdout and ran.stdout.readline().startswith("localhost:")
        ran.send_signal(signal.SIGINT)
        assert ran.wait(20) == 0


def dockerfile() -> list[str]:
    """The steps of the image that is published, without comments, each in one line."""
    text = (needs.REPOSITORY / ".github" / "Dockerfile").read_text().replace("\\\n", " ")
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def test_the_image_is_not_root_and_says_when_it_listens() -> None:
    steps = [step.partition(" ")[::2] for step in dockerfile()]
    assert steps[0][0] == "FROM" and [verb for verb, _ in steps].count("FROM") == 2
    users = [rest for verb, rest in steps if verb == "USER"]
    assert users == ["10001"], "a number: Kubernetes sees that it is not root"
    (health,) = (rest for verb, rest in steps if verb == "HEALTHCHECK")
    check = json.loads(health.partition("CMD ")[2])
    with socket.create_server(("127.0.0.1", 0)):
        assert subprocess.run(check).returncode == 0
    (exposed,) = (rest for verb, rest in steps if verb == "EXPOSE")
    first, last = map(int, exposed.split("-"))
    assert (first, last) == (19092, 19092 + 10)


@pytest.mark.skipif(not ALL, reason="half a minute; test_wheel.py has the wheel")
def test_the_steps_of_the_image_install_kproxy_from_its_wheel(tmp_path: Path) -> None:
    source, image, venv = tmp_path / "source", tmp_path / "image", tmp_path / "venv"
    for folder in (source, image):
        folder.mkdir()
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    wheels = tmp_path / "wheels"
    stage = source
    for step in dockerfile()[1:]:
        verb, _, rest = step.partition(" ")
        if verb == "FROM":
            stage = image
        elif verb == "COPY" and not rest.startswith("--from=build"):
            *names, target = shlex.split(rest)
            for name in names:
                copy(needs.REPOSITORY / name, source, target)
        elif verb == "RUN":
            command = rest.replace("/wheels", str(wheels)).replace("pip ", f"{venv}/bin/pip -q ")
            subprocess.run(["bash", "-c", command], cwd=stage, check=True, timeout=300)
    done = subprocess.run([venv / "bin" / "kproxy", "--version"], capture_output=True, text=True)
    assert done.stdout == f"kproxy {__version__}\n"
    assert not wheels.exists()
    # Where nothing but /tmp may be written, a recording is served.
    words = ["replay", str(needs.REPOSITORY / "recordings" / "demo.mcap"), "--", "true"]
    asked = {"HOME": "/nonexistent", "PATH": os.environ["PATH"]}
    ran = subprocess.run(
        [
            venv / "bin" / "kproxy",
            *words,
        ],
        env=asked,
        cwd="/",
        capture_output=True,
    )
    assert ran.returncode == 3, ran.stderr


def copy(source: Path, image: Path, target: str) -> None:
    """COPY as Docker does it: a file into a folder, which it makes; a folder onto a folder."""
    if source.is_dir():
        shutil.copytree(source, image / target, ignore=shutil.ignore_patterns("__pycache__"))
        return
    if target.endswith("/"):
        (image / target).mkdir(parents=True, exist_ok=True)
    shutil.copy(source, image / target)
