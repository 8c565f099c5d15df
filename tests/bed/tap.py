"""A TCP relay that keeps what passes: the truth that a recording is compared with.

Put between kproxy and a broker's bootstrap address, it sees the connections that clients make to
the bootstrap address. It understands nothing, so it cannot be wrong in the way that kproxy could.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import attrs


@attrs.define(eq=False)
class Tap:
    """A listening relay."""

    address: str
    _kept: list[bytes] = attrs.field(factory=list)

    @property
    def bytes_seen(self) -> bytes:
        """All bytes that passed so far, both directions, in the order of arrival."""
        return b"".join(self._kept)


@contextlib.contextmanager
def on(target: str) -> Iterator[Tap]:
    """Relay connections to `target` (HOST:PORT)."""
    host, _, port = target.rpartition(":")
    listener = socket.create_server(("127.0.0.1", 0))
    tap = Tap(f"127.0.0.1:{listener.getsockname()[1]}")
    sockets = [listener]
    threads = []

    def copy(source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while chunk := source.recv(65536):
                tap._kept.append(chunk)
                sink.sendall(chunk)
            sink.shutdown(socket.SHUT_WR)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                sockets.append(client)
                broker = socket.create_connection((host, int(port)))
                sockets.append(broker)
                for ends in ((client, broker), (broker, client)):
                    start(copy, *ends)

    def start(run, *arguments) -> None:
        thread = threading.Thread(target=run, args=arguments)
        threads.append(thread)
        thread.start()

    start(accept)
    try:
        yield tap
    finally:
        for each in sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join()
        for each in sockets:
            each.close()
