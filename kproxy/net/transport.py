"""How the pump reaches a peer: a non-blocking byte stream.

The pump tries first and waits only when it must, so a transport has two plain functions and two
waits instead of an awaitable send and receive::

    try_receive ─▶ bytes | b"" at the end | None: wait_receivable, then again
    try_send    ─▶ how many bytes were taken; fewer than given: wait_sendable, then again

A socket is one; so would be TLS over a socket (an `ssl.SSLObject` between two memory BIOs, whose
pending ciphertext counts as not sendable) and a pipe in memory for tests.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from typing import Protocol

import trio

RECEIVE_BYTES_MAX = 64 << 10


class Transport(Protocol):
    """One side of a connection. Its functions raise OSError when the peer is gone."""

    def try_receive(self) -> bytes | None:
        """Return what has arrived, b"" at the end, or None if nothing has yet."""
        ...

    async def wait_receivable(self) -> None:
        """Wait until `try_receive` is worth a try."""
        ...

    def try_send(self, data: bytes | memoryview) -> int:
        """Hand over as much as the peer takes now; return how many bytes that was."""
        ...

    async def wait_sendable(self) -> None:
        """Wait until `try_send` is worth a try."""
        ...

    def send_eof(self) -> None:
        """Half-close: no more will be sent."""
        ...

    def close(self, abrupt: bool) -> None:
        """Close it; `abrupt` tells the peer by a reset. Safe to call twice."""
        ...


class SocketTransport:
    """A TCP connection in plaintext. Owns the socket."""

    def __init__(self, stream: trio.SocketStream) -> None:
        family = stream.socket.family
        # The plain socket: trio's own methods cost more than the system calls that they wrap.
        self._socket = socket.socket(family, socket.SOCK_STREAM, fileno=stream.socket.detach())
        self._socket.setblocking(False)

    def try_receive(self) -> bytes | None:
        """See Transport."""
        try:
            return self._socket.recv(RECEIVE_BYTES_MAX)
        except BlockingIOError:
            return None

    async def wait_receivable(self) -> None:
        """See Transport."""
        await trio.lowlevel.wait_readable(self._socket)

    def try_send(self, data: bytes | memoryview) -> int:
        """See Transport."""
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0

    async def wait_sendable(self) -> None:
        """See Transport."""
        await trio.lowlevel.wait_writable(self._socket)

    def send_eof(self) -> None:
        """See Transport."""
        self._socket.shutdown(socket.SHUT_WR)

    def close(self, abrupt: bool) -> None:
        """See Transport."""
        if self._socket.fileno() < 0:
            return
        if abrupt:
            with contextlib.suppress(OSError):
                # Linger of zero seconds: closing sends a reset.
                linger = struct.pack("ii", 1, 0)
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        trio.lowlevel.notify_closing(self._socket)
        self._socket.close()
