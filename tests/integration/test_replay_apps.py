"""Apps that read back what they write: Kafka Streams and Kafka Connect, recorded and replayed.

Each is the command of `kproxy replay FILE -- COMMAND`: a test that begins with an empty cluster.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.bed import connect, jvm, needs, programs, proxies
from tests.versions import ALL, some

pytestmark = [pytest.mark.broker, pytest.mark.java]

TIMES = 10 if ALL else 1
COUNTS = "{a=4, daisy=1, is=4, it=1, no=1, rose=4, so=1}\n"
UNMET = 3

Command = Callable[[str], list[str]]
"""The command line, by the bootstrap address."""


def recorded(command: Command, broker: str, folder: Path, expected: str) -> Path:
    """The recording of an app that does before a real broker what it should."""
    with proxies.running(broker, folder) as proxy:
        assert programs.run(command(proxy.bootstrap)).stdout == expected
    return proxy.recording


def replayed(command: Command, path: Path, *options: str) -> tuple[int, str, str]:
    """The exit code of a replay, what the app printed, and the words of kproxy."""
    line = [proxies.KPROXY, "replay", str(path), *options, "--", *command("{bootstrap}")]
    done = programs.run(line)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    "guarantee", some(["at_least_once", "exactly_once_v2"], ["exactly_once_v2"])
)
def test_an_app_of_kafka_streams_does_all_of_its_work_again(
    guarantee: str, kafka_431, prefix: str, tmp_path: Path
) -> None:
    jars = jvm.streams_jars()
    classes = jvm.compiled(needs.REPOSITORY / "tests/bed/clients/WordCount.java", jars)

    def command(bootstrap: str) -> list[str]:
        return jvm.java([classes, jars], "WordCount", bootstrap, prefix, guarantee)

    path = recorded(command, kafka_431.address, tmp_path, COUNTS)
    for _ in range(TIMES):
        code, printed, told = replayed(command, path, "--compare", "records,order")
        assert (code, printed) == (0, COUNTS), told


@pytest.mark.skipif(not ALL, reason="a quarter of a minute; KPROXY_TEST_ALL=1")
def test_a_worker_of_kafka_connect_works_from_its_start_to_its_end(
    kafka_431, prefix: str, tmp_path: Path
) -> None:
    """Its session key, its address and its times differ in each run, so the replay is red."""
    lines = "".join(f"{line}\n" for line in connect.LINES)

    def command(bootstrap: str) -> list[str]:
        worker = [sys.executable, "-m", "tests.bed.connect", bootstrap, prefix]
        return [*worker, str(tmp_path / "worker")]

    path = recorded(command, kafka_431.address, tmp_path / "run", lines)
    for _ in range(TIMES):
        code, printed, told = replayed(command, path)
        assert (code, printed) == (UNMET, lines), told
        assert f"not recorded: {prefix}-configs: " in told
