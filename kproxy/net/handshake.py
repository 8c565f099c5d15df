"""The TLS handshake of either side, before the pump gets a connection.

::

    Secure(stream, host): plaintext, or

    stream ─▶ wait for the peer ─▶ wait for a turn ─▶ one step ─▶ Secured(transport, session)
                 │       ▲                             │    │ fails
                 │       └──────── needs more ─────────┘    │
                 └ is too slow ─────────────────────────────┴─▶ HandshakeFailed(reason)

A step costs up to a millisecond (a signature), and a thousand clients may come at once. So one task
takes the steps of all, and other tasks have their turn after each millisecond of it.

Invariants:

* A peer that sends nothing takes no turn.
* What has begun comes before new clients, and so does what kproxy begins.
* The time limit is the peer's: it counts anew when a client's handshake begins, and a handshake
  that waits for its turn does not end.
"""

from __future__ import annotations

import math
import selectors
import socket
import ssl
from collections import Counter, OrderedDict, deque
from collections.abc import Awaitable, Callable
from functools import partial

import attrs
import trio

from kproxy.defects import defect
from kproxy.net.tls.peer import distinguished_name, peer_name
from kproxy.net.tls_transport import TlsTransport
from kproxy.net.transport import SocketTransport, Transport, close_heard
from kproxy.proxy.authenticate import LoginSession
from kproxy.proxy.machine import TlsSession


@attrs.frozen(eq=False)
class Failures:
    """The failures of one run."""

    tls: Counter[tuple[str, str]] = attrs.field(factory=Counter)
    """Failures of TLS, by the peer ("client", "broker") and the kind."""
    logins: Counter[str] = attrs.field(factory=Counter)
    """kproxy's own logins that failed, by kind; all of `authenticate.KINDS` where it logs in."""


HANDSHAKE_SECONDS = 10.0
_TURN_SECONDS = 0.001
_READ, _WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


class HandshakeFailed(Exception):
    """A failed handshake; the text says why."""


_Failure = tuple[str, str]
"""The kind of a failure, one of a few words, and the reason."""


@attrs.frozen
class Secured:
    """A connection that is ready to be used."""

    transport: Transport
    tls: TlsSession | None
    """The result of the handshake; None: plaintext."""
    login: LoginSession | None = None
    """kproxy's own login at the broker; None: it has not logged in."""


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


@attrs.define(eq=False)
class _TlsHandshake:
    """A handshake that is under way. Owns the socket until it has succeeded."""

    sock: socket.socket
    context: Callable[[], ssl.SSLContext]
    server_name: str | None
    """The name that the broker must have; None: the peer is a client."""
    transport: TlsTransport | None = None
    """The connection in TLS; None: the handshake has not begun."""
    failure: _Failure | None = None
    """None: it has not failed."""
    ended: trio.Event = attrs.field(factory=trio.Event)

    @property
    def is_new(self) -> bool:
        """True for a client's before its first step."""
        return self.transport is None and self.server_name is None

    def step(self) -> int:
        """Go on as far as the peer's bytes allow; return the events to wait for, 0 at the end.

        Raises:
            OSError, ValueError: it has failed; the latter for a name that no host can have.
        """
        if self.transport is None:
            self.transport = TlsTransport(self.sock, self.context(), self.server_name)
        if self.transport.shake_hands():
            return 0
        return _WRITE if self.transport.wants_write else _READ


