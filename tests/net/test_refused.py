"""A broker that refuses connections is refused by kproxy, until it answers; with real sockets."""

from __future__ import annotations

import contextlib
import errno
import socket
import struct
from collections.abc import AsyncIterator

import attrs
import pytest
import trio

from kproxy.net import listeners
from kproxy.proxy.cluster import Cluster
from kproxy.proxy.settings import Settings
from kproxy.wire.protocol import decode_response, messages
from tests.net.proxied import receive_exactly
from tests.net.pumped import Pumped, pumped
from tests.net.test_pump import answer, ask
from tests.proxy.playing import metadata, request, response


@attrs.define(eq=False)
class Brokers:
    """Two brokers, of which each can go and come back, and a pump in front of them."""

    nursery: trio.Nursery
    ports: dict[int, int]
    running: dict[int, trio.CancelScope]
    at: Pumped
    listeners: dict[int, int] = attrs.field(factory=dict)
    """Where clients find each of them."""

    async def start(self, node_id: int) -> None:
        """A broker begins to listen."""
        host, port = "127.0.0.1", self.ports.get(node_id, 0)
        opened = await trio.open_tcp_listeners(port, host=host)
        self.ports[node_id] = opened[0].socket.getsockname()[1]
        self.running[node_id] = trio.CancelScope()

        async def serve() -> None:
            with self.running[node_id]:
                await trio.serve_listeners(self._answer, opened)

        self.nursery.start_soon(serve)

    async def end(self, node_id: int) -> None:
        """A broker goes."""
        self.running[node_id].cancel()
        while not await refused(self.ports[node_id]):
            await trio.sleep(0.001)

    async def _answer(self, stream: trio.SocketStream) -> None:
        async with stream:
            with contextlib.suppress(trio.EndOfChannel, trio.BrokenResourceError):
                while True:
                    header = await receive_exactly(stream, 12)
                    size, api_key, version, number = struct.unpack(">ihhi", header)
                    await receive_exactly(stream, size - 8)
                    body = metadata(*((n, "127.0.0.1", port) for n, port in self.ports.items()))
                    named = response(3, version, body, number)
                    await stream.send_all(named if api_key == 3 else answer(number))

    async def learn(self) -> None:
        """A client asks at the bootstrap listener where the brokers are."""
        async with await self.at.connect() as client:
            await client.send_all(request(3, 9, messages.MetadataRequest(topics=None), 1))
            size = await receive_exactly(client, 4)
            frame = size + await receive_exactly(client, int.from_bytes(size))
        found = decode_response(frame, 3, 9).body.brokers
        self.listeners = {each.node_id: each.port for each in found}

    async def down(self, node_id: int) -> None:
        """A broker goes, and a client finds out."""
        await self.end(node_id)
        async with await trio.open_tcp_stream("127.0.0.1", self.listeners[node_id]) as client:
            with contextlib.suppress(trio.BrokenResourceError):
                assert await client.receive_some() == b""


@contextlib.asynccontextmanager
async def brokers(**options) -> AsyncIterator[Brokers]:
    """Brokers 1 and 2, which a client has heard of; 1 is the bootstrap broker."""
    async with trio.open_nursery() as nursery:
        found = Brokers(nursery, {}, {}, None)  # type: ignore[arg-type]
        await found.start(1)
        await found.start(2)
        cluster = Cluster(Settings([("127.0.0.1", found.ports[1])]))
        async with pumped(cluster, **options) as found.at:
            await found.learn()
            yield found
        nursery.cancel_scope.cancel()


async def refused(port: int, host: str = "127.0.0.1") -> bool:
    """Whether connections to a port are refused."""
    with trio.socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as sock:
        try:
            await sock.connect((host, port))
        except ConnectionRefusedError:
            return True
        except ConnectionResetError:  # whoever listened has gone just now
            return False
        return False


async def served(port: int) -> None:
    """A client is answered there."""
    async with await trio.open_tcp_stream("127.0.0.1", port) as client:
        await client.send_all(ask(1))
        assert await receive_exactly(client, len(answer(1))) == answer(1)


