"""The transport between the pump and a peer: a non-blocking byte stream over a file descriptor.

The pump waits for all of its peers at once and then calls plain functions::

    readable ─▶ try_receive ─▶ bytes | b"" at the end | None: nothing yet
    try_send ─▶ how many bytes were taken; fewer than given: try again when writable
    writable ─▶ flush, if wants_write is true because bytes are kept back

A socket is one. TLS over a socket is another (`tls_transport`), which may have taken all plaintext
and still hold ciphertext that the socket has not taken.

Invariants of every transport:

* `try_receive` keeps nothing back: after None, more comes only when the descriptor is readable.
* `try_send` takes fewer bytes than it was given only while the descriptor is not writable or
  `wants_write` is true: otherwise the pump would try again and again. So a handshake comes first.
* `send_eof` follows all that was taken before it; `wants_write` may be true afterwards.
* Receiving may lead to something that must be sent, too: then `wants_write` is true afterwards.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from typing import Protocol

import trio

RECEIVE_BYTES_MIN = 64 << 10
RECEIVE_BYTES_MAX = 1 << 20
"""One `try_receive` reads at most between these sizes: more while a bulk transfer fills it."""


class Transport(Protocol):
    """One side of a connection. Its functions raise OSError when the peer is gone."""

    @property
    def wants_write(self) -> bool:
        """True while bytes that it has taken, or must send itself, wait to be flushed."""
        ...

    def fileno(self) -> int:
        """Return the descriptor to wait for; -1 when it is closed."""
        ...

    def try_receive(self) -> bytes | None:
        """Return the bytes that have arrived, b"" at the end, or None if there are none yet."""
        ...

    def try_send(self, data: bytes | memoryview) -> int:
        """Hand over as much as the peer takes now; return how many bytes that was."""
        ...

    def flush(self) -> None:
        """Send the bytes that wait, as far as the peer takes them now."""
        ...

    def send_eof(self) -> None:
        """Half-close: no more will be sent."""
        ...

    def close(self, abrupt: bool) -> None:
        """Close it; `abrupt` tells the peer by a reset. Safe to call twice."""
        ...


class SocketTransport:
    """A TCP connection in plaintext. Owns the socket."""

    wants_write = False
    """See Transport: it takes from the pump only what the socket takes."""

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

    def flush(self) -> None:
        """See Transport."""

    def send_eof(self) -> None:
        """See Transport."""
        self._socket.shutdown(socket.SHUT_WR)

    def close(self, abrupt: bool) -> None:
        """See Transport."""
        close_socket(self._socket, abrupt)


def close_socket(sock: socket.socket, abrupt: bool) -> None:
    """Close a socket; `abrupt` tells the peer by a reset. Safe to call twice."""
    if abrupt:
        with contextlib.suppress(OSError):
            # Linger of zero seconds: closing sends a reset.
            linger = struct.pack("ii", 1, 0)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    sock.close()


def close_heard(sock: socket.socket) -> None:
    """Close a socket that is not read to its end, without a reset: the system sends one for bytes
    that nobody has read, and the peer loses what was sent to it last."""
    with contextlib.suppress(OSError):
        socket.socket.recv(sock, RECEIVE_BYTES_MAX, socket.MSG_DONTWAIT)  # past TLS, if it has it
    sock.close()
