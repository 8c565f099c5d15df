"""compose.yaml is what the compose specification says, and its image can be built.

There need be no Docker: the schema comes with the specification's own Go module, and the steps of
the inline Dockerfile are run in a clean virtual environment.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
import yaml

from kproxy import __version__, recording
from tests.bed import needs

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


def test_it_publishes_what_kproxy_listens_on(compose: dict) -> None:
    kproxy, kafka = compose["services"]["kproxy"], compose["services"]["kafka"]
    options = dict(zip(kproxy["command"][1::2], kproxy["command"][2::2], strict=True))
    listen = int(options["--listen"].rpartition(":")[2])
    node = listen + 1 + int(kafka["environment"]["KAFKA_NODE_ID"])
    published = {port.rpartition(":")[2] for port in kproxy["ports"]}
    assert published == {str(listen), str(node)}
    assert options["--advertise"] == "localhost"
    advertised = kafka["environment"]["KAFKA_ADVERTISED_LISTENERS"]
    assert advertised == f"PLAINTEXT://{options['--bootstrap']}"
    assert kproxy["depends_on"]["kafka"]["condition"] == "service_healthy"


def test_a_profile_serves_a_recording_instead(compose: dict) -> None:
    services = compose["services"]
    replay, kproxy = services["replay"], services["kproxy"]
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


def test_the_steps_of_its_image_install_kproxy(compose: dict, tmp_path: Path) -> None:
    steps = compose["services"]["kproxy"]["build"]["dockerfile_inline"].strip().splitlines()
    image, venv = tmp_path / "image", tmp_path / "venv"
    image.mkdir()
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    ran = []
    for step in steps:
        verb, _, rest = step.partition(" ")
        if verb == "COPY":
            *sources, target = shlex.split(rest)
            for source in sources:
                copy(needs.REPOSITORY / source, image, target)
        elif verb == "RUN":
            command = re.sub(r"^pip ", f"{venv}/bin/pip -q ", rest)
            subprocess.run(["bash", "-c", command], cwd=image, check=True, timeout=300)
        elif verb == "ENTRYPOINT":
            (program,) = json.loads(rest)
            command = [f"{venv}/bin/{program}", "--version"]
            ran.append(subprocess.run(command, capture_output=True, text=True, cwd=tmp_path))
        else:
            assert verb in ("FROM", "WORKDIR"), step
    assert [done.stdout for done in ran] == [f"kproxy {__version__}\n"]


def copy(source: Path, image: Path, target: str) -> None:
    """COPY as Docker does it: a file into a folder, which it makes; a folder onto a folder."""
    if source.is_dir():
        shutil.copytree(source, image / target, ignore=shutil.ignore_patterns("__pycache__"))
        return
    if target.endswith("/"):
        (image / target).mkdir(parents=True, exist_ok=True)
    shutil.copy(source, image / target)
