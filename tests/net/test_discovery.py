"""The brokers' listeners are open before a client asks, so that a restart goes unnoticed."""

from __future__ import annotations

import functools
import struct

import trio

from kproxy.net.discovery import discover
from kproxy.net.listeners import Listening
from tests.bed.logged import to
from tests.net.proxied import receive_exactly, unused_port
from tests.proxy.playing import metadata, response


async def listening(nursery: trio.Nursery, broker) -> int:
    serve_tcp = functools.partial(trio.serve_tcp, host="127.0.0.1")
    (listener,) = await nursery.start(serve_tcp, broker, 0)
    return listener.socket.getsockname()[1]


async def looked(broker) -> list:
    found: list = []
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            port = await listening(nursery, broker)
            bootstrap = [("127.0.0.1", unused_port()), ("127.0.0.1", port)]
            await discover(bootstrap, found.extend, print, Listening())
            nursery.cancel_scope.cancel()
    return [(each.node_id, each.host, each.port) for each in found]


async def test_a_broker_names_the_brokers() -> None:
    async def broker(stream: trio.SocketStream) -> None:
        (size,) = struct.unpack(">i", await receive_exactly(stream, 4))
        await receive_exactly(stream, size)
        await stream.send_all(response(3, 1, metadata((1, "a", 9092), (7, "b", 9093)), 0))

    assert await looked(broker) == [(1, "a", 9092), (7, "b", 9093)]


async def test_a_broker_that_wants_authentication_is_left_alone() -> None:
    async def broker(stream: trio.SocketStream) -> None:
        await stream.aclose()

    assert await looked(broker) == []


async def test_silence_and_the_end_of_it_are_said_once() -> None:
    logs: list[str] = []
    port = unused_port()
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(
                discover, [("127.0.0.1", port)], lambda _: None, to(logs), Listening()
            )
            while not logs:
                await trio.sleep(0.01)

            async def broker(stream: trio.SocketStream) -> None:
                await stream.aclose()

            await nursery.start(functools.partial(trio.serve_tcp, host="127.0.0.1"), broker, port)
            while len(logs) < 2:
                await trio.sleep(0.01)
            nursery.cancel_scope.cancel()
    assert "refuses connections" in logs[0] and "keeps trying" in logs[0]
    assert "answers now" in logs[1]