class Handshakes:
    """Runs the handshakes of all connections, in turns."""

    def __init__(self, failures: Failures, seconds: float = HANDSHAKE_SECONDS) -> None:
        self._seconds = seconds
        self._selector = selectors.DefaultSelector()
        """Watches the peers that are waited for."""
        self._until: OrderedDict[_TlsHandshake, float] = OrderedDict()
        """Handshakes → when the time of the peer is over, in order."""
        self._begun: deque[_TlsHandshake] = deque()
        self._new: deque[_TlsHandshake] = deque()
        """Handshakes that wait for their turn."""
        self._waiting = trio.CancelScope()
        self._failures = failures

    def with_brokers(self, context: Callable[[], ssl.SSLContext], name: str | None) -> Secure:
        """Return the function for brokers: each must have this name, or that of its host."""
        self._failures.tls["broker", "certificate_refused"] = (
            0  # the usual one: a counter begins at 0
        )
        return partial(self._shake, context, True, name)

    def with_clients(self, context: Callable[[], ssl.SSLContext]) -> Secure:
        """Return the function for clients."""
        return partial(self._shake, context, False, None)

    async def run(self) -> None:
        """Take the steps of all handshakes, until cancelled."""
        while True:
            first = next(iter(self._until.values()), math.inf)
            with trio.CancelScope(deadline=first) as self._waiting:
                await trio.lowlevel.wait_readable(self._selector.fileno())
            turn_over = trio.current_time() + _TURN_SECONDS
            while handshake := self._next():
                self._take_step(handshake)
                # Who has ended has a connection to take on, or to record as failed.
                if handshake.ended.is_set() or trio.current_time() >= turn_over:
                    await trio.lowlevel.checkpoint()
                    turn_over = trio.current_time() + _TURN_SECONDS

    async def _shake(
        self,
        context: Callable[[], ssl.SSLContext],
        verify: bool,
        name: str | None,
        stream: trio.SocketStream,
        host: str,
    ) -> Secured:
        """Do a handshake; `verify`: with a broker, which must have this name or its host's."""
        server_name = (name or host) if verify else None
        sock = socket.socket(stream.socket.family, fileno=stream.socket.detach())
        sock.setblocking(False)
        handshake = _TlsHandshake(sock, context, server_name)
        try:
            self._count_time(handshake)
            # A client speaks first; to a broker kproxy does.
            self._selector.register(sock, _READ if server_name is None else _WRITE, handshake)
            await handshake.ended.wait()
            if handshake.failure is not None:
                kind, reason = handshake.failure
                self._failures.tls["broker" if verify else "client", kind] += 1
                raise HandshakeFailed(reason)
            assert handshake.transport is not None, "it has ended well"
            return Secured(handshake.transport, _session(handshake.transport.tls))
        except BaseException:
            self._stop_waiting(handshake)
            self._end(handshake)
            close_heard(sock)
            raise

    def _count_time(self, handshake: _TlsHandshake) -> None:
        """Give the peer its full time, from now on."""
        until = self._until[handshake] = trio.current_time() + self._seconds
        self._until.move_to_end(handshake)
        self._waiting.deadline = min(self._waiting.deadline, until)

    def _next(self) -> _TlsHandshake | None:
        """Return the handshake whose turn it is; None: all wait for their peers."""
        for key, _ in self._selector.select(0):
            handshake: _TlsHandshake = key.data
            self._stop_waiting(handshake)
            (self._new if handshake.is_new else self._begun).append(handshake)
        now = trio.current_time()
        while self._until and next(iter(self._until.values())) <= now:
            handshake, _ = self._until.popitem(last=False)
            if self._stop_waiting(handshake):
                handshake.failure = self._too_slow
                self._begun.append(handshake)
        queue = self._begun or self._new
        return queue.popleft() if queue else None

    def _stop_waiting(self, handshake: _TlsHandshake) -> bool:
        """Wait no longer for the peer of a handshake; return whether it was waited for."""
        try:
            self._selector.unregister(handshake.sock)
        except (KeyError, ValueError):  # the latter if it is closed
            return False
        return True

    def _take_step(self, handshake: _TlsHandshake) -> None:
        """Take a step; end the handshake, or have its peer waited for."""
        if handshake.failure is not None or handshake.ended.is_set():  # or it was cancelled
            self._end(handshake)
            return
        if handshake.is_new:
            self._count_time(handshake)
        try:
            events = handshake.step()
        except (OSError, ValueError) as error:
            handshake.failure = _why(error, handshake.server_name)
        except Exception as error:
            handshake.failure = "other", defect(error)
        else:
            if events and handshake in self._until:
                self._selector.register(handshake.sock, events, handshake)
                return
            if events:
                handshake.failure = self._too_slow
        self._end(handshake)

    def _end(self, handshake: _TlsHandshake) -> None:
        self._until.pop(handshake, None)
        handshake.ended.set()

    @property
    def _too_slow(self) -> _Failure:
        return "timeout", f"no TLS handshake within {self._seconds:g} s"


def _session(tls: ssl.SSLObject) -> TlsSession:
    cipher = tls.cipher()
    return TlsSession(
        version=tls.version() or "",
        cipher=cipher[0] if cipher else "",
        peer=peer_name(tls),
        subject=distinguished_name(tls),
        verified=tls.context.verify_mode is ssl.CERT_REQUIRED,
        name_verified=tls.context.check_hostname,
    )