async def test_a_broker_that_is_down_is_refused_and_comes_back_at_the_same_port() -> None:
    async with brokers() as of:
        port = of.listeners[2]
        for times in (1, 2):
            await of.down(2)
            assert await refused(port)
            await served(of.listeners[1])
            await served(of.at.port)
            assert of.at.pump.acceptor.listening.has("127.0.0.1", port)
            await of.start(2)
            while await refused(port):
                await trio.sleep(0.01)
            await served(port)
            assert len(of.at.logs) == 2 * times
        assert "node 2 is down, connections to it are refused" in of.at.logs[0]
        assert of.at.logs[1] == "node 2 answers again; 1 connections have ended meanwhile"


async def test_nobody_else_gets_the_port_of_a_listener_that_refuses() -> None:
    async with brokers() as of:
        await of.down(2)
        with socket.socket() as other:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with pytest.raises(OSError, match="Address already in use"):
                other.bind(("127.0.0.1", of.listeners[2]))


async def test_a_drain_opens_no_listener_again() -> None:
    async with brokers() as of:
        await of.down(2)
        of.at.pump.acceptor.stop()
        await of.start(2)
        await trio.sleep(0.5)
        assert await refused(of.listeners[2])
        assert len(of.at.logs) == 1


async def test_where_a_socket_cannot_stop_listening_another_takes_its_port(monkeypatch) -> None:
    def shutdown(*_: object) -> None:
        raise OSError(errno.ENOTCONN, "Socket is not connected")

    async with brokers() as of:
        with monkeypatch.context() as patched:
            patched.setattr(socket.socket, "shutdown", shutdown)
            await of.down(2)
        assert await refused(of.listeners[2])
        await of.start(2)
        while await refused(of.listeners[2]):
            await trio.sleep(0.01)
        await served(of.listeners[2])


async def test_a_port_that_is_taken_meanwhile_is_tried_again_and_said_once(monkeypatch) -> None:
    tried = []

    def taken(*_: object) -> None:
        tried.append(1)
        raise OSError(errno.EADDRINUSE, "Address already in use")

    async with brokers() as of:
        await of.down(2)
        with monkeypatch.context() as patched:
            patched.setattr(listeners, "listen_again", taken)
            patched.setattr("kproxy.net.accept.listen_again", taken)
            patched.setattr(listeners, "_bound", taken)
            await of.start(2)
            while len(tried) < 3:
                await trio.sleep(0.01)
        while await refused(of.listeners[2]):
            await trio.sleep(0.01)
        await served(of.listeners[2])
        _, said, again = of.at.logs
        assert "node 2 answers, but cannot be listened for" in said and "keeps trying" in said
        assert "answers again" in again


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "::"])
async def test_a_listener_refuses_at_all_of_its_addresses(host: str) -> None:
    interface = await listeners.resolve(host)
    try:
        opened = interface.open(0)
    except listeners.ListenError as error:
        pytest.skip(str(error))
    places = [each.getsockname() for each in opened]
    sockets = opened
    for _ in range(20):
        sockets = [listeners.refuse(each) for each in sockets]
        for place in places:
            assert await refused(place[1], place[0])
        for each in sockets:
            listeners.listen_again(each)
        assert [each.getsockname() for each in sockets] == places
        for place in places:
            assert not await refused(place[1], place[0])
    for each in sockets:
        each.close()


async def test_while_no_broker_is_down_nothing_runs() -> None:
    ran: list[str] = []

    class Counted(trio.abc.Instrument):
        def task_scheduled(self, task: trio.lowlevel.Task) -> None:
            ran.append(task.name)

    async with brokers() as of:
        await of.down(2)
        await of.start(2)
        while await refused(of.listeners[2]):
            await trio.sleep(0.01)
        await served(of.listeners[2])
        while of.at.pump.connections_open:
            await trio.sleep(0.01)
        trio.lowlevel.add_instrument(counted := Counted())
        await trio.sleep(0.5)
        trio.lowlevel.remove_instrument(counted)
    assert len(ran) <= 3, "only this test"
