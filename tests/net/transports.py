"""What every transport promises the pump, as checks, and pairs of transports to hold to it.

A check takes a `Pair`: two transports that talk to each other.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import time
from collections.abc import Iterator

import attrs
import pytest
import trio

from kproxy.net.tls.contexts import OPTIONS
from kproxy.net.tls_transport import TlsTransport
from kproxy.net.transport import SocketTransport, Transport

BIG = bytes(range(256)) * (64 << 10)
"""16 MiB: more than a socket takes at once."""
_SECONDS = 10


@attrs.define(eq=False)
class Pair:
    """Two transports, each other's peer."""

    left: Transport
    right: Transport

    def readable(self, transport: Transport) -> bool:
        """Whether a selector says that its descriptor can be read, or has failed."""
        return bool(select.select([transport], [], [], 0)[0])

    def writable(self, transport: Transport) -> bool:
        """Whether a selector says that it can be written."""
        return bool(select.select([], [transport], [], 0)[1])

    def receive(self, transport: Transport, least: int = 1) -> bytes:
        """Read at least so many bytes as the pump does: only when the descriptor is readable."""
        data, until = bytearray(), time.monotonic() + _SECONDS
        while len(data) < least:
            assert time.monotonic() < until, f"{len(data)} of {least} bytes"
            self.flush()
            if self.readable(transport):
                got = transport.try_receive()
                assert got != b"", f"ended after {len(data)} of {least} bytes"
                data += got or b""
        return bytes(data)

    def send(self, transport: Transport, data: bytes, other: Transport) -> bytes:
        """Send all of it as the pump does, while the peer reads; returns what has arrived."""
        rest, got, until = memoryview(data), bytearray(), time.monotonic() + _SECONDS
        while rest or len(got) < len(data):
            assert time.monotonic() < until, f"{len(rest)} bytes to send, {len(got)} received"
            if rest and (transport.wants_write or self.writable(transport)):
                if transport.wants_write:
                    transport.flush()
                rest = rest[transport.try_send(rest) :]
            self.flush()
            if self.readable(other):
                got += other.try_receive() or b""
        return bytes(got)

    def flush(self) -> None:
        """Flush both, as far as they go."""
        for transport in (self.left, self.right):
            with contextlib.suppress(OSError):
                if transport.wants_write:
                    transport.flush()

    def end(self, transport: Transport) -> bytes:
        """Read until the end; returns what came before it."""
        data, until = bytearray(), time.monotonic() + _SECONDS
        while time.monotonic() < until:
            self.flush()
            if self.readable(transport):
                got = transport.try_receive()
                if got == b"":
                    return bytes(data)
                data += got or b""
        raise AssertionError("it does not end")


# ---- the checks


def _nothing_yet(pair: Pair) -> None:
    assert not pair.readable(pair.left)
    assert pair.left.try_receive() is None and pair.right.try_receive() is None


def _bytes_arrive_both_ways(pair: Pair) -> None:
    assert pair.left.try_send(b"there") == 5
    assert pair.receive(pair.right, 5) == b"there"
    assert pair.right.try_send(memoryview(b"and back")) == 8
    assert pair.receive(pair.left, 8) == b"and back"
    _nothing_yet(pair)


def _much_arrives_whole(pair: Pair) -> None:
    assert pair.send(pair.left, BIG, pair.right) == BIG
    assert pair.send(pair.right, BIG, pair.left) == BIG


def _both_ways_at_once(pair: Pair) -> None:
    left, right = memoryview(BIG), memoryview(BIG)
    got: dict[str, bytearray] = {"left": bytearray(), "right": bytearray()}
    until = time.monotonic() + _SECONDS
    while min(map(len, got.values())) < len(BIG) and time.monotonic() < until:
        pair.flush()
        left = left[pair.left.try_send(left) :] if left else left
        right = right[pair.right.try_send(right) :] if right else right
        for name, transport in (("left", pair.left), ("right", pair.right)):
            if pair.readable(transport):
                got[name] += transport.try_receive() or b""
    assert got["left"] == got["right"] == BIG


def _a_short_send_says_when_to_go_on(pair: Pair) -> None:
    sent = 0
    while (taken := pair.left.try_send(BIG)) == len(BIG):
        sent += taken
        assert sent < 1 << 28, "it takes without end"
    sent += taken
    while pair.writable(pair.left) and not pair.left.wants_write:
        taken = pair.left.try_send(BIG)
        assert taken, "the pump would go in circles"
        sent += taken
    got = pair.receive(pair.right, sent)
    assert len(got) == sent
    until = time.monotonic() + _SECONDS
    while not (pair.writable(pair.left) or pair.left.wants_write):
        assert time.monotonic() < until, "it never takes more"
    assert pair.send(pair.left, b"more", pair.right) == b"more"


