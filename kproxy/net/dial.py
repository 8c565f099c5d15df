"""Connecting to a broker, and never to ourselves.

::

    addresses ─▶ dial ─▶ Dialled │ Unreachable, by which it is decided who is refused
                  ▲
         dial_again, where whoever waits must be held: a listener that cannot refuse

A broker that advertises our address, or a bootstrap address that is ours, would have each
connection lead to another one without end. So where the port is one of ours, the name is resolved
first, and what is our own listener is left out.
"""

from __future__ import annotations

import errno
import ssl
from collections.abc import Sequence

import attrs
import trio

from kproxy.net.handshake import HandshakeFailed, Secure, Secured, plaintext, why_tls
from kproxy.net.listeners import Listening
from kproxy.proxy.actions import Address

DIAL_SECONDS = 10.0
PROBE_SECONDS = 2.0
"""So long a broker that was down has to take a connection: the system asks it twice meanwhile."""
REDIAL_SECONDS = 1.0
"""How long a client is held where no broker can be reached."""
_REDIAL_SECONDS_MIN = 0.05
_NO_SUCH_FAMILY = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.ENETUNREACH})
"""What the system says of an address of a kind that this machine does not have, as ::1 can be: of
the broker it says nothing."""


@attrs.frozen
class Dialled:
    """A connection, and which of the addresses answered."""

    secured: Secured
    address: Address

    def close(self) -> None:
        """Let go of it."""
        self.secured.transport.close(False)


@attrs.frozen
class Unreachable:
    """No address answers."""

    reason: str
    refused: bool = False
    """Whether each of them refuses connections."""


class Ourselves(Exception):
    """All addresses are where kproxy itself listens; the text names them."""


async def dial(
    addresses: Sequence[Address], ours: Listening, secure: Secure = plaintext
) -> Dialled | Unreachable:
    """Connect to the first address that answers; or return why none does.

    Raises:
        Ourselves: there is nobody else at any of them.
    """
    reasons = []
    loops = refusals = 0
    for address in addresses:
        where = f"{address[0]}:{address[1]}"
        try:
            with trio.fail_after(DIAL_SECONDS):
                stream = await _connect(address, ours)
            return Dialled(await secure(stream, address[0]), address)
        except Ourselves:
            loops += 1
            reasons.append(f"{where} is kproxy itself")
        except HandshakeFailed as error:
            reasons.append(f"{where}: TLS failed: {error}")
        except (OSError, ValueError, OverflowError, trio.TooSlowError) as error:
            # ValueError and OverflowError: a host or a port that nothing can have.
            reasons.append(f"{where} {why(error)}")
            refusals += _refused(error)
            _untrace(error)
    if loops and loops == len(addresses):
        raise Ourselves(", ".join(reasons))
    refused = 0 < refusals == len(addresses)
    return Unreachable(", ".join(reasons) or "nobody knows its address any more", refused)


async def dial_again(
    addresses: Sequence[Address], ours: Listening, secure: Secure, hint: str, can_refuse: bool
) -> Dialled | Unreachable:
    """Connect, trying again for a while: a client whose connection ends at once comes back at once,
    for it takes us for the broker.

    Not where the broker refuses and the listener that the client comes from `can_refuse`: that does
    so from then on, and the client learns what it would learn from the broker. So those are held
    that come to the bootstrap listener, and those whose broker does not answer otherwise.

    `hint` says what to do where all addresses are our own.
    """
    pause = _REDIAL_SECONDS_MIN
    until = trio.current_time() + REDIAL_SECONDS
    while True:
        try:
            found = await dial(addresses, ours, secure)
        except Ourselves as error:
            return Unreachable(f"{error}; {hint}")
        if not isinstance(found, Unreachable) or (found.refused and can_refuse):
            return found
        if trio.current_time() + pause > until:
            return found
        await trio.sleep(pause)
        pause *= 2


async def answers(address: Address, ours: Listening) -> bool:
    """Whether a broker takes connections there: one is opened and closed."""
    with trio.move_on_after(PROBE_SECONDS):
        try:
            found = await dial([address], ours)
        except Ourselves:
            return False
        if not isinstance(found, Unreachable):
            found.close()
            return True
    return False


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
    if isinstance(cause, ssl.SSLError):
        return f"TLS failed: {why_tls(cause)}"
    if isinstance(cause, ConnectionRefusedError):
        return "refuses connections"
    if isinstance(cause, (ConnectionResetError, BrokenPipeError)):
        return "reset by the peer"
    return (getattr(cause, "strerror", None) or str(cause)).lower()


def _refused(error: BaseException) -> bool:
    """Whether it is nothing but a refusal, from each IP address of the host."""
    cause = error.__cause__ or error
    causes = cause.exceptions if isinstance(cause, BaseExceptionGroup) else [cause]
    told = [each for each in causes if getattr(each, "errno", None) not in _NO_SUCH_FAMILY]
    return bool(told) and all(isinstance(each, ConnectionRefusedError) for each in told)


def _untrace(error: BaseException) -> None:
    """Let go of the frames that an error went through: they hold it, and so would be garbage in a
    cycle, a dozen times a second where a broker is down."""
    error.__traceback__ = None
    causes = {error.__cause__, error.__context__, *getattr(error, "exceptions", ())}
    for cause in causes - {None}:
        _untrace(cause)
