"""A low limit of open files: what it allows is said, and clients are served within it."""

from __future__ import annotations

import contextlib
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kproxy.net import descriptors
from kproxy.net.descriptors import RESERVED_FILES, Descriptors
from tests.bed import needs
from tests.bed.waiting import until
from tests.net.test_pump import answer, ask
from tests.proxy.playing import metadata, response

DEMO = needs.REPOSITORY / "recordings" / "demo.mcap"


@contextlib.contextmanager
def limited(
    files: int, folder: Path, *options: str, command: str = "run"
) -> Iterator[subprocess.Popen[str]]:
    """`kproxy run`, or `replay`, with so many open files."""
    listen = "--listen", "127.0.0.1:0"
    typed = [sys.executable, "-m", "kproxy", command, *listen, *options]
    text = f"ulimit -n {files}; exec {shlex.join(typed)}"
    with (folder / "log").open("w") as log:
        running = subprocess.Popen(
            ["sh", "-c", text], stdout=subprocess.PIPE, stderr=log, text=True
        )
    try:
        yield running
    finally:
        running.kill()
        running.wait()
        assert running.stdout
        running.stdout.close()


@pytest.mark.parametrize(
    "typed",
    [
        ["run", "--bootstrap", "127.0.0.1:1", "--no-record"],
        ["replay", str(DEMO), "--expect", "all"],
    ],
    ids=" ".join,
)
def test_too_few_are_an_error_in_one_line(tmp_path: Path, typed: list[str]) -> None:
    command, *options = typed
    with limited(40, tmp_path, *options, command=command) as proxy:
        assert proxy.wait(20) == 2
    *told, line = (tmp_path / "log").read_text().splitlines()
    assert told in ([], ["kproxy: serves 1 topic, 2 batches, 1 group"])
    assert (
        line
        == f"kproxy {command}: ulimit -n 40 leaves no room for connections; at least 48 is needed"
    )


def serving(server: socket.socket, count: int) -> list[socket.socket]:
    """Let so many brokers' connections in, and answer a heartbeat on each."""
    found = []
    for _ in range(count):
        broker, _ = server.accept()
        broker.settimeout(10)
        found.append(broker)
        assert broker.recv(1000) == ask(1)
        broker.sendall(answer(1))
    return found


def test_few_are_said_at_the_start_and_as_many_clients_are_served(tmp_path: Path) -> None:
    possible = Descriptors(64).connections_max(1)
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        address = f"127.0.0.1:{server.getsockname()[1]}"
        options = "--bootstrap", address, "--record", str(tmp_path / "r.mcap")
        proxy = stack.enter_context(limited(64, tmp_path, *options))
        assert proxy.stdout
        port = int(proxy.stdout.readline().rpartition(":")[2])
        server.accept()[0].close()  # kproxy looks whether somebody is there
        clients = []
        for _ in range(possible):
            client = socket.create_connection(("127.0.0.1", port), timeout=10)
            clients.append(stack.enter_context(client))
            client.sendall(ask(1))
            for broker in serving(server, 1):
                stack.enter_context(broker)
            assert client.recv(1000) == answer(1)
        with socket.create_connection(("127.0.0.1", port), timeout=10) as refused:
            assert refused.recv(1000) == b""
        proxy.send_signal(signal.SIGTERM)
        for client in clients:
            client.close()
        assert proxy.wait(20) == 0
    lines = (tmp_path / "log").read_text().splitlines()
    lines = [line for line in lines if "does not name its brokers" not in line]
    assert lines[0] == f"kproxy: ulimit -n 64 allows {possible} connections at most, raise it"
    assert "no more connections than" in lines[1]
    assert len(lines) == 3 and "recorded" in lines[2]


def test_a_cluster_of_many_brokers_leaves_room_for_clients(tmp_path: Path) -> None:
    """399 brokers take their listeners only as far as clients can still be served."""
    brokers = metadata(*((n, f"b{n}", 9092) for n in range(399)))
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        address = f"127.0.0.1:{server.getsockname()[1]}"
        proxy = stack.enter_context(limited(300, tmp_path, "--bootstrap", address, "--no-record"))
        assert proxy.stdout
        port = int(proxy.stdout.readline().rpartition(":")[2])
        first, _ = server.accept()
        with first:
            first.recv(1000)
            first.sendall(response(3, 1, brokers, 0))
            log = tmp_path / "log"
            until(lambda: "listeners" in log.read_text(), "the log says how many listeners")
            for _ in range(50):
                client = socket.create_connection(("127.0.0.1", port), timeout=10)
                stack.enter_context(client).sendall(ask(1))
                for broker in serving(server, 1):
                    stack.enter_context(broker)
                assert client.recv(1000) == answer(1)
    lines = log.read_text().splitlines()
    assert len(lines) == 2, lines
    assert re.search(r"ulimit -n 300 allows \d+ connections at most", lines[0])
    assert re.search(r"ulimit -n 300 allows 130 listeners, and the cluster has more", lines[1])


@pytest.mark.parametrize("files", [RESERVED_FILES + 8, 64, 300, 1024, 20_100])
def test_clients_and_listeners_never_take_more_than_there_is(files: int) -> None:
    limit = Descriptors(files)
    for sockets in range(1, limit.listeners_max + 1):
        connections = limit.connections_max(sockets)
        assert connections >= 2
        assert RESERVED_FILES + sockets + 2 * connections <= files


LIMITS = [
    # soft, hard, what setrlimit allows at most, wanted connections → files
    ((1024, 524_288), 524_288, 10_000, 20_080),
    ((1024, 4096), 4096, 10_000, 4096),
    ((1024, -1), 1 << 30, 10_000, 20_080),
    ((256, -1), 10_240, 10_000, 10_240),
    ((-1, -1), 1 << 30, 10_000, 20_080),
    ((65_536, 65_536), 65_536, 100, 65_536),
    ((1024, 1024), 1024, 10_000, 1024),
]


@pytest.mark.parametrize(("limits", "most", "connections", "files"), LIMITS)
def test_the_limit_is_raised_as_far_as_it_goes(
    monkeypatch: pytest.MonkeyPatch, limits: tuple, most: int, connections: int, files: int
) -> None:
    given = []

    def setrlimit(_: int, pair: tuple[int, int]) -> None:
        if pair[0] > most or (limits[1] != -1 and pair[1] > limits[1]):
            raise ValueError("not allowed to raise maximum limit")
        assert pair[1] in (limits[1], -1) or pair[1] >= limits[1], "the hard limit is not lowered"
        given.append(pair[0])

    monkeypatch.setattr(descriptors.resource, "getrlimit", lambda _: limits)
    monkeypatch.setattr(descriptors.resource, "setrlimit", setrlimit)
    assert descriptors.raise_limit(connections).files_max == files
    assert given in ([], [files])
