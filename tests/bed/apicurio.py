"""Apicurio's registry from Maven: a real one, with Confluent's routes, in one process.

Its schemas are in memory, and gone with it.
"""

from __future__ import annotations

import contextlib
import subprocess
import tarfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from tests.bed import jvm, needs
from tests.bed.waiting import free_ports, until

VERSION = "3.0.9"
"""Later ones want a newer Java than Kafka does."""
CONFLUENT = "/apis/ccompat/v7"
"""Where it has Confluent's routes."""
_ARTIFACT = f"io.apicurio:apicurio-registry-app:{VERSION}:tar.gz:all"


def _program() -> Path:
    """The jar that starts it."""
    needs.program("java")
    mvn = needs.program("mvn")
    name = f"apicurio-{VERSION}"

    def fetch(folder: Path) -> None:
        goal = ["dependency:copy", f"-Dartifact={_ARTIFACT}", "-DoutputDirectory=."]
        needs.fetched([mvn, "-q", "-B", *goal], name, folder)
        for packed in folder.glob("*.tar.gz"):
            with tarfile.open(packed) as archive:
                archive.extractall(folder, filter="data")
            packed.unlink()

    (found,) = needs.cached(name, fetch).glob("*-runner.jar")
    return found


@contextlib.contextmanager
def running(folder: Path) -> Iterator[str]:
    """A registry for the time of a block; its address."""
    (port,) = free_ports(1)
    address = f"http://127.0.0.1:{port}"
    jar, log_path = _program(), folder / "apicurio.log"
    quarkus = ["-Dquarkus.http.host=127.0.0.1", f"-Dquarkus.http.port={port}"]
    command = [needs.program("java"), "-Xmx300m", *jvm.FLAGS, *quarkus, "-jar", str(jar)]
    with log_path.open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=folder)

    def answers() -> bool:
        assert process.poll() is None, f"it ended while starting: {log_path.read_text()[-2000:]}"
        with contextlib.suppress(OSError):
            with urllib.request.urlopen(f"{address}{CONFLUENT}/subjects", timeout=5) as answer:
                return answer.status == 200
        return False

    try:
        until(answers, f"Apicurio's registry answers at {address}", 90)
        yield address
    finally:
        process.kill()
        process.wait()
