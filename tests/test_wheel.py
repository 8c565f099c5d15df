"""What is installed: the wheel has what the program needs, and not the maintainer's tool."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.bed import needs

ROOT = needs.REPOSITORY


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this repository."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    (path,) = folder.glob("*.whl")
    return path


def test_the_wheel_has_types_and_tables_and_not_the_generator(wheel: Path) -> None:
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    tool = {"kproxy/wire/protocol/generate.py"}
    sources = {str(path.relative_to(ROOT)) for path in (ROOT / "kproxy").rglob("*.py")}
    tables = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "kproxy").rglob("*")
        if path.suffix in (".txt", ".pyi")
    }
    pages = {str(path.relative_to(ROOT)) for path in (ROOT / "kproxy" / "manual").iterdir()}
    of_page = {str(path.relative_to(ROOT)) for path in (ROOT / "kproxy/look/page/files").iterdir()}
    assert pages and of_page
    data = {
        "kproxy/LICENSE",
        *pages,
        *of_page,
        "kproxy/py.typed",
        "kproxy/demo.mcap",
        "kproxy/spark/log4j2.properties",
        "kproxy/look/pictures/picture.css",
        *tables,
    }
    moved = {"kproxy/spark/pyspark_kproxy.py"}  # to where Spark looks for it
    assert tool <= sources
    assert names == (sources | data | {"pyspark_kproxy.py"}) - tool - moved


def test_the_wheel_has_the_licence(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (each for each in archive.namelist() if "/licenses/" in each)
        text = archive.read(name).decode()
    assert name.endswith(".dist-info/licenses/kproxy/LICENSE")
    assert "Apache License" in text and "END OF TERMS AND CONDITIONS" in text


def test_what_is_in_the_wheel_works_alone(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    code = (
        "import kproxy.cli, kproxy.wire.protocol, sys\n"
        "assert kproxy.__file__.startswith(sys.argv[1]), kproxy.__file__\n"
        "assert kproxy.cli.main(['help', 'filters']) == 0\n"
        "sys.exit(kproxy.cli.main(['show', sys.argv[2]]))"
    )
    demo = str(ROOT / "recordings" / "demo.mcap")
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path), demo],
        env={"PYTHONPATH": str(tmp_path), "PATH": ""},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0 and "Produce" in done.stdout, done.stderr
    assert "# Filters" in done.stdout and "broker_ms:50.." in done.stdout


def test_what_users_are_told_to_install_is_this_distribution() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    places = [*(ROOT / "kproxy").rglob("*.py"), *(ROOT / "kproxy/manual").glob("*.md")]
    told = {
        found
        for path in [*places, ROOT / "README.md", ROOT / ".github/Dockerfile"]
        for found in re.findall(r"(kproxy[a-z-]*)\[([a-z]+)\](?!\s*=)", path.read_text())
    }
    extras = {extra for _, extra in told}
    assert {"tables", "tls", "spark", "schemas"} <= extras <= set(project["optional-dependencies"])
    assert {name for name, _ in told} == {project["name"]}
