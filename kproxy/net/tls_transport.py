"""TLS over a socket, as the pump uses it: `ssl.SSLSocket` on the descriptor, after the handshake.

A record of TLS holds at most 16 KiB, so each is received, or sent, by itself. That costs less than
larger reads into a memory BIO, which copy everything twice (1 KB: half, 1 MB: 0.55 of its CPU).
Records that have arrived together are received together: a turn of the pump costs more than one.

Invariants:

* OpenSSL does not read ahead: the content of a record is returned whole, and unread records make
  the descriptor readable.
* A record that the socket did not take whole must be offered again before anything else. Its
  plaintext counts as taken, and `wants_write` is true until `flush` has sent it.
"""

from __future__ import annotations

import array
import contextlib
import errno
import fcntl
import os
import socket
import ssl
import termios

from kproxy.net.transport import close_socket

_RECORD_BYTES_MAX = 16 << 10
"""The most plaintext in a record (RFC 8446, 5.1)."""
_RECORD_OVERHEAD_BYTES = 22
"""The least that a record takes beside its plaintext, in TLS 1.3; earlier versions take more."""
_RECORDS_MAX = 64
"""One `try_receive` reads at most this many records, full or not: others must have their turn."""


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
        self._unread = array.array("i", [0])
        """The bytes that had arrived when the system was asked last."""
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
        unread = 0
        try:
            for _ in range(_RECORDS_MAX):
                record = self._tls.read(_RECORD_BYTES_MAX)
                if not record:
                    self._ended = True
                    break
                records.append(record)
                unread -= len(record) + _RECORD_OVERHEAD_BYTES
                if unread <= 0:
                    unread = self._count_unread()
                    if not unread:
                        break
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLWantWriteError:
            self.receiving_waits = True
        except ssl.SSLZeroReturnError:  # instead of b"", because our own close_notify is sent
            self._ended = True
        except ssl.SSLEOFError:  # an end without close_notify is none: see `contexts`
            self._failure = ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
        except OSError as error:
            self._failure = error
        if not records:
            if self._failure:
                raise self._failure
            return b"" if self._ended else None
        if self._failure or self._ended:
            with contextlib.suppress(OSError):  # have the descriptor say that there is more
                socket.socket.shutdown(self._tls, socket.SHUT_RD)
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
        self._eof_due = not (self._count_unread() or self._send_close())
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

    def _count_unread(self) -> int:
        """Return how many bytes have arrived, at a fifth of the cost of a vain attempt to read."""
        fcntl.ioctl(self._tls, termios.FIONREAD, self._unread)
        return self._unread[0]

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
