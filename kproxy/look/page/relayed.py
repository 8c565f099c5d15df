"""The process of the page of a running proxy: `net.page_process` starts it, and relays to it.

    standard input: paths, then sockets, one for each request ─▶ ControlServer ─▶ Pages

It has no access rules: the socket pair that is its standard input is private, and who may ask was
checked at its other end. It ends when that end is closed, and by no signal that is sent to both.
"""

from __future__ import annotations

import gc
import os
import socket
import sys

import attrs
import trio

from kproxy.__main__ import YOUNG_OBJECTS
from kproxy.background import stand_behind
from kproxy.levels import Level
from kproxy.look.page.routes import Pages
from kproxy.net.control import BROWSER_CONNECTIONS_MAX, ControlServer
from kproxy.net.page_process import LENGTH_BYTES
from kproxy.printable import printable


@attrs.frozen(eq=False)
class HandedOver(trio.abc.Listener[trio.SocketStream]):
    """A listener that gets its connections from another process, ready made."""

    pair: trio.socket.SocketType
    closed: trio.Event = attrs.field(factory=trio.Event)
    """Set when the other process has gone."""

    async def accept(self) -> trio.SocketStream:
        """Return the next connection; wait forever when none can come any more."""
        while True:
            await trio.lowlevel.wait_readable(self.pair.fileno())
            with socket.socket(fileno=os.dup(self.pair.fileno())) as pair:
                data, descriptors, _, _ = socket.recv_fds(pair, 1, 1)
            for descriptor in descriptors:
                given = socket.socket(fileno=descriptor)
                return trio.SocketStream(trio.socket.from_stdlib_socket(given))
            if not data:
                self.closed.set()
                await trio.sleep_forever()

    async def aclose(self) -> None:
        """Close it."""
        self.pair.close()
        await trio.lowlevel.checkpoint()


async def serve(paths: list[str], listener: HandedOver) -> None:
    """Answer the requests that are handed over, until none can come any more."""
    async with trio.open_nursery() as nursery:
        routes = Pages(paths, nursery, _log).routes()
        server = ControlServer(
            routes, "localhost", None, _log, connections_max=BROWSER_CONNECTIONS_MAX
        )
        nursery.start_soon(server.serve, [listener])
        await listener.closed.wait()
        nursery.cancel_scope.cancel()


def _log(text: str, level: Level = "info", /) -> None:
    print(printable(f"kproxy, its page: {text}"), file=sys.stderr, flush=True)


def _paths(pair: socket.socket) -> list[str]:
    """Return the paths of the recording, which come first, and say that they have come."""
    length = int.from_bytes(pair.recv(LENGTH_BYTES, socket.MSG_WAITALL))
    data = pair.recv(length, socket.MSG_WAITALL)
    pair.send(b".")
    return [os.fsdecode(path) for path in data.split(b"\0") if path]


async def _main() -> None:
    pair = socket.socket(fileno=0)
    await serve(_paths(pair), HandedOver(trio.socket.from_stdlib_socket(pair)))


if __name__ == "__main__":
    gc.set_threshold(YOUNG_OBJECTS, *gc.get_threshold()[1:])
    stand_behind()
    trio.run(_main)