_CLOSED = ("closed", "it closed the connection during the handshake")
_NOT_TLS, _NOTHING_COMMON, _MISSING, _NOT_ACCEPTED = (
    "not_tls",
    "nothing_in_common",
    "certificate_missing",
    "certificate_not_accepted",
)
_REASONS = {
    "HTTP_REQUEST": (_NOT_TLS, "it speaks HTTP, not TLS"),
    "HTTPS_PROXY_REQUEST": (_NOT_TLS, "it speaks HTTP, not TLS"),
    "WRONG_VERSION_NUMBER": (_NOT_TLS, "it does not speak TLS"),
    "PACKET_LENGTH_TOO_LONG": (_NOT_TLS, "it does not speak TLS"),
    "RECORD_LAYER_FAILURE": (_NOT_TLS, "it does not speak TLS"),
    "NO_SHARED_CIPHER": (_NOTHING_COMMON, "no cipher in common"),
    "UNSUPPORTED_PROTOCOL": (_NOTHING_COMMON, "no version of TLS in common"),
    "NO_PROTOCOLS_AVAILABLE": (_NOTHING_COMMON, "no version of TLS in common"),
    "TLSV1_ALERT_PROTOCOL_VERSION": (_NOTHING_COMMON, "no version of TLS in common"),
    "SSLV3_ALERT_HANDSHAKE_FAILURE": (
        _NOTHING_COMMON,
        "it refuses: no cipher in common, or no certificate",
    ),
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": (_MISSING, "it shows no certificate, and one is required"),
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": (_MISSING, "it requires a certificate"),
    "TLSV1_ALERT_UNKNOWN_CA": (_NOT_ACCEPTED, "it does not trust the certificate's authority"),
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": (_NOT_ACCEPTED, "it does not accept the certificate"),
    "SSLV3_ALERT_BAD_CERTIFICATE": (
        _NOT_ACCEPTED,
        "it does not accept the certificate, or requires one",
    ),
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": (_NOT_ACCEPTED, "it says that the certificate has expired"),
}
"""OpenSSL's name of an error → the kind of failure, and the reason in plain words."""


_UNKNOWN_SIGNER = (18, 19, 20, 21)
_PLAINTEXT = (
    "WRONG_VERSION_NUMBER",
    "PACKET_LENGTH_TOO_LONG",
    "RECORD_LAYER_FAILURE",
)
_UNKNOWN_CA = "TLSV1_ALERT_UNKNOWN_CA"
_DISTRUST = ("SSLV3_ALERT_CERTIFICATE_UNKNOWN", "SSLV3_ALERT_BAD_CERTIFICATE")
_CERTS = ": kproxy certs --out DIR writes what clients of --listen-tls auto need"
_BROKER_HINTS = {
    **dict.fromkeys(_UNKNOWN_SIGNER, " (--broker-tls-ca names who signed it)"),
    **dict.fromkeys((62, 64), " (--broker-tls-name names another host)"),
    3: " (a revocation list of its authority is missing in ssl.crl.location)",
    **dict.fromkeys(_PLAINTEXT, " (then leave the options of TLS to brokers out)"),
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": " (--broker-tls-cert shows it one)",
    **dict.fromkeys((_UNKNOWN_CA, *_DISTRUST), " (that of --broker-tls-cert)"),
}
"""OpenSSL's reason, or its code of a wrong certificate (X509_V_ERR_…) → what may help, where the
peer is a broker."""
_CLIENT_HINTS = {
    **dict.fromkeys(_UNKNOWN_SIGNER, " (--listen-tls-clients names who signed it)"),
    **dict.fromkeys(_PLAINTEXT, ": set security.protocol=SSL (or SASL_SSL) in the client"),
    _UNKNOWN_CA: _CERTS,
    **dict.fromkeys(_DISTRUST, f"{_CERTS}; or the host that it dials is not in the certificate"),
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": (
        " (--listen-tls-clients): give it ssl.keystore.location, or ssl.certificate.location"
    ),
}
"""The same, where it is a client."""


def _cause(error: Exception) -> int | str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_code
    return (error.reason or "") if isinstance(error, ssl.SSLError) else ""


def _why(error: Exception, server_name: str | None) -> _Failure:
    """Return in a few words why a handshake failed, with what may help."""
    if not isinstance(error, OSError):
        return "name", f"{server_name!r} is no name that a host can have (--broker-tls-name)"
    if not isinstance(error, ssl.SSLError):
        return _CLOSED
    hints = _BROKER_HINTS if server_name else _CLIENT_HINTS
    kind, reason = tls_failure(error)
    return kind, reason + hints.get(_cause(error), "")


def why_tls(error: ssl.SSLError) -> str:
    """Return OpenSSL's reason in a few plain words."""
    return tls_failure(error)[1]


def tls_failure(error: ssl.SSLError) -> _Failure:
    """Return the kind of a failure, and OpenSSL's reason in a few plain words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        reason = f"its certificate is refused: {error.verify_message.rstrip('.').lower()}"
        return "certificate_refused", reason
    if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return _CLOSED
    reason = error.reason or ""
    words = reason.replace("_", " ").lower() or "what came is not of TLS"
    return _REASONS.get(reason, ("other", words))
