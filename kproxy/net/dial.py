"""Connecting to a broker, and never to ourselves.

A broker that advertises our address, or a bootstrap address that is ours, would have each
connection lead to another one without end. So where the port is one of ours, the name is resolved
first, and what is our own listener is left out.
"""

from __future__ import annotations

from collections.abc import Sequence

import trio

from kproxy.net.listeners import Listening
from kproxy.proxy.actions import Address

DIAL_SECONDS = 10.0
REDIAL_SECONDS = 1.0
"""How long a client is held while its broker refuses connections."""
_REDIAL_SECONDS_MIN = 0.05


Dialled = tuple[trio.SocketStream, Address]
"""A connection, and which of the addresses answered."""


class Ourselves(Exception):
    """All addresses are where kproxy itself listens; the text names them."""


async def dial(addresses: Sequence[Address], ours: Listening) -> Dialled | str:
    """Connect to the first address that answers; or return why none does.

    Raises:
        Ourselves: there is nobody else at any of them.
    """
    reasons = []
    loops = 0
    for address in addresses:
        where = f"{address[0]}:{address[1]}"
        try:
            with trio.fail_after(DIAL_SECONDS):
                return await _connect(address, ours), address
        except Ourselves:
            loops += 1
            reasons.append(f"{where} is kproxy itself")
        except (OSError, ValueError, OverflowError, trio.TooSlowError) as error:
            # ValueError and OverflowError: a host or a port that nothing can have.
            reasons.append(f"{where} {why(error)}")
            _untrace(error)
    if loops and loops == len(addresses):
        raise Ourselves(", ".join(reasons))
    return ", ".join(reasons) or "nobody knows its address any more"


async def dial_again(addresses: Sequence[Address], ours: Listening, hint: str) -> Dialled | str:
    """Connect, trying again for a while: a broker may just be restarting, and a client whose
    connection ends at once comes back at once, for it takes us for the broker.

    `hint` says what to do where all addresses are our own.
    """
    pause = _REDIAL_SECONDS_MIN
    until = trio.current_time() + REDIAL_SECONDS
    while True:
        try:
            found = await dial(addresses, ours)
        except Ourselves as error:
            return f"{error}; {hint}"
        if not isinstance(found, str) or trio.current_time() + pause > until:
            return found
        await trio.sleep(pause)
        pause *= 2


async def leads_to(address: Address, ours: Listening) -> bool:
    """Whether nobody but ourselves is there."""
    try:
        return await _others(address, ours) == []
    except (OSError, ValueError):  # it does not resolve, which is not for us to report
        return False


async def _connect(address: Address, ours: Listening) -> trio.SocketStream:
    others = await _others(address, ours)
    if others == []:
        raise Ourselves
    host, port = address
    return await trio.open_tcp_stream(host if others is None else others[0], port)


async def _others(address: Address, ours: Listening) -> list[str] | None:
    """The IP addresses of a host that are not where we listen; None: all of them."""
    host, port = address
    if port not in ours.ports:
        return None
    found = await trio.socket.getaddrinfo(host, port, type=trio.socket.SOCK_STREAM)
    ips = [str(each[0]) for *_, each in found]
    others = [ip for ip in ips if not ours.has(ip, port)]
    # A host may be ours in IPv4 and a broker's in IPv6, as localhost can be.
    return others if len(others) < len(ips) else None


def why(error: BaseException) -> str:
    """Say in a few words why a peer cannot be reached, or is gone."""
    if isinstance(error, trio.TooSlowError):
        return f"does not answer within {DIAL_SECONDS:g} s"
    cause = error.__cause__ or error
    if isinstance(cause, BaseExceptionGroup):
        cause = cause.exceptions[0]
    if isinstance(cause, ConnectionRefusedError):
        return "refuses connections"
    if isinstance(cause, (ConnectionResetError, BrokenPipeError)):
        return "reset by the peer"
    return (getattr(cause, "strerror", None) or str(cause)).lower()


def _untrace(error: BaseException) -> None:
    """Let go of the frames that an error went through: they hold it, and so would be garbage in a
    cycle, a dozen times a second where a broker is down."""
    error.__traceback__ = None
    causes = {error.__cause__, error.__context__, *getattr(error, "exceptions", ())}
    for cause in causes - {None}:
        _untrace(cause)