def _nothing_is_kept_back(pair: Pair) -> None:
    """After None more comes only when the descriptor is readable again."""
    pair.send(pair.left, b"a" * 40_000, pair.right)
    until = time.monotonic() + _SECONDS
    assert pair.left.try_send(b"b" * 40_000) == 40_000
    got = b""
    while len(got) < 40_000:
        assert time.monotonic() < until
        pair.flush()
        if pair.readable(pair.right):
            while (data := pair.right.try_receive()) is not None:
                got += data
    assert got == b"b" * 40_000


def _a_half_close_comes_after_what_was_sent(pair: Pair) -> None:
    assert pair.left.try_send(b"last words") == 10
    pair.left.send_eof()
    assert pair.end(pair.right) == b"last words"
    assert pair.right.try_send(b"yes?") == 4, "the other direction is open"
    assert pair.receive(pair.left, 4) == b"yes?"
    pair.right.send_eof()
    assert pair.end(pair.left) == b""


def _a_half_close_comes_after_what_waits(pair: Pair) -> None:
    taken = pair.left.try_send(BIG)
    until = time.monotonic() + _SECONDS
    got = b""
    while pair.left.wants_write:
        assert time.monotonic() < until
        got += pair.receive(pair.right)
    pair.left.send_eof()
    got += pair.end(pair.right)
    assert got == BIG[:taken]


def _closing_ends_it(pair: Pair) -> None:
    assert pair.left.try_send(b"bye") == 3
    pair.flush()
    pair.left.close(False)
    assert pair.left.fileno() == -1
    assert pair.end(pair.right) == b"bye"


def _a_reset_is_an_error(pair: Pair) -> None:
    pair.right.try_send(b"never read")
    pair.flush()
    pair.left.close(True)
    until = time.monotonic() + _SECONDS
    with pytest.raises(OSError):
        while time.monotonic() < until:
            if pair.readable(pair.right):
                assert pair.right.try_receive() != b"", "an end like any other"
    with pytest.raises(OSError):
        while time.monotonic() < until:
            pair.right.try_send(b"x")
            pair.right.flush()


def _closing_twice_is_allowed(pair: Pair) -> None:
    for abrupt in (False, True, False):
        pair.left.close(abrupt)
    assert pair.left.fileno() == -1


CHECKS = [
    _nothing_yet,
    _bytes_arrive_both_ways,
    _much_arrives_whole,
    _both_ways_at_once,
    _a_short_send_says_when_to_go_on,
    _nothing_is_kept_back,
    _a_half_close_comes_after_what_was_sent,
    _a_half_close_comes_after_what_waits,
    _closing_ends_it,
    _a_reset_is_an_error,
    _closing_twice_is_allowed,
]
"""The conformance suite."""


# ---- sockets


def connected() -> tuple[trio.SocketStream, trio.SocketStream]:
    """Two ends of a TCP connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        left = socket.create_connection(server.getsockname())
        right, _ = server.accept()
    streams = []
    for sock in (left, right):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        streams.append(trio.SocketStream(trio.socket.from_stdlib_socket(sock)))
    return streams[0], streams[1]


@contextlib.contextmanager
def sockets() -> Iterator[Pair]:
    """Plaintext."""
    left, right = map(SocketTransport, connected())
    yield Pair(left, right)
    left.close(False)
    right.close(False)


# ---- memory


# ---- TLS


def _contexts() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """For a server and a client that show each other no certificates, so that none is needed."""
    found = []
    for protocol in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT):
        context = ssl.SSLContext(protocol)
        context.options |= OPTIONS
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        context.set_ciphers("AECDH-AES256-SHA:@SECLEVEL=0")
        found.append(context)
    return found[0], found[1]


class OtherTls:
    """A peer in TLS that is not ours: Python's socket, with the handshake still to come."""

    def __init__(self, sock: socket.socket, context: ssl.SSLContext) -> None:
        self.socket = context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)

    def shake_hands(self) -> bool:
        """Take a step of the handshake; return whether it is over."""
        try:
            self.socket.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True


def _shaken(*ends: TlsTransport | OtherTls) -> None:
    until, done = time.monotonic() + _SECONDS, False
    while not done:
        assert time.monotonic() < until, "no handshake"
        done = sum(end.shake_hands() for end in ends) == len(ends)


def _tls_sockets() -> tuple[socket.socket, socket.socket]:
    left, right = (socket.socket(fileno=stream.socket.detach()) for stream in connected())
    left.setblocking(False)
    right.setblocking(False)
    return left, right


def with_other_tls() -> tuple[TlsTransport, ssl.SSLSocket]:
    """Ours as the client, and a server that is not, after the handshake."""
    left, right = _tls_sockets()
    server, client = _contexts()
    ours, theirs = TlsTransport(left, client, "localhost"), OtherTls(right, server)
    _shaken(ours, theirs)
    return ours, theirs.socket


@contextlib.contextmanager
def tls() -> Iterator[Pair]:
    """TLS, after the handshake."""
    left, right = _tls_sockets()
    server, client = _contexts()
    ends = TlsTransport(left, client, "localhost"), TlsTransport(right, server, None)
    _shaken(*ends)
    yield Pair(*ends)
    for end in ends:
        end.close(False)
