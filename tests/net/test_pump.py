"""Real sockets through the pump: what arrives is what was sent, and trouble stays where it is."""

from __future__ import annotations

import functools
import gc
import struct

import pytest
import trio

from kproxy.exchange.entries import Frame, Note, Side
from kproxy.look.report.findings import findings
from kproxy.look.report.light import light_data
from kproxy.look.why.number import number_story
from kproxy.look.why.source import StorySource
from kproxy.net.link import End
from kproxy.net.recorder import Recorder
from kproxy.proxy.cluster import Cluster
from kproxy.proxy.settings import Settings
from kproxy.recording import read
from kproxy.recording.reader import entries
from kproxy.wire.protocol import messages
from tests.net.proxied import proxied, receive_exactly
from tests.net.pumped import pumped
from tests.proxy.playing import request, response

HEARTBEAT = 12
PEER = "peer that reads slowly"


def ask(correlation_id: int) -> bytes:
    return request(HEARTBEAT, 4, messages.HeartbeatRequest(group_id="g"), correlation_id)


def answer(correlation_id: int) -> bytes:
    return response(HEARTBEAT, 4, messages.HeartbeatResponse(), correlation_id)


async def answering(stream: trio.SocketStream, after_seconds: float = 0) -> None:
    """A broker that answers every Heartbeat, until the client ends."""
    async with stream:
        while True:
            try:
                header = await receive_exactly(stream, 12)
            except trio.EndOfChannel:
                return
            size, _, _, correlation_id = struct.unpack(">ihhi", header)
            await receive_exactly(stream, size - 8)
            await trio.sleep(after_seconds)
            await stream.send_all(answer(correlation_id))


async def test_bytes_pass_both_ways_and_are_recorded(tmp_path) -> None:
    path = tmp_path / "r.mcap"
    async with proxied(answering, path) as proxy:
        async with await proxy.connect() as client:
            for number in range(50):
                await client.send_all(ask(number))
                got = await receive_exactly(client, len(answer(number)))
                assert got == answer(number)
    frames = [entry for entry in entries(path) if isinstance(entry, Frame)]
    asked = [frame.data for frame in frames if frame.side is Side.CLIENT]
    assert asked == [ask(number) for number in range(50)]
    answered = [frame for frame in frames if frame.side is Side.BROKER]
    assert [frame.data for frame in answered] == [answer(number) for number in range(50)]
    for exchange in read(path):
        row = exchange.row
        times = [row.request_received_ns, row.request_sent_ns]
        times += [row.response_received_ns, row.response_sent_ns]
        assert times == sorted(times) and times[0] > 0
    assert proxy.summary.frames_recorded == 100
    assert proxy.summary.frames_lost == 0


async def test_connections_leave_nothing_for_the_garbage_collector() -> None:
    """`kproxy run` has it look rarely, and what a connection holds can be megabytes."""
    async with proxied(answering) as proxy:
        gc.collect()
        gc.disable()
        try:
            for number in range(5):
                async with await proxy.connect() as client:
                    await client.send_all(ask(number))
                    await receive_exactly(client, len(answer(number)))
            # Until the proxy has closed them or the time is up; the last one is still at hand.
            while sum(isinstance(found, End) for found in gc.get_objects()) > 2:
                await trio.sleep(0.01)
        finally:
            gc.enable()


async def test_a_client_that_never_reads_holds_up_nobody_else() -> None:
    """Backpressure reaches the broker's end of that one connection, and no other."""
    blocked = trio.Event()

    async def flooding(stream: trio.SocketStream) -> None:
        async with stream:
            header = await receive_exactly(stream, 12)
            size, _, _, correlation_id = struct.unpack(">ihhi", header)
            await receive_exactly(stream, size - 8)
            if correlation_id == 1:
                await stream.send_all(answer(1))
                return
            big = struct.pack(">ii", 64 << 20, correlation_id)
            await stream.send_all(big)
            sent = 0
            while True:
                with trio.move_on_after(0.5) as scope:
                    await stream.send_all(bytes(1 << 16))
                if scope.cancelled_caught:
                    break
                sent += 1 << 16
            assert sent < 60 << 20, "the flood must have been stopped"
            blocked.set()
            await trio.sleep_forever()

    async with proxied(flooding) as proxy:
        silent = await proxy.connect()
        await silent.send_all(ask(2))
        await blocked.wait()
        async with await proxy.connect() as other:
            await other.send_all(ask(1))
            assert await receive_exactly(other, len(answer(1))) == answer(1)
        await trio.aclose_forcefully(silent)


