"""TLS over a socket, as the handshake and the pump use it: OpenSSL between two buffers in memory.

::

    socket ─ recv ─▶ incoming ─▶ OpenSSL ─▶ records ─▶ try_receive
    socket ◀─ send ─ outgoing ◀─ OpenSSL ◀─ flush, try_send

So what has arrived together is received by one system call, and what is sent together is sent by
one. `ssl.SSLSocket` takes two to receive a record, and one to send one, which costs more than the
copies that it saves: 1.6 times the CPU for records of 1 KB that come by the dozen, 1.2 times for
1 MB.

Invariants:

* Nothing is left in `incoming` that could be received: what the descriptor does not tell of would
  wait for ever. So in the handshake no more is read than the record that it waits for.
* What OpenSSL gives out is offered to the socket at once. While the socket has not taken all of it,
  `wants_write` is true, and no more plaintext is taken.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import ssl
from collections.abc import Sequence

from kproxy.net.transport import close_socket

_RECORD_BYTES_MAX = 16 << 10
"""The most plaintext in a record (RFC 8446, 5.1)."""
_HEADER_BYTES = 5
"""The header of a record, which ends with its length."""
_PARTS_MAX = 32
"""A step of the handshake takes at most this many headers and contents: few peers send more."""
_RECEIVE_BYTES = 256 << 10
"""One `try_receive` receives at most this much."""
_PIECE_BYTES = 64 << 10
"""At most this much is put into a buffer in memory, which never gives back its room."""


_CLOSED = frozenset(
    {"", "BAD_RECORD_TYPE", "SSLV3_ALERT_BAD_RECORD_MAC", "BAD_RECORD_MAC"}
    | {"DECRYPTION_FAILED_OR_BAD_RECORD_MAC"}
)
"""OpenSSL's names of what comes of a client that closes right after the handshake: an alert that
is not encrypted, or not with the keys of then, or one that says that it could not read what came
then, for its keys were gone. It has closed: that is all. Once a client has sent something, these
are failures."""


def _cause(error: OSError) -> str | None:
    return (error.reason or "") if isinstance(error, ssl.SSLError) else None


def _reset() -> ConnectionResetError:
    return ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))


class TlsTransport:
    """A TCP connection in TLS. Owns the socket. The handshake comes first."""

    def __init__(
        self, sock: socket.socket, context: ssl.SSLContext, server_name: str | None
    ) -> None:
        """Begin TLS with a broker that must have this name; None: with a client.

        Raises:
            ValueError: no host can have this name.
        """
        self._socket = sock
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self.tls = context.wrap_bio(
            self._incoming,
            self._outgoing,
            server_side=server_name is None,
            server_hostname=server_name,
        )
        self._serves_silent = server_name is None
        """The peer is a client that has sent nothing after the handshake."""
        self._header = b""
        """The header of the handshake's record that is being received."""
        self._part_rest = _HEADER_BYTES
        """The bytes of the header, and then of what follows it, that have not arrived."""
        self._unsent: bytes | memoryview = b""
        """The bytes that the socket has not taken."""
        self._eof_due = False
        """The socket ends when it has taken all."""
        self._failure: OSError | None = None
        """The failure behind what was received last."""
        self._ended = False
        """The peer has ended."""
        self._close_sent = False
        """The close_notify is with the bytes that were sent."""

    def fileno(self) -> int:
        """See Transport."""
        return self._socket.fileno()

    @property
    def wants_write(self) -> bool:
        """See Transport."""
        return bool(self._unsent)

    def shake_hands(self) -> bool:
        """Take a step of the handshake, with what has arrived; return whether it is over.

        Raises:
            OSError: it has failed.
        """
        for _ in range(_PARTS_MAX):
            try:
                self.tls.do_handshake()
            except ssl.SSLWantReadError:
                self.flush()
            except ssl.SSLError:
                with contextlib.suppress(OSError):
                    self.flush()  # an alert
                raise
            else:
                self.flush()
                return True
            if not self._receive_part():
                break
        return False

    def try_receive(self) -> bytes | None:
        """See Transport."""
        if self._failure:
            raise self._failure
        if self._ended:
            return b""
        try:
            arrived = self._socket.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            return None
        records: list[bytes] = []
        try:
            if not arrived:
                self._incoming.write_eof()
                self._decrypt(records)
            for piece in _pieces(arrived):
                self._incoming.write(piece)
                self._decrypt(records)
        except ssl.SSLZeroReturnError:  # instead of b"", because our own close_notify is sent
            self._ended = True
        except ssl.SSLEOFError:  # an end without close_notify is none: see `contexts`
            self._failure = _reset()
        except OSError as error:
            closed = self._serves_silent and _cause(error) in _CLOSED
            self._failure = _reset() if closed else error
        self._serves_silent = self._serves_silent and not records
        if self._outgoing.pending:  # the peer wants new keys, or gets an alert
            self.flush()
        if not records:
            if self._failure:
                raise self._failure
            return b"" if self._ended else None
        if self._failure or self._ended:
            with contextlib.suppress(OSError):  # have the descriptor say that there is more
                self._socket.shutdown(socket.SHUT_RD)
        return records[0] if len(records) == 1 else b"".join(records)

    def _decrypt(self, records: list[bytes]) -> None:
        """Append the content of all records that have arrived whole.

        Raises:
            ssl.SSLError: the peer has ended, or does not keep to TLS.
        """
        read, incoming = self.tls.read, self._incoming
        try:
            while record := read(_RECORD_BYTES_MAX):
                records.append(record)
                if not incoming.pending:
                    return
        except ssl.SSLWantReadError:
            return
        self._ended = True

    def try_send(self, data: bytes | memoryview) -> int:
        """See Transport."""
        rest = memoryview(data)
        sent = 0
        while sent < len(rest) and not self._unsent:
            try:
                sent += self.tls.write(rest[sent : sent + _PIECE_BYTES])
            except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
                raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE)) from None
            self.flush()
        return sent

    def flush(self) -> None:
        """See Transport."""
        while unsent := self._unsent or self._outgoing.read():
            try:
                sent = self._socket.send(unsent)
            except BlockingIOError:
                sent = 0
            if sent < len(unsent):
                self._unsent = memoryview(unsent)[sent:]
                return
            self._unsent = b""
            if not self._outgoing.pending:
                break
        if self._eof_due:
            self._eof_due = False
            self._socket.shutdown(socket.SHUT_WR)

    def send_eof(self) -> None:
        """See Transport."""
        self._end_tls()
        self._eof_due = True
        self.flush()

    def close(self, abrupt: bool) -> None:
        """See Transport."""
        if not abrupt and self._socket.fileno() != -1:
            with contextlib.suppress(OSError):
                self._end_tls()
                self.flush()
        close_socket(self._socket, abrupt)

    def _end_tls(self) -> None:
        """Give out close_notify, once."""
        if not self._close_sent:
            self._close_sent = True
            try:
                self.tls.unwrap()
                self._ended = True  # the peer's was there
            except ssl.SSLWantReadError:
                pass

    def _receive_part(self) -> bool:
        """Receive the rest of a header, or of what follows it; return whether anything is there."""
        try:
            arrived = self._socket.recv(self._part_rest)
        except BlockingIOError:
            return False
        if not arrived:
            self._incoming.write_eof()
            return True
        self._incoming.write(arrived)
        self._part_rest -= len(arrived)
        if len(self._header) < _HEADER_BYTES:
            self._header += arrived
            if not self._part_rest:
                self._part_rest = int.from_bytes(self._header[-2:])
        if not self._part_rest:
            self._header, self._part_rest = b"", _HEADER_BYTES
        return True


def _pieces(data: bytes) -> Sequence[bytes | memoryview]:
    """Return the data in pieces that keep the buffers small."""
    if len(data) <= _PIECE_BYTES:
        return (data,) if data else ()
    whole = memoryview(data)
    return [whole[start : start + _PIECE_BYTES] for start in range(0, len(data), _PIECE_BYTES)]
