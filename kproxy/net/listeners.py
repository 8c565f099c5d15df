"""Listeners: one for the bootstrap address, one for each broker; and the set of our own addresses.

::

    Interface.open ─▶ listens ─ refuse ─▶ refuses, its port is ours ─ listen_again ─▶ listens
"""

from __future__ import annotations

import contextlib
import errno
import functools
import ipaddress
import socket
from collections.abc import Collection, Iterable, Iterator, Sequence

import attrs
import trio

_BACKLOG = 1024

SocketAddress = tuple[int, tuple]
"""A socket's family and address, as getaddrinfo gives them."""


NO_ROOM = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
"""The system's errors when it has no room for another socket."""


class ListenError(Exception):
    """A listener that cannot be opened; the text says where, why, and what to do."""

    exit_code = 1

    def __init__(self, text: str, code: int | None = None) -> None:
        super().__init__(text)
        self.code = code
        """The system's errno."""


@attrs.frozen
class Interface:
    """The addresses of a host on which to listen, at any port."""

    host: str
    addresses: Sequence[SocketAddress]
    option: str = "--listen"
    """The option that decides where to listen."""

    @property
    def loopback(self) -> bool:
        """True if only this machine can reach it."""
        return all(ipaddress.ip_address(address[0]).is_loopback for _, address in self.addresses)

    def open(self, port: int) -> list[socket.socket]:
        """Listen at `port` (0: any, the same for all addresses) without waiting for anything.

        Raises:
            ListenError: the port is taken, or not permitted.
        """
        sockets: list[socket.socket] = []
        try:
            for family, address in self.addresses:
                sock = _bound(family, (address[0], port, *address[2:]))
                sockets.append(sock)
                sock.listen(_BACKLOG)
                port = sock.getsockname()[1]
        except OSError as error:
            for sock in sockets:
                sock.close()
            if error.errno == errno.EADDRINUSE:
                why = f"the port is taken; choose another with {self.option}"
            else:
                why = error.strerror or str(error)
            text = f"cannot listen on {self.host}:{port}: {why}"
            raise ListenError(text, error.errno) from error
        return sockets


@contextlib.contextmanager
def closed_on_failure(opened: Iterable[socket.socket]) -> Iterator[None]:
    """Close listeners if the block fails; behind it their server owns them."""
    try:
        yield
    except BaseException:
        for sock in opened:
            sock.close()
        raise


def for_trio(opened: Iterable[socket.socket]) -> list[trio.SocketListener]:
    """Return listeners, as a server of trio takes them over."""
    return [trio.SocketListener(trio.socket.from_stdlib_socket(sock)) for sock in opened]


@attrs.define(eq=False)
class Listening:
    """The addresses at which we listen, so that kproxy never connects to itself."""

    _hosts: dict[int, list[_IP]] = attrs.field(factory=dict)
    """port → the addresses that listeners are bound to."""

    def add(self, listeners: Sequence[socket.socket]) -> list[tuple[str, int]]:
        """Add open listeners; return their addresses."""
        places = [listener.getsockname()[:2] for listener in listeners]
        for host, port in places:
            self._hosts.setdefault(port, []).append(_ip(host))
        return places

    def remove(self, places: Iterable[tuple[str, int]]) -> None:
        """Remove the addresses of closed listeners."""
        for host, port in places:
            self._hosts[port].remove(_ip(host))
            if not self._hosts[port]:
                del self._hosts[port]

    def __len__(self) -> int:
        return sum(map(len, self._hosts.values()))

    @property
    def ports(self) -> Collection[int]:
        """The ports of all listeners."""
        return self._hosts.keys()

    def has(self, host: str, port: int) -> bool:
        """Return whether a connection to this IP address and port would come to us."""
        bound, ip = self._hosts.get(port, []), _ip(host)
        if ip.is_unspecified:  # connecting to all addresses is connecting to this machine
            return any(each.is_loopback or each.is_unspecified for each in bound)
        everywhere = any(
            each.is_unspecified and (each.version == ip.version or each.version == 6)
            for each in bound
        )
        return ip in bound or (everywhere and _is_local(ip))


_IP = ipaddress.IPv4Address | ipaddress.IPv6Address


@functools.lru_cache
def _ip(host: str) -> _IP:
    ip = ipaddress.ip_address(host.partition("%")[0])
    return getattr(ip, "ipv4_mapped", None) or ip


def _is_local(ip: _IP) -> bool:
    """Return whether it is an address of this machine: a socket can be bound only to such."""
    if ip.is_loopback:
        return True
    family = socket.AF_INET if ip.version == 4 else socket.AF_INET6
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        try:
            sock.bind((str(ip), 0))
        except OSError:
            return False
    return True


def refuse(sock: socket.socket) -> socket.socket:
    """Have connections to a listening socket refused; return the socket that keeps its port.

    On Linux that is the same one, and the port is never free. On systems where a socket cannot stop
    listening, another one takes its place, and may find the port taken.

    Raises:
        OSError: the port was taken meanwhile.
    """
    family, address = sock.family, sock.getsockname()
    _share(sock, False)
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RD)
    listens = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    if not listens and sock.getsockname() == address:
        return sock
    sock.close()
    other = _bound(family, address)
    _share(other, False)
    return other


def listen_again(sock: socket.socket) -> None:
    """Listen with a socket that refuses.

    Raises:
        OSError: another socket listens at its port.
    """
    _share(sock, True)  # with the connections that it accepted before
    sock.listen(_BACKLOG)


def _share(sock: socket.socket, shared: bool) -> None:
    """Allow or forbid others to bind to the port of a socket that does not listen."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, shared)


def _bound(family: int, address: tuple) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            # `::` includes the addresses of IPv4, as for every other server.
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, address[0] != "::")
        sock.bind(address)
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return sock if address[1] else _bound_for_good(sock)


def _bound_for_good(sock: socket.socket) -> socket.socket:
    """Bind another socket to the port that the system chose for one: Linux takes back a chosen port
    when its socket refuses, but not one that was requested."""
    try:
        other = _bound(sock.family, sock.getsockname())
    except OSError:  # elsewhere two cannot be bound to one port
        return sock
    sock.close()
    return other


async def resolve(host: str, option: str = "--listen") -> Interface:
    """Return the addresses of the host on which to listen, named by `option`.

    Raises:
        ListenError: it does not resolve.
    """
    try:
        found = await trio.socket.getaddrinfo(
            host or None, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise ListenError(f"cannot listen on {host}: {why}; check {option}") from error
    addresses = list({(family, address): None for family, _, _, _, address in found})
    return Interface(host, addresses, option)
