"""A proxy in this process, between raw sockets: a broker made of a function, and clients."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import attrs
import trio

from kproxy.net import serve
from kproxy.proxy.settings import Settings
from tests.bed.logged import to

Handler = Callable[[trio.SocketStream], Awaitable[None]]


@attrs.define(eq=False)
class Proxied:
    """A running proxy."""

    port: int
    broker_port: int
    logs: list[str]
    stop: trio.Event
    entries: list
    summary: serve.RunSummary | None = None

    async def connect(self) -> trio.SocketStream:
        """A client's connection."""
        return await trio.open_tcp_stream("127.0.0.1", self.port)


@contextlib.asynccontextmanager
async def proxied(
    broker: Handler | None, record: Path | None = None, seconds_max: float = 20, **changes
) -> AsyncIterator[Proxied]:
    """Run a proxy in front of a broker that serves each connection with this function."""
    with trio.fail_after(seconds_max):
        async with trio.open_nursery() as nursery:
            if broker is None:
                port = unused_port()
            else:
                serve_tcp = functools.partial(trio.serve_tcp, host="127.0.0.1")
                (listener,) = await nursery.start(serve_tcp, broker, 0)
                port = listener.socket.getsockname()[1]
            settings = Settings([("127.0.0.1", port)], **changes.pop("settings", {}))
            options = serve.Options(settings, record_path=record, discover=False, **changes)
            proxy = Proxied(0, port, [], trio.Event(), [])
            ready = trio.Event()

            def listening(address: str) -> None:
                proxy.port = int(address.rpartition(":")[2])
                ready.set()

            async def run() -> None:
                proxy.summary = await serve.serve(
                    options, listening, to(proxy.logs), proxy.entries.extend, proxy.stop
                )

            async with trio.open_nursery() as running:
                running.start_soon(run)
                await ready.wait()
                yield proxy
                proxy.stop.set()
            nursery.cancel_scope.cancel()


def unused_port() -> int:
    """A port at which nobody listens."""
    import socket

    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


async def receive_exactly(stream: trio.SocketStream, size: int) -> bytes:
    """Read so many bytes, or fail."""
    data = bytearray()
    while len(data) < size:
        chunk = await stream.receive_some(size - len(data))
        if not chunk:
            if not data:
                raise trio.EndOfChannel
            raise AssertionError(f"the stream ended after {len(data)} of {size} bytes")
        data += chunk
    return bytes(data)
