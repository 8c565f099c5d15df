"""The TLS handshake of either side, before the pump gets a connection.

::

    Secure(stream, host): plaintext, or

    stream ─▶ wait for the descriptor ─▶ one step ─▶ … ─▶ Secured(transport, session)
                                            │ fails, or takes too long
                                            ▼
                                     HandshakeFailed(reason)

A step costs up to a millisecond (a signature), and a thousand clients may come at once. So there is
one step in each round of the scheduler, and the pump has its turn between two.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import Any

import attrs
import trio

from kproxy.net.tls_transport import TlsTransport
from kproxy.net.transport import SocketTransport, Transport, close_heard
from kproxy.proxy.machine import TlsSession

HANDSHAKE_SECONDS = 10.0


class HandshakeFailed(Exception):
    """A failed handshake; the text says why."""


@attrs.frozen
class Secured:
    """A connection that is ready to be used."""

    transport: Transport
    tls: TlsSession | None
    """The result of the handshake; None: plaintext."""


Secure = Callable[[trio.SocketStream, str], Awaitable[Secured]]
"""A function that makes a connection to a peer with this host ready, and owns the stream.

Raises:
    HandshakeFailed: the peer is another one, does not agree, or does not speak TLS.
"""


async def plaintext(stream: trio.SocketStream, host: str = "") -> Secured:
    """Use a connection as it is; take the stream over, as the functions of `Handshakes` do."""
    try:
        return Secured(SocketTransport(stream), None)
    except BaseException:
        stream.socket.close()
        raise


class Handshakes:
    """Runs the handshakes of all connections, in turns."""

    def __init__(self, seconds: float = HANDSHAKE_SECONDS) -> None:
        self._seconds = seconds
        self._turn = trio.Lock()

    def with_brokers(
        self, contexts: Callable[[], ssl.SSLContext], server_name: str | None
    ) -> Secure:
        """Return the function for brokers: each must have this name, or that of its host."""

        async def secure(stream: trio.SocketStream, host: str) -> Secured:
            return await self._shake(stream, contexts, server_name or host)

        return secure

    def with_clients(self, contexts: Callable[[], ssl.SSLContext]) -> Secure:
        """Return the function for clients."""

        async def secure(stream: trio.SocketStream, host: str) -> Secured:
            return await self._shake(stream, contexts, None)

        return secure

    async def _shake(
        self,
        stream: trio.SocketStream,
        contexts: Callable[[], ssl.SSLContext],
        server_name: str | None,
    ) -> Secured:
        sock = socket.socket(stream.socket.family, fileno=stream.socket.detach())
        sock.setblocking(False)
        try:
            with trio.fail_after(self._seconds):
                tls = await self._take_steps(sock, contexts(), server_name)
        except trio.TooSlowError:
            raise HandshakeFailed(f"no TLS handshake within {self._seconds:g} s") from None
        except OSError as error:
            hints = _HINTS if server_name else {}
            raise HandshakeFailed(_why(error) + hints.get(_verify_code(error), "")) from None
        except BaseException:
            sock.close()
            raise
        return Secured(TlsTransport(tls), _session(tls))

    async def _take_steps(
        self, sock: socket.socket, context: ssl.SSLContext, server_name: str | None
    ) -> ssl.SSLSocket:
        tls = context.wrap_socket(
            sock,
            server_side=server_name is None,
            server_hostname=server_name,
            do_handshake_on_connect=False,
            suppress_ragged_eofs=False,
        )
        try:
            while True:
                wait = trio.lowlevel.wait_readable
                async with self._turn:
                    try:
                        tls.do_handshake()
                        return tls
                    except ssl.SSLWantReadError:
                        pass
                    except ssl.SSLWantWriteError:
                        wait = trio.lowlevel.wait_writable
                await wait(tls)
        except BaseException:
            close_heard(tls)
            raise


def _session(tls: ssl.SSLSocket) -> TlsSession:
    cipher = tls.cipher()
    certificate: Any = tls.getpeercert() or {}  # its type is too wide for the loop below
    names = dict(pair for part in certificate.get("subject", ()) for pair in part)
    return TlsSession(
        version=tls.version() or "",
        cipher=cipher[0] if cipher else "",
        peer=names.get("commonName"),
        verified=tls.context.verify_mode is ssl.CERT_REQUIRED,
        name_verified=tls.context.check_hostname,
    )


_REASONS = {
    "HTTP_REQUEST": "it speaks HTTP, not TLS",
    "HTTPS_PROXY_REQUEST": "it speaks HTTP, not TLS",
    "WRONG_VERSION_NUMBER": "it does not speak TLS",
    "PACKET_LENGTH_TOO_LONG": "it does not speak TLS",
    "RECORD_LAYER_FAILURE": "it does not speak TLS",
    "NO_SHARED_CIPHER": "no cipher in common",
    "UNSUPPORTED_PROTOCOL": "no version of TLS in common",
    "NO_PROTOCOLS_AVAILABLE": "no version of TLS in common",
    "TLSV1_ALERT_PROTOCOL_VERSION": "no version of TLS in common",
    "SSLV3_ALERT_HANDSHAKE_FAILURE": "it refuses: no cipher in common, or no certificate",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it shows no certificate, and one is required",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "it requires a certificate",
    "TLSV1_ALERT_UNKNOWN_CA": "it does not trust the certificate's authority",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "it does not accept the certificate",
    "SSLV3_ALERT_BAD_CERTIFICATE": "it does not accept the certificate, or requires one",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "it says that the certificate has expired",
}
"""OpenSSL's name of an error → the reason in plain words."""


_HINTS = {
    **dict.fromkeys((18, 19, 20, 21), " (--broker-tls-ca names who signed it)"),
    **dict.fromkeys((62, 64), " (--broker-tls-name names another host)"),
}
"""OpenSSL's code of a wrong certificate (X509_V_ERR_…) → the option that may help."""


def _verify_code(error: OSError) -> int:
    return error.verify_code if isinstance(error, ssl.SSLCertVerificationError) else 0


def why_tls(error: ssl.SSLError) -> str:
    """Return OpenSSL's reason in a few plain words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is refused: {error.verify_message.rstrip('.').lower()}"
    if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return "it closed the connection during the handshake"
    reason = error.reason or ""
    return _REASONS.get(reason, reason.replace("_", " ").lower() or "TLS failed")


def _why(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return why_tls(error)
    return "it closed the connection during the handshake"
