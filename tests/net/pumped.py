"""A pump in this process that drives any machine."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable

import attrs
import trio

from kproxy.exchange.entries import Frame, Note
from kproxy.net import listeners
from kproxy.net.clock import Clock
from kproxy.net.handshake import Secure, Secured
from kproxy.net.pump import Pump
from kproxy.net.recorder import Recorder
from kproxy.net.transport import Transport
from kproxy.proxy.machine import Machine
from tests.bed.logged import to


@attrs.define(eq=False)
class Pumped:
    """A running pump."""

    pump: Pump
    port: int
    logs: list[str]
    entries: list[Frame | Note]

    async def connect(self) -> trio.SocketStream:
        """A client's connection."""
        return await trio.open_tcp_stream("127.0.0.1", self.port)


def by(make: Callable[[trio.SocketStream], Transport]) -> Secure:
    """Return what uses a connection by a transport of this kind."""

    async def secure(stream: trio.SocketStream, host: str) -> Secured:
        try:
            return Secured(make(stream), None)
        except BaseException:
            stream.socket.close()
            raise

    return secure


@contextlib.asynccontextmanager
async def pumped(
    machine: Machine, recorder: Recorder | None = None, **options
) -> AsyncIterator[Pumped]:
    """Run a pump that drives this machine."""
    logs: list[str] = []
    entries: list[Frame | Note] = []
    interface = await listeners.resolve("127.0.0.1")
    clock = Clock()
    recorder = recorder or Recorder(None, to(logs), entries.extend)
    pump = Pump(machine, interface, recorder, clock, to(logs), **options)
    ours = interface.open(0)
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            begun = trio.Event()
            nursery.start_soon(pump.serve, ours, begun.set)
            await begun.wait()
            yield Pumped(pump, ours[0].getsockname()[1], logs, entries)
            nursery.cancel_scope.cancel()
    await recorder.finish()
