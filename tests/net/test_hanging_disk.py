"""A disk that hangs at the end does not keep kproxy from ending, whatever of it hangs."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

from kproxy.exchange.entries import Frame
from kproxy.recording import entries
from tests.bed.answering import answering
from tests.bed.waiting import until
from tests.net.hanging import HUNG
from tests.net.test_pump import answer, ask

LONG_SECONDS = 600.0
"""How long it waits for the disk after a first signal where a second one follows: longer than any
test."""
SHORT_SECONDS = 1.0
UNFINISHED = re.compile(
    r"kproxy run: the disk hangs, and \S+ has no end: (\d+) frames that passed are not recorded;"
    r" kproxy recover \S+ completes it, as far as it goes"
)


@attrs.define(eq=False)
class Hanging:
    """A proxy whose disk will hang."""

    process: subprocess.Popen[str]
    port: int
    path: Path

    def beat(self, first: int, count: int) -> None:
        """So many heartbeats, each answered."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=10) as client:
            for number in range(first, first + count):
                client.sendall(ask(number))
                left = len(answer(number))
                while left:
                    left -= len(client.recv(left)) or pytest.fail("it was closed")

    def hang(self) -> None:
        """From now on, the disk hangs."""
        self.path.with_name("hang").touch()

    def hangs(self) -> bool:
        """Whether something waits for it."""
        return self.path.with_name(HUNG).exists()

    def signal_twice(self, first: signal.Signals, second: signal.Signals) -> None:
        """Send two signals, the second when the first was taken: two alike may come as one."""
        self.process.send_signal(first)
        until(self._refuses, "it takes no more clients")
        until(self.hangs, "it waits for the disk")
        self.process.send_signal(second)

    def _refuses(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=10).close()
        except ConnectionRefusedError:
            return True
        return False

    def ends(self) -> str:
        """Assert that it ends, and with 1; return what it has said."""
        said = self.process.communicate(timeout=60)[1] or ""
        assert self.process.returncode == 1 and "Traceback" not in said, said
        return said


@pytest.fixture
def broker() -> Iterator[int]:
    """The port of what answers heartbeats."""
    with answering(_answer) as port:
        yield port


def _answer(stream: socket.socket) -> None:
    buffered = bytearray()
    while data := stream.recv(65_536):
        buffered += data
        while len(buffered) >= 4 + int.from_bytes(buffered[:4]) > 4:
            size = 4 + int.from_bytes(buffered[:4])
            number = int.from_bytes(buffered[8:12])
            del buffered[:size]
            stream.sendall(answer(number))


@pytest.fixture
def start(broker: int, tmp_path: Path) -> Iterator:
    """Start a proxy whose disk will hang in one place."""
    started: list[subprocess.Popen[str]] = []

    def begin(where: str, stderr: int = subprocess.PIPE, seconds: float = LONG_SECONDS) -> Hanging:
        path = tmp_path / "r.mcap"
        command = [sys.executable, "-m", "tests.net.hanging", where, str(seconds), "run"]
        command += [
            "--bootstrap",
            f"127.0.0.1:{broker}",
            "--listen",
            "127.0.0.1:0",
            "--record",
            str(path),
        ]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True)
        started.append(process)
        assert process.stdout
        return Hanging(process, int(process.stdout.readline().rpartition(":")[2]), path)

    yield begin
    for process in started:
        process.kill()
        process.wait()
        for stream in (process.stdout, process.stderr):
            if stream:
                stream.close()


@pytest.mark.parametrize(
    ("where", "number"),
    [
        ("write", signal.SIGINT),
        ("write", signal.SIGTERM),
        ("summary", signal.SIGINT),
        ("reserve", signal.SIGINT),
    ],
)
def test_a_second_signal_ends_it_at_once(start, where: str, number: signal.Signals) -> None:
    proxy = start(where)
    proxy.beat(0, 10)
    proxy.hang()
    proxy.beat(10, 5)
    proxy.signal_twice(number, number)
    told = UNFINISHED.fullmatch(proxy.ends().splitlines()[-1])
    assert told
    there = sum(isinstance(entry, Frame) for entry in entries(proxy.path))
    assert there + int(told[1]) == 30, "the line is true"


def test_a_first_signal_ends_it_in_time(start) -> None:
    proxy = start("write", seconds=SHORT_SECONDS)
    proxy.hang()
    proxy.beat(0, 5)
    until(proxy.hangs, "it waits for the disk")
    proxy.process.send_signal(signal.SIGTERM)
    told = UNFINISHED.fullmatch(proxy.ends().splitlines()[-1])
    assert told and told[1] == "10"


def test_it_ends_also_where_nobody_reads_what_it_says(start) -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    while True:
        try:
            os.write(writing, b"." * 65_536)
        except BlockingIOError:
            break
    os.set_blocking(writing, True)
    proxy = start("write", writing)
    proxy.hang()
    proxy.beat(0, 5)
    proxy.signal_twice(signal.SIGINT, signal.SIGTERM)
    proxy.ends()
    os.close(reading)
    os.close(writing)


def test_what_a_hung_disk_has_left_can_be_recovered(start) -> None:
    proxy = start("summary")
    proxy.beat(0, 10)
    proxy.hang()
    proxy.signal_twice(signal.SIGINT, signal.SIGINT)
    proxy.ends()
    command = [sys.executable, "-m", "kproxy", "recover", str(proxy.path)]
    assert subprocess.run(command, capture_output=True).returncode == 0
    assert sum(isinstance(entry, Frame) for entry in entries(proxy.path)) == 20
