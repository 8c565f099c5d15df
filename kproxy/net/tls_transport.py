"""TLS over a socket, as the pump uses it: `ssl.SSLSocket` on the descriptor, after the handshake.

A record of TLS holds at most 16 KiB, so each is received, or sent, by itself. That costs less than
larger reads into a memory BIO, which copy everything twice (1 KB: half, 1 MB: 0.55 of its CPU).

Invariants:

* OpenSSL does not read ahead: the content of a record is returned whole, and unread records make
  the descriptor readable.
* A record that the socket did not take whole must be offered again before anything else. Its
  plaintext counts as taken, and `wants_write` is true until `flush` has sent it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import ssl

from kproxy.net.transport import RECEIVE_BYTES_MAX, close_socket

_RECORD_BYTES_MAX = 16 << 10
"""The most plaintext in a record (RFC 8446, 5.1)."""


class TlsTransport:
    """A TCP connection in TLS. Owns the socket; the handshake is over."""

    def __init__(self, tls: ssl.SSLSocket) -> None:
        self._tls = tls
        self._unsent = b""
        """The plaintext of the record that the socket has not taken whole."""
        self._eof_due = False
        """The socket had no room for close_notify."""
        self._failure: OSError | None = None
        """The failure behind what was received last."""
        self._ended = False
        """The peer has ended."""
        self._close_sent = False
        """The close_notify is sent."""
        self.receiving_waits = False
        """See Transport: the peer wants new keys, and the socket has no room for the answer."""

    def fileno(self) -> int:
        """See Transport."""
        return self._tls.fileno()

    @property
    def wants_write(self) -> bool:
        """See Transport."""
        return bool(self._unsent) or self._eof_due or self.receiving_waits

    def try_receive(self) -> bytes | None:
        """See Transport."""
        if self._failure:
            raise self._failure
        if self._ended:
            return b""
        records: list[bytes] = []
        room = RECEIVE_BYTES_MAX
        try:
            while room > 0:
                record = self._tls.read(_RECORD_BYTES_MAX)
                records.append(record)
                room -= len(record)
                if len(record) < _RECORD_BYTES_MAX:  # most likely the last that was sent at once
                    break
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLWantWriteError:
            self.receiving_waits = True
        except ssl.SSLZeroReturnError:
            self._ended = True
        except ssl.SSLEOFError:  # an end without close_notify is none: see `contexts`
            self._failure = ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
        except OSError as error:
            self._failure = error
        if self._failure and not records:
            raise self._failure
        if not records:
            return b"" if self._ended else None
        return records[0] if len(records) == 1 else b"".join(records)

    def try_send(self, data: bytes | memoryview) -> int:
        """See Transport."""
        rest = memoryview(data)
        sent = 0
        while sent < len(rest) and not self._unsent:
            record = rest[sent : sent + _RECORD_BYTES_MAX]
            self._write(record)
            sent += len(record)
        return sent

    def flush(self) -> None:
        """See Transport."""
        self.receiving_waits = False
        if self._unsent:
            self._write(self._unsent)
        if self._eof_due and not self._unsent:
            self.send_eof()

    def send_eof(self) -> None:
        """See Transport.

        `SSLSocket.unwrap` reads after it has sent close_notify, and loses the bytes. So if bytes
        have arrived, the peer gets only the end of the socket.
        """
        self._eof_due = not (self._has_unread() or self._send_close())
        if not self._eof_due:
            socket.socket.shutdown(self._tls, socket.SHUT_WR)  # SSLSocket's own drops the keys

    def close(self, abrupt: bool) -> None:
        """See Transport."""
        if not abrupt and self._tls.fileno() != -1:
            with contextlib.suppress(OSError):
                self._send_close()
        close_socket(self._tls, abrupt)

    def _write(self, record: bytes | memoryview) -> None:
        try:
            self._tls.write(record)
        except ssl.SSLWantWriteError:
            self._unsent = bytes(record)
        except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE)) from None
        else:
            self._unsent = b""

    def _has_unread(self) -> bool:
        """Return whether bytes have arrived that are not read yet."""
        try:
            return bool(socket.socket.recv(self._tls, 1, socket.MSG_PEEK))
        except BlockingIOError:
            return False

    def _send_close(self) -> bool:
        """Send close_notify, unless it is sent; return whether the socket had room for it."""
        if not self._close_sent:
            try:
                self._tls.unwrap()
                self._ended = True  # the peer's was there
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLWantWriteError:
                return False
            self._close_sent = True
        return True
