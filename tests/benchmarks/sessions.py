"""Where the time of a session of tests goes: a recording, a mock cluster and a broker beside it.

    python -m tests.benchmarks.sessions [--tests 100] [--recordings 20] [--without-broker]

A project of tests, each of which produces a record with confluent-kafka and reads what was
produced, runs in pytest: with the fixture kproxy, whose recordings several tests share; with
librdkafka's mock cluster, and with a broker of Apache Kafka, each started once by each process, as
testcontainers does. Both alone and with two workers of xdist. Printed are the seconds of the
session, its CPU, and what kproxy itself takes of a test: to start, to stop and compare, to close,
as medians and as CPU of the process, in which no client works then.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.bed import mock_cluster, needs

_CONFTEST = """
import functools, itertools, os, time
import pytest
from pathlib import Path
from kproxy.testing import runs

def timed(name):
    inner = getattr(runs.CassetteRun, name)
    @functools.wraps(inner)
    def outer(self, *given, **named):
        wall, cpu = time.perf_counter(), time.process_time()
        try:
            return inner(self, *given, **named)
        finally:
            took = time.perf_counter() - wall, time.process_time() - cpu
            with open(f"times-{os.getpid()}", "a") as out:
                print(id(self), name, *took, file=out)
    setattr(runs.CassetteRun, name, outer)

for each in ("begin", "_finish", "_kept"):
    timed(each)

@pytest.fixture(scope="session")
def mock():
    from tests.bed import mock_cluster
    with mock_cluster.running() as address:
        yield address

@pytest.fixture(scope="session")
def broker(tmp_path_factory):
    from tests.bed import kafka
    with kafka.running("4.3.1", tmp_path_factory.mktemp("broker")) as found:
        yield found.address
"""
_TESTS = """
import pytest
from confluent_kafka import Producer

def place(bootstrap, topic):
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(topic, key="alice", value='{"state": "new"}')
    assert producer.flush(20) == 0
"""
_WITH_KPROXY = """
@pytest.mark.kproxy(recording="shared{shared}")
def test_{number}(kproxy):
    place(kproxy.bootstrap, "orders{shared}")
    assert kproxy.produced("orders{shared}")[0].value == b'{{"state": "new"}}'
"""
_WITH_OTHER = """
def test_{number}({fixture}):
    place({fixture}, "orders{number}")
"""


def _write(folder: Path, fixture: str, tests: int, recordings: int) -> None:
    text = _WITH_KPROXY if fixture == "kproxy" else _WITH_OTHER
    cases = (
        text.format(number=number, shared=number % recordings, fixture=fixture)
        for number in range(tests)
    )
    (folder / "test_app.py").write_text(_TESTS + "".join(cases))
    (folder / "conftest.py").write_text(_CONFTEST)
    (folder / "pytest.ini").write_text(f"[pytest]\npythonpath = {needs.REPOSITORY}\n")


def _run(folder: Path, *words: str) -> tuple[float, float]:
    """Run pytest; return the seconds that it took, and those of CPU."""
    for old in folder.glob("times-*"):
        old.unlink()
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    line = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words]
    done = subprocess.run(line, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:]
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.perf_counter() - began, cpu


def _own(folder: Path) -> str:
    """Return what kproxy took of a test."""
    found: dict[str, list[tuple[float, float]]] = {}
    for path in folder.glob("times-*"):
        firsts = set()
        for line in path.read_text().splitlines():
            _, name, wall, cpu = line.split()
            if name in firsts:
                found.setdefault(name, []).append((float(wall), float(cpu)))
            else:
                firsts.add(name)  # a process imports what it needs
                found.setdefault(f"first {name}", []).append((float(wall), float(cpu)))
    texts = []
    for name, times in found.items():
        wall, cpu = (statistics.median(each) * 1e3 for each in zip(*times, strict=True))
        texts.append(f"{name.replace('_', '')} {wall:.1f} ({cpu:.1f})")
    medians = {k: v for k, v in found.items() if not k.startswith("first")}
    total = [
        sum(statistics.median(one[at] for one in each) for each in medians.values()) * 1e3
        for at in (0, 1)
    ]
    return f"kproxy's own {total[0]:.1f} ms (CPU {total[1]:.1f}) a test: {', '.join(texts)}"


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tests", type=int, default=100)
    parser.add_argument("--recordings", type=int, default=20)
    parser.add_argument("--without-broker", action="store_true")
    options = parser.parse_args()
    fixtures = ["kproxy", "mock", *([] if options.without_broker else ["broker"])]
    for fixture in fixtures:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            _write(folder, fixture, options.tests, options.recordings)
            if fixture == "kproxy":
                with mock_cluster.running() as address:
                    _run(folder, "--kproxy-mode=once", "--kproxy-broker", address)
            for words in ((), ("-n", "2")):
                wall, cpu = _run(folder, *words)
                own = f"  {_own(folder)}" if fixture == "kproxy" else ""
                label = f"{fixture}{' -n 2' if words else ''}"
                print(f"{label:12} {wall:6.1f} s (CPU {cpu:5.1f} s){own}", flush=True)


if __name__ == "__main__":
    main()
