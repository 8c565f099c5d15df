"""compose.yaml is what the compose specification says, and its image can be built.

There need be no Docker: the schema comes with the specification's own Go module, and the steps of
the inline Dockerfile are run in a clean virtual environment.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
import yaml

from kproxy import __version__
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
