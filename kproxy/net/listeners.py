"""Opening listeners: one for the bootstrap address, one for each broker."""

from __future__ import annotations

import errno
import ipaddress
import socket
from collections.abc import Sequence

import attrs
import trio

_BACKLOG = 1024

SocketAddress = tuple[int, tuple]
"""A socket's family and address, as getaddrinfo gives them."""


class ListenError(Exception):
    """A listener cannot be opened; the text says where, why, and what to do."""


@attrs.frozen
class Interface:
    """The addresses of a host on which to listen, at any port."""

    host: str
    addresses: Sequence[SocketAddress]
    option: str = "--listen"
    """The option that decides where to listen."""

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach it."""
        return all(ipaddress.ip_address(address[0]).is_loopback for _, address in self.addresses)

    def open(self, port: int) -> list[trio.SocketListener]:
        """Listen at `port` (0: any, the same for all addresses) without waiting for anything.

        Raises:
            ListenError: the port is taken, or is not for us.
        """
        listeners: list[trio.SocketListener] = []
        try:
            for family, address in self.addresses:
                sock = _bound(family, (address[0], port, *address[2:]))
                listeners.append(trio.SocketListener(trio.socket.from_stdlib_socket(sock)))
                port = sock.getsockname()[1]
        except OSError as error:
            for listener in listeners:
                listener.socket.close()
            if error.errno == errno.EADDRINUSE:
                why = f"the port is taken; choose another with {self.option}"
            else:
                why = error.strerror or str(error)
            raise ListenError(f"cannot listen on {self.host}:{port}: {why}") from error
        return listeners


def _bound(family: int, address: tuple) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            # All addresses are those of IPv4, too, as for every other server.
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, address[0] != "::")
        sock.bind(address)
        sock.listen(_BACKLOG)
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return sock


async def resolve(host: str, option: str = "--listen") -> Interface:
    """Find the addresses of the host on which to listen, as `option` says.

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
