"""Makes the copy, and measures it beside this checkout: see the package."""

from __future__ import annotations

import argparse
import gzip
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
CHECKOUT = HERE.parents[2]
_COPIED = ("kproxy", "tests", "recordings", "pyproject.toml", "README.md")


def copy_to(folder: Path) -> None:
    """Copy this checkout to a new folder, and make its recordings logs."""
    for name in _COPIED:
        source = CHECKOUT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, folder / name)
    shutil.rmtree(folder / "tests" / "benchmarks" / "log")
    patch = gzip.decompress((HERE / "log.patch.gz").read_bytes())
    command = ["git", "apply", "--whitespace=nowarn", "-"]
    environment = os.environ | {"GIT_CEILING_DIRECTORIES": str(folder.parent)}
    subprocess.run(command, cwd=folder, input=patch, check=True, env=environment)


def main() -> None:
    """Do what was typed."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.log")
    parser.add_argument("--to", type=Path, help="a folder that is not there yet")
    options, rest = parser.parse_known_args()
    if options.to is not None:
        copy_to(options.to)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "log"
        copy_to(folder)
        command = [sys.executable, "-m", "tests.benchmarks.proxies", "--before", str(CHECKOUT)]
        done = subprocess.run([*command, *rest], cwd=folder, check=False)
    sys.exit(done.returncode)


if __name__ == "__main__":
    main()