@pytest.mark.parametrize("slow", ["broker", "client"])
async def test_that_a_peer_reads_slowly_is_said_and_is_not_the_time_of_kproxy(
    slow: str, tmp_path
) -> None:
    path, many, large = tmp_path / "r.mcap", 900, bytes(30_000)
    sleeps = 0.7 if slow == "broker" else 0.0

    async def broker(stream: trio.SocketStream) -> None:
        async with stream:
            for number in range(many):
                (size,) = struct.unpack(">i", await receive_exactly(stream, 4))
                await trio.sleep(0 if number else sleeps)
                await receive_exactly(stream, size)
                body = b"" if sleeps else large
                await stream.send_all(struct.pack(">ii", 4 + len(body), number) + body)

    async with proxied(broker, path, seconds_max=30) as proxy:
        async with await proxy.connect() as client, trio.open_nursery() as nursery:
            body = large if sleeps else b""
            frames = (struct.pack(">ihhi", 8 + len(body), 99, 0, n) + body for n in range(many))
            nursery.start_soon(client.send_all, b"".join(frames))
            await trio.sleep(0.7 - sleeps)
            await receive_exactly(client, many * (8 + (0 if sleeps else len(large))))
    exchanges = [*read(path)]
    assert len(exchanges) == many and max(each.proxy_ms or 0 for each in exchanges) < 350
    (said,) = (each for each in findings(light_data([path])) if each.kind == PEER)
    assert (
        said.text.startswith("A bootstrap" if sleeps else "clients of 127")
        and "to read" in said.text
    )
    late = max(exchanges, key=lambda each: each.broker_ms or 0)
    story = " ".join(number_story(StorySource([path], lambda done: None), str(late.number)))
    assert not sleeps or "The broker read slowly: " in story, story


async def test_clients_at_the_limit_of_connections_are_told_of_once() -> None:
    async with proxied(answering, connections_max=10) as proxy:

        async def served() -> trio.SocketStream:
            client = await proxy.connect()
            await client.send_all(ask(1))
            await receive_exactly(client, len(answer(1)))
            return client

        async def ended(client: trio.SocketStream) -> None:
            async with client:
                await client.send_eof()
                assert await client.receive_some() == b""

        clients = [await served() for _ in range(9)]
        for said in (1, 1, 2):
            if said == 2:  # only now have enough ended
                await ended(clients.pop())
                clients.append(await served())
            last = await served()
            async with await proxy.connect() as refused:
                assert await refused.receive_some() == b""
            assert len([text for text in proxy.logs if "no more connections" in text]) == said
            await ended(last)
        for client in clients:
            await ended(client)


async def test_a_broker_that_is_down_ends_the_connection_and_is_said() -> None:
    async with proxied(None) as proxy:
        async with await proxy.connect() as client:
            assert await client.receive_some() == b""
    assert "refuses connections" in proxy.logs[0]
    closed = [e for e in proxy.entries if isinstance(e, Note) and e.body["event"] == "closed"]
    assert "refuses connections" in closed[0].body["reason"]


async def test_a_broker_that_restarts_is_waited_for() -> None:
    async with proxied(None) as proxy, trio.open_nursery() as nursery:
        async with await proxy.connect() as client:
            await client.send_all(ask(1))
            serve_tcp = functools.partial(trio.serve_tcp, host="127.0.0.1")
            await nursery.start(serve_tcp, answering, proxy.broker_port)
            assert await receive_exactly(client, len(answer(1))) == answer(1)
        nursery.cancel_scope.cancel()
    assert not proxy.logs


async def test_stopping_waits_for_the_answer_that_is_due(tmp_path) -> None:
    asked = trio.Event()
    go = trio.Event()

    async def slow(stream: trio.SocketStream) -> None:
        async with stream:
            await receive_exactly(stream, len(ask(1)))
            asked.set()
            await go.wait()
            await stream.send_all(answer(1))
            await stream.receive_some()

    path = tmp_path / "r.mcap"
    async with proxied(slow, path) as proxy:
        client = await proxy.connect()
        await client.send_all(ask(1))
        await asked.wait()
        proxy.stop.set()
        go.set()
        assert await receive_exactly(client, len(answer(1))) == answer(1)
        assert await client.receive_some() == b""
        await client.aclose()
    recorded = [e.data for e in entries(path) if isinstance(e, Frame)]
    assert recorded == [ask(1), answer(1)]


class Hanging(Recorder):
    """Has no room from when it hangs until it may go on."""

    hangs = False

    def congested(self) -> bool:
        return self.hangs

    async def room(self) -> None:
        self.waits.set()
        await self.go_on.wait()
        self.hangs = False

    def hang(self) -> None:
        self.hangs, self.waits, self.go_on = True, trio.Event(), trio.Event()


async def test_no_connection_is_idle_while_the_disk_lets_nothing_be_read() -> None:
    idle_seconds = 0.2
    recorder = Hanging(None, print)
    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(
            functools.partial(trio.serve_tcp, answering, 0, host="127.0.0.1")
        )
        broker = "127.0.0.1", listener.socket.getsockname()[1]
        machine = Cluster(Settings([broker], idle_seconds=idle_seconds))
        async with pumped(machine, recorder) as at, await at.connect() as client:
            recorder.hang()
            await client.send_all(ask(1))
            await recorder.waits.wait()
            await client.send_all(ask(2))
            await trio.sleep(2 * idle_seconds)
            recorder.go_on.set()
            expected = answer(1) + answer(2)
            assert await receive_exactly(client, len(expected)) == expected
            assert await client.receive_some() == b"", "from now on it is"
        nursery.cancel_scope.cancel()
