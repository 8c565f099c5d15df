"""The brokers of a cluster that wants a login first are listened for at once after a restart."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import stat
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import hypothesis
import pytest
import trio
from hypothesis import strategies as st

from kproxy.net import serve
from kproxy.net.seen_nodes import EXPIRE_SECONDS, FILE_BYTES_MAX, NODES_MAX, Named, SeenNodes
from kproxy.proxy.actions import Address, Listen
from kproxy.proxy.cluster import Cluster
from kproxy.proxy.rewrite import BrokerAddress
from kproxy.proxy.settings import Settings
from kproxy.wire.protocol import messages
from tests.bed.logged import to
from tests.net.proxied import receive_exactly, unused_port
from tests.proxy.playing import metadata, request, response

BOOTSTRAP = [("kafka-2", 9092), ("Kafka-1", 9092)]
NOW = 1_790_000_000.0
NODES = {1: ("kafka-1", 9092), 2: ("kafka-2", 9093)}


def seen(folder: Path, logs: list[str], now: float = NOW) -> SeenNodes:
    return SeenNodes(folder, BOOTSTRAP, to(logs), lambda: now)


def named(nodes: dict[int, Address], at: float = NOW) -> dict[int, Named]:
    return {node_id: (address, at) for node_id, address in nodes.items()}


def test_what_was_named_is_known_to_the_next_run_and_to_its_user_alone(tmp_path: Path) -> None:
    folder, logs, umask = tmp_path / "state" / "kproxy", [], os.umask(0)
    try:
        seen(folder, logs).save(named(NODES))
    finally:
        os.umask(umask)
    again = SeenNodes(folder, [("kafka-1", 9092), ("kafka-2", 9092)], to(logs), lambda: NOW)
    assert again.load() == NODES
    assert SeenNodes(folder, [("kafka-1", 9092)], to(logs)).load() == {}
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (folder.parent, folder, again.path)]
    assert modes == [0o700, 0o700, 0o600]
    assert [path.name for path in folder.iterdir()] == [again.path.name] and not logs


def test_a_broker_that_moved_is_replaced_and_one_that_is_gone_is_forgotten(tmp_path: Path) -> None:
    logs: list[str] = []
    seen(tmp_path, logs).save(named(NODES))
    later = seen(tmp_path, logs, NOW + EXPIRE_SECONDS - 1)
    assert later.load() == NODES
    later.save(named({1: ("elsewhere", 9092)}, NOW + EXPIRE_SECONDS - 1))
    assert seen(tmp_path, logs, NOW).load() == {1: ("elsewhere", 9092), 2: NODES[2]}
    assert seen(tmp_path, logs, NOW + EXPIRE_SECONDS + 1).load() == {1: ("elsewhere", 9092)}
    assert not logs


def test_a_broker_that_left_the_cluster_is_forgotten_while_kproxy_runs(tmp_path: Path) -> None:
    """Its listener stays, and its name expires all the same."""
    logs: list[str] = []
    cluster = Cluster(Settings([("boot", 1)], listen_port=100))
    cluster.discovered([broker(1), broker(2)], 1)
    file = seen(tmp_path, logs, NOW + EXPIRE_SECONDS + 1)
    cluster.discovered([broker(1)], (EXPIRE_SECONDS + 1) * 10**9)
    file.save({each: (of, NOW + at_ns / 1e9) for each, (of, at_ns) in cluster.named.items()})
    assert seen(tmp_path, logs, NOW).load() == {1: ("here", 1)} and not logs


def broker(node_id: int) -> BrokerAddress:
    return BrokerAddress(node_id, "here", node_id, (0, 0), (0, 0), None)


def test_of_too_many_the_ones_named_last_are_kept(tmp_path: Path) -> None:
    seen(tmp_path, []).save(dict.fromkeys(range(NODES_MAX), (("old", 1), NOW - 9)))
    again = seen(tmp_path, [])
    again.load()
    again.save(dict.fromkeys(range(5000, 5999), (("new", 2), NOW)))
    found = seen(tmp_path, []).load()
    assert len(found) == NODES_MAX and sum(host == "new" for host, _ in found.values()) == 999


def _write(content: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(content)


def _make_pipe(path: Path) -> None:
    os.mkfifo(path, 0o600)


def _link_elsewhere(path: Path) -> None:
    other = path.parent / "other"
    other.write_text('{"nodes": []}')
    path.symlink_to(other)


def _open_to_others(path: Path) -> None:
    path.write_text('{"nodes": []}')
    path.chmod(0o666)


def _node(**changes: object) -> bytes:
    node = {"node_id": 1, "host": "a", "port": 9092, "named": int(NOW)} | changes
    return json.dumps({"nodes": [node]}).encode()


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (_write(b""), "is damaged"),
        (_write(b'{"nodes": [{"node_id"'), "is damaged"),
        (_write(b"\xff\xfe"), "is damaged"),
        (_write(b"[" * 100_000), "is damaged"),
        (_write(b'{"nodes": {}}'), "is damaged"),
        (_write(b"9" * 10_000), "is damaged"),
        (_write(_node(node_id=True)), "is damaged"),
        (_write(_node(host="a\nb")), "is damaged"),
        (_write(_node(port=0)), "is damaged"),
        (_write(_node(named=1e400)), "is damaged"),
        (_write(b" " * (FILE_BYTES_MAX + 1)), "is too large"),
        (_make_pipe, "is no file"),
        (_open_to_others, "can be written by other users"),
        (_link_elsewhere, "Too many levels of symbolic links"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_line(spoil, why: str, tmp_path: Path) -> None:
    logs: list[str] = []
    file = seen(tmp_path, logs)
    spoil(file.path)
    assert file.load() == {}
    assert len(logs) == 1 and f"{file.path} {why}" in logs[0] and "--node-port" in logs[0]
    file.save(named(NODES))  # and it is replaced by what is known then
    assert seen(tmp_path, []).load() == NODES and len(logs) == 1


def test_the_file_of_another_user_is_not_read(tmp_path: Path, monkeypatch) -> None:
    logs: list[str] = []
    seen(tmp_path, logs).save(named(NODES))
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    assert seen(tmp_path, logs).load() == {} and "is of another user" in logs[0]


@hypothesis.given(st.binary(max_size=200) | st.builds(_node, host=st.text(), port=st.integers()))
def test_no_content_is_an_exception(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = seen(Path(folder), logs := [])
        file.path.write_bytes(content)
        for host, port in file.load().values():
            assert host.isprintable() and 0 < port < 65_536
        assert len(logs) <= 1


def test_a_folder_that_cannot_be_written_is_said_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    logs: list[str] = []
    levels: list[str] = []
    file = seen(tmp_path / "file" / "kproxy", logs)
    file.log = lambda text, level: (logs.append(text), levels.append(level))
    for _ in range(3):
        file.save(named(NODES))
    assert len(logs) == 1 and "cannot be kept" in logs[0] and "Not a directory" in logs[0]
    assert levels == ["warning"]


# ---- the machine


def test_remembered_brokers_make_way_for_those_that_are_named() -> None:
    settings = Settings([("boot", 1)], listen_port=100, nodes_max=3, node_ports={9: 77})
    cluster = Cluster(settings)
    actions = cluster.restored({each: ("gone", each) for each in range(1, 8)})
    listened = [(each.node_id, each.port) for each in actions if isinstance(each, Listen)]
    assert listened == [(1, 102), (2, 103), (9, 77)] and not cluster.named
    for node_id, port in listened:
        cluster.listening(node_id, ("127.0.0.1", port), 0)
    actions = cluster.discovered([broker(11), broker(12)], 5)
    assert [each.node_id for each in actions if isinstance(each, Listen)] == [11, 12]
    assert cluster.named.keys() == {11, 12}


# ---- the proxy


@contextlib.asynccontextmanager
async def run(
    port: int, broker_port: int, folder: Path, logs: list[str], **changes
) -> AsyncIterator[None]:
    """A proxy that may be started again."""
    settings = Settings([("127.0.0.1", broker_port)], port, **changes)
    options = serve.Options(settings, nodes_folder=folder)
    ready, stop = trio.Event(), trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve.serve, options, lambda _: ready.set(), to(logs), None, stop)
        with trio.fail_after(10):
            await ready.wait()
            yield
            stop.set()


ASK = request(
    3,
    1,
    messages.MetadataRequest(topics=[]),
    7,
    "a client that has logged in, as kproxy has not",
)


def broker_at(port: int) -> Callable:
    """A broker, node 3, that names itself to that client alone."""

    async def broker(stream: trio.SocketStream) -> None:
        async with stream:
            size = await receive_exactly(stream, 4)
            if size + await receive_exactly(stream, int.from_bytes(size)) == ASK:
                await stream.send_all(response(3, 1, metadata((3, "127.0.0.1", port)), 7))
                await stream.receive_some(1)

    return functools.partial(trio.serve_tcp, broker, port, host="127.0.0.1")


async def asked(port: int) -> bytes:
    """The first bytes of an answer."""
    with trio.fail_after(10):
        async with await trio.open_tcp_stream("127.0.0.1", port) as client:
            await client.send_all(ASK)
            return await client.receive_some()


def unknown(logs: list[str]) -> int:
    return sum("does not name its brokers before a login" in each for each in logs)


async def test_a_restart_listens_at_once_for_what_a_login_had_shown(tmp_path: Path) -> None:
    logs, at, port = [], unused_port(), unused_port()
    async with trio.open_nursery() as nursery:
        await nursery.start(broker_at(at))
        async with run(port, at, tmp_path, logs):
            assert await asked(port)
            with trio.fail_after(10):
                while not any(tmp_path.iterdir()):
                    await trio.sleep(0.02)
        assert unknown(logs) == 1
        async with run(port, at, tmp_path, logs):  # the client comes back to its broker alone
            assert await asked(port + 4)
        assert unknown(logs) == 1
        nursery.cancel_scope.cancel()


async def test_a_port_that_the_user_gave_is_open_from_the_start(tmp_path: Path) -> None:
    """Nobody knows where node 3 is before it is named: a bootstrap broker stands in for it."""
    logs, at, port = [], unused_port(), unused_port()
    async with trio.open_nursery() as nursery:
        await nursery.start(broker_at(at))
        async with run(unused_port(), at, tmp_path, logs, node_ports={3: port}):
            assert await asked(port)
        assert not unknown(logs)
        nursery.cancel_scope.cancel()


async def test_a_broker_that_has_moved_meanwhile_is_reached(tmp_path: Path) -> None:
    logs, at, port, gone = [], unused_port(), unused_port(), unused_port()
    before = {3: (("127.0.0.1", gone), time.time())}
    SeenNodes(tmp_path, [("127.0.0.1", at)], to(logs)).save(before)
    async with trio.open_nursery() as nursery:
        await nursery.start(broker_at(at))
        async with run(port, at, tmp_path, logs):
            assert await asked(port + 4)
        nursery.cancel_scope.cancel()
    assert not logs
