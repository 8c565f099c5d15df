"""A terminal or a pipe that takes no more output: the traffic goes on, and the end is an end."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bed import proxies
from tests.bed.answering import answering

GARBAGE = b"\x9c\x41\xe2\x07 nothing that anybody speaks \xff\xff"
METADATA_V0 = bytes.fromhex("00000012000300000000000100047465737400000000")
HELD_SECONDS = 4.0
"""What a terminal that is stuck may hold up the end; each stream is waited for for a second."""


@pytest.fixture
def broker() -> Iterator[int]:
    """The port of what answers each request with its own bytes: an empty Metadata v0, say."""
    with answering(_answer) as port:
        yield port


def _answer(stream: socket.socket) -> None:
    while asked := stream.recv(65_536):
        for _ in range(len(asked) // len(METADATA_V0)):
            stream.sendall(b"\0\0\0\x0c" + METADATA_V0[8:12] + bytes(8))


@contextlib.contextmanager
def run(broker: int, *options: str, **streams: int) -> Iterator[subprocess.Popen[bytes]]:
    """Run kproxy with these streams."""
    command = [proxies.KPROXY, "run", "--bootstrap", f"127.0.0.1:{broker}", "--no-record"]
    with subprocess.Popen([*command, "--listen", "127.0.0.1:0", *options], **streams) as process:
        try:
            yield process
        finally:
            process.kill()


def fill(descriptor: int) -> None:
    """Write to a pipe until it takes no more."""
    os.set_blocking(descriptor, False)
    try:
        while os.write(descriptor, b"." * 65_536):
            pass
    except BlockingIOError:
        os.set_blocking(descriptor, True)


def speaks(port: int, times: int = 3) -> None:
    """Assert that requests are answered, with lines for the log in between."""
    with socket.create_connection(("127.0.0.1", port), timeout=5) as client:
        for _ in range(times):
            with socket.create_connection(("127.0.0.1", port), timeout=5) as other:
                other.sendall(GARBAGE)  # a line in the log
                with contextlib.suppress(ConnectionResetError):
                    assert other.recv(100) == b""
            client.sendall(METADATA_V0)
            assert client.recv(100)


def ends(process: subprocess.Popen[bytes]) -> None:
    """Assert that SIGTERM ends it soon, and well."""
    started = time.monotonic()
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=20) == 0
    assert time.monotonic() - started < HELD_SECONDS


@pytest.mark.parametrize("options", [(), ("--quiet",)])
def test_a_log_that_nobody_reads(broker: int, options: tuple[str, ...]) -> None:
    reading, writing = os.pipe()
    fill(writing)
    with run(broker, *options, stdout=subprocess.PIPE, stderr=writing) as process:
        assert process.stdout
        port = int(process.stdout.readline().rpartition(b":")[2])
        speaks(port)
        ends(process)
    os.close(reading)
    os.close(writing)


@pytest.mark.parametrize("options", [(), ("--quiet",)])
def test_a_terminal_on_which_output_was_stopped(broker: int, options: tuple[str, ...]) -> None:
    controller, terminal = pty.openpty()
    try:
        with run(broker, *options, stdin=terminal, stdout=terminal, stderr=terminal) as process:
            first = os.read(controller, 1000)
            os.write(controller, b"\x13")  # Ctrl-S
            speaks(int(first.split()[0].rpartition(b":")[2]), 40)
            ends(process)
    finally:
        os.close(controller)
        os.close(terminal)


def test_what_a_terminal_missed_is_shown_when_it_goes_on(broker: int, tmp_path: Path) -> None:
    controller, terminal = pty.openpty()
    try:
        with run(broker, stdout=terminal, stderr=terminal) as process:
            first = os.read(controller, 1000)
            os.write(controller, b"\x13")
            speaks(int(first.split()[0].rpartition(b":")[2]), 5)
            os.write(controller, b"\x11")  # Ctrl-Q
            seen = b""
            while seen.count(b"Metadata") < 5 or b"does not speak" not in seen:
                seen += os.read(controller, 65_536)
            ends(process)
    finally:
        os.close(controller)
        os.close(terminal)
