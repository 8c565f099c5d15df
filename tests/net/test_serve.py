"""The whole of it: signals at any time, and nothing that a broker says ends the proxy."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import trio

from kproxy.commands.run import report
from kproxy.exchange.entries import Note
from kproxy.net import reloading, running, serve
from kproxy.net.serve import RunSummary
from kproxy.net.unusable import Unusable
from kproxy.proxy.actions import Action
from kproxy.proxy.cluster import Cluster
from kproxy.proxy.faults import Rule
from kproxy.proxy.settings import Settings
from kproxy.recording import entries, read, verify
from kproxy.wire.protocol import decode_response, messages
from tests.bed.logged import to
from tests.net.proxied import Proxied, proxied, receive_exactly
from tests.net.test_pump import answer, answering, ask
from tests.proxy.machines import Answerer
from tests.proxy.playing import metadata, request, response
from tests.versions import ALL


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_right_after_the_first_line_completes_the_recording(
    ending: signal.Signals, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as broker:
        address = f"127.0.0.1:{broker.getsockname()[1]}"
        for number in range(4 if ALL else 2):
            path = tmp_path / f"{number}.mcap"
            command = [sys.executable, "-m", "kproxy", "run", "--bootstrap", address]
            command += ["--listen", "127.0.0.1:0", "--record", str(path)]
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
            with subprocess.Popen(command, **pipes) as proxy:
                assert proxy.stdout and proxy.stderr
                assert proxy.stdout.readline()
                proxy.send_signal(ending)
                said = proxy.stderr.read()
                assert proxy.wait(20) == 0, said
            verify(path)
            assert not any(
                isinstance(entry, Note) and entry.body["event"] == "torn" for entry in entries(path)
            )
            assert said == f"kproxy: recorded 0 frames in {path}\n"


def test_the_last_line_of_a_long_run_names_the_first_and_the_last_file(tmp_path: Path) -> None:
    paths = [tmp_path / f"cap-{number:04}.mcap" for number in range(377)]
    for path in paths[3:]:
        path.touch()
    assert report(RunSummary(9, 0, paths)) == (
        f"recorded 9 frames in 377 files, 3 of them deleted: {paths[0]} (deleted) … {paths[-1]}"
    )
    assert report(RunSummary(9, 1, paths[3:5])) == (
        f"recorded 9 frames, 1 frames LOST in {paths[3]} {paths[4]}"
    )


@pytest.mark.parametrize(
    "where", [("127.0.0.1", 70_000), ("a\0b", 9092), ("\udcff", 9092), ("x" * 300, 1), ("..", 1)]
)
async def test_an_address_that_nothing_can_have_ends_its_connections_only(
    where: tuple[str, int],
) -> None:
    async def broker(stream: trio.SocketStream) -> None:
        async with stream:
            header = await receive_exactly(stream, 12)
            size, api_key, version, number = struct.unpack(">ihhi", header)
            await receive_exactly(stream, size - 8)
            body = metadata((1, "127.0.0.1", 1), (2, *where))
            is_metadata = api_key == 3
            await stream.send_all(
                response(3, version, body, number) if is_metadata else answer(number)
            )
            await stream.receive_some()

    async with proxied(broker) as proxy:
        async with await proxy.connect() as client:
            await client.send_all(request(3, 9, messages.MetadataRequest(topics=None), 1))
            size = await receive_exactly(client, 4)
            frame = size + await receive_exactly(client, int.from_bytes(size))
        _, named = decode_response(frame, 3, 9).body.brokers
        assert named.host == "127.0.0.1"
        async with await trio.open_tcp_stream("127.0.0.1", named.port) as node:
            assert await node.receive_some() == b""
        async with await proxy.connect() as client:
            await client.send_all(ask(2))
            assert await receive_exactly(client, len(answer(2))) == answer(2)
        (line,) = proxy.logs
        assert line.startswith("node 2 is down, connections to it ") and ": no broker: " in line
        assert "defect" not in line


async def test_a_defect_in_the_first_look_at_the_cluster_is_one_line(monkeypatch) -> None:
    def discovered(*_: object) -> None:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr(Cluster, "discovered", discovered)
    logs: list[str] = []
    stop = trio.Event()
    served: list[bool] = []
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            serve_tcp = functools.partial(trio.serve_tcp, host="127.0.0.1")
            (listener,) = await nursery.start(serve_tcp, answering, 0)
            settings = Settings([listener.socket.getsockname()[:2]])

            def ready(address: str) -> None:
                nursery.start_soon(work, int(address.rpartition(":")[2]))

            async def work(port: int) -> None:
                while not logs:
                    await trio.sleep(0.001)
                async with await trio.open_tcp_stream("127.0.0.1", port) as client:
                    await client.send_all(ask(1))
                    served.append(await receive_exactly(client, len(answer(1))) == answer(1))
                stop.set()

            await serve.serve(serve.Options(settings), ready, to(logs), None, stop)
            nursery.cancel_scope.cancel()
    assert served == [True]
    (line,) = logs
    assert line.startswith("the first look at the cluster failed by a defect in kproxy")
    assert line.endswith("ZeroDivisionError: oh")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_waits_for_answers_as_long_as_a_stop_does(number: int) -> None:
    asked = trio.Event()

    async def silent(stream: trio.SocketStream) -> None:
        async with stream:
            await stream.receive_some()
            asked.set()
            await trio.sleep_forever()

    async with proxied(silent, drain_seconds=0.25) as proxy:
        async with await proxy.connect() as client:
            await client.send_all(ask(1))
            await asked.wait()
            signal.raise_signal(number)
            with trio.fail_after(2):  # the usual time is more
                assert await client.receive_some() == b""
    again = "; press Ctrl-C again to end at once" if number == signal.SIGINT else ""
    assert proxy.logs == [f"answers that are due have 0.25 s{again}"]


async def test_a_signal_cuts_off_nothing_that_the_broker_has_got(tmp_path: Path) -> None:
    """Clients go on asking, each several at once: what was sent on is answered, no more is."""
    asked: list[int] = []
    answered: list[int] = []

    async def broker(stream: trio.SocketStream) -> None:
        async with stream:
            with contextlib.suppress(trio.EndOfChannel, trio.BrokenResourceError):
                while True:
                    number = int.from_bytes((await receive_exactly(stream, len(ask(1))))[8:12])
                    asked.append(number)
                    await trio.sleep(0.01)
                    await stream.send_all(answer(number))

    async def client(proxy: Proxied, first: int) -> None:
        async with await proxy.connect() as stream, trio.open_nursery() as nursery:

            async def flood() -> None:
                with contextlib.suppress(trio.BrokenResourceError):
                    for number in range(first, first + 10_000):
                        await stream.send_all(ask(number))
                        await trio.sleep(0.002)

            nursery.start_soon(flood)
            with contextlib.suppress(trio.EndOfChannel, trio.BrokenResourceError):
                while True:
                    got = await receive_exactly(stream, len(answer(1)))
                    answered.append(int.from_bytes(got[4:8]))
            nursery.cancel_scope.cancel()

    path = tmp_path / "r.mcap"
    async with proxied(broker, path) as proxy, trio.open_nursery() as clients:
        for nth in range(3):
            clients.start_soon(client, proxy, nth * 10_000)
        while len(answered) < 30:
            await trio.sleep(0.01)
        signal.raise_signal(signal.SIGTERM)
    assert sorted(answered) == sorted(asked)
    assert {each.number for each in read(path) if each.response is not None} >= {*range(1, 31)}
    assert not [each for each in read(path) if each.unanswered and each.row.request_sent_ns]


async def test_a_signal_ends_it_though_a_broker_reads_nothing(tmp_path: Path) -> None:
    size = 20_000_000
    head = size.to_bytes(4) + b"\0\0\0\x09\0\0\0\1\0\1a"

    async def deaf(stream: trio.SocketStream) -> None:
        async with stream:
            await trio.sleep_forever()

    async with proxied(deaf, tmp_path / "r.mcap", drain_seconds=0.25) as proxy:
        async with await proxy.connect() as one, await proxy.connect() as other:
            for client in (one, other):
                with trio.move_on_after(0.5) as filling:
                    await client.send_all(head + bytes(size))
                assert filling.cancelled_caught, "kproxy waits for the broker"
            signal.raise_signal(signal.SIGTERM)
            with trio.fail_after(5):
                for client in (one, other):
                    with contextlib.suppress(trio.BrokenResourceError):
                        assert await client.receive_some() == b""
    assert proxy.logs == []


async def test_a_stop_does_not_wait_for_a_disk_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs, heals = threading.Event(), threading.Event()
    pwritev = os.pwritev

    def put(fd: int, buffers: list[bytes], offset: int) -> int:
        if hangs.is_set():
            heals.wait(20)
        return pwritev(fd, buffers, offset)

    monkeypatch.setattr(os, "pwritev", put)
    try:
        with pytest.RaisesGroup(serve.RecordingUnfinished, flatten_subgroups=True):
            async with proxied(answering, tmp_path / "r.mcap", drain_seconds=0) as proxy:
                async with await proxy.connect() as client:
                    hangs.set()
                    await client.send_all(ask(2))
                    assert await receive_exactly(client, len(answer(2))) == answer(2)
                began = trio.current_time()
    finally:
        heals.set()
    assert trio.current_time() - began < 5


class Starting(Answerer):
    """A replaying broker."""

    def start(self, now: int) -> list[Action]:
        """It has no listener."""
        return []


async def test_a_replaying_broker_whose_control_address_is_open_to_all_is_refused_in_a_line() -> (
    None
):
    options = serve.Options(Settings(()), control=("0.0.0.0", 0), replaying=Starting(b""))
    with pytest.raises(Unusable, match="KPROXY_CONTROL_TOKEN"):
        await serve.serve(options, print, print)


async def test_a_replaying_broker_is_named_by_its_advertised_host() -> None:
    stop, named = trio.Event(), []

    def ready(address: str) -> None:
        named.append(address)
        stop.set()

    settings = Settings((), advertised_host="kproxy.test")
    await serve.serve(serve.Options(settings, replaying=Starting(b"")), ready, print, stop=stop)
    assert named[0].startswith("kproxy.test:")


async def test_nobody_is_told_that_a_replay_is_ready_when_it_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Files are read while the end begins."""
    said: list[str] = []
    ends, has_read = threading.Event(), threading.Event()

    def read_rules() -> list[Rule]:
        ends.wait(10)
        has_read.set()
        return []

    def notify(state: str) -> None:
        said.append(state.partition("\n")[0])
        if state == "STOPPING=1":
            ends.set()
            has_read.wait(2)

    for module in (running, reloading):
        monkeypatch.setattr(module, "notify", notify)
    monkeypatch.setattr(running, "_has_terminal", lambda: False)

    def ready(address: str) -> None:
        signal.raise_signal(signal.SIGHUP)
        signal.raise_signal(signal.SIGTERM)

    settings, health = Settings(()), ("127.0.0.1", 0)
    options = serve.Options(settings, replaying=Starting(b""), health=health, read_rules=read_rules)
    await serve.serve(options, ready, print)
    assert said in (["READY=1", "RELOADING=1", "STOPPING=1"], ["READY=1", "STOPPING=1"])
