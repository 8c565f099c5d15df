"""How the pump reaches a peer: a non-blocking byte stream over a file descriptor.

The pump waits for all of its peers at once and then calls plain functions::

    readable ─▶ try_receive ─▶ bytes | b"" at the end | None: nothing yet
    try_send ─▶ how many bytes were taken; fewer than given: try again when writable

A socket is one. So would be TLS over a socket: an `ssl.SSLObject` between two memory BIOs, which
takes nothing more while ciphertext is waiting to be sent.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from typing import Protocol

import trio

RECEIVE_BYTES_MIN = 16 << 10
RECEIVE_BYTES_MAX = 1 << 20
"""Between these is what one `try_receive` asks for: more while a bulk transfer fills it."""


class Transport(Protocol):
    """One side of a connection. Its functions raise OSError when the peer is gone."""

    def fileno(self) -> int:
        """The descriptor to wait for; -1 when it is closed."""
        ...

    def try_receive(self) -> bytes | None:
        """Return what has arrived, b"" at the end, or None if nothing has yet."""
        ...

    def try_send(self, data: bytes | memoryview) -> int:
        """Hand over as much as the peer takes now; return how many bytes that was."""
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
        self._receive_bytes = RECEIVE_BYTES_MIN

    def fileno(self) -> int:
        """See Transport."""
        return self._socket.fileno()

    def try_receive(self) -> bytes | None:
        """See Transport."""
        size = self._receive_bytes
        try:
            data = self._socket.recv(size)
        except BlockingIOError:
            return None
        if len(data) == size:
            self._receive_bytes = min(size * 4, RECEIVE_BYTES_MAX)
        elif len(data) * 4 < size > RECEIVE_BYTES_MIN:
            self._receive_bytes = size // 2
        return data

    def try_send(self, data: bytes | memoryview) -> int:
        """See Transport."""
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0

    def send_eof(self) -> None:
        """See Transport."""
        self._socket.shutdown(socket.SHUT_WR)

    def close(self, abrupt: bool) -> None:
        """See Transport."""
        if abrupt:
            with contextlib.suppress(OSError):
                # Linger of zero seconds: closing sends a reset.
                linger = struct.pack("ii", 1, 0)
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self._socket.close()
