"""Connecting to a broker, and never to ourselves.

::

    addresses ─▶ dial ─▶ Dialled │ Unreachable (all of them refuse, or not)
                  ▲
         dial_again, for clients of a listener that cannot refuse

A broker that advertises our address, or a bootstrap address that is ours, would make each
connection open another one without end. So if the port is one of ours, the name is resolved first,
and our own listeners are left out.
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
from kproxy.proxy.authenticate import LoginFailed

DIAL_SECONDS = 10.0
PROBE_SECONDS = 2.0
"""The time for a broker that is probed to take a connection: enough for two SYNs …"""
SECURED_PROBE_SECONDS = 10.0
"""… and with TLS and a login, for which kproxy may have to fetch a token."""
REDIAL_SECONDS = 1.0
"""The time for which a client is held when no broker can be reached."""
_REDIAL_SECONDS_MIN = 0.05
_NO_SUCH_FAMILY = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.ENETUNREACH})
"""Errors about an address family that this machine lacks, as it may lack IPv6: they say nothing
about the broker."""


@attrs.frozen
class Dialled:
    """A connection, and the address that answered."""

    secured: Secured
    address: Address

    def close(self) -> None:
        """Close the connection."""
        self.secured.transport.close(False)


@attrs.frozen
class Unreachable:
    """The reason why no address answers."""

    reason: str
    refused: bool = False
    """Each of the addresses refuses connections."""
    login_failed: bool = False
    """kproxy's login failed …"""
    final: bool = False
    """… and another try would end alike."""

    @property
    def why(self) -> str:
        """The reason, and of what: of a broker, or of kproxy's login."""
        return f"no {'login' if self.login_failed else 'broker'}: {self.reason}"


class Ourselves(Exception):
    """Addresses at all of which kproxy itself listens; the text names them."""


async def dial(
    addresses: Sequence[Address], ours: Listening, secure: Secure = plaintext
) -> Dialled | Unreachable:
    """Connect to the first address that answers, or return the reason why none does.

    Raises:
        Ourselves: kproxy itself listens at all of them.
    """
    reasons = []
    loops = refusals = 0
    login_failed = False
    for address in addresses:
        where = f"{address[0]}:{address[1]}"
        try:
            with trio.fail_after(DIAL_SECONDS):
                stream = await _connect(address, ours)
            return Dialled(await secure(stream, address[0]), address)
        except LoginFailed as error:
            reasons.append(f"{where}: {error}")
            login_failed = True
            if error.final:
                return Unreachable(reasons[-1], login_failed=True, final=True)
        except Ourselves:
            loops += 1
            reasons.append(f"{where} is kproxy itself")
        except HandshakeFailed as error:
            reasons.append(f"{where}: TLS failed: {error}")
        except (OSError, ValueError, OverflowError, trio.TooSlowError) as error:
            # ValueError and OverflowError: a host or a port that cannot exist.
            reasons.append(f"{where} {why(error)}")
            refusals += _is_refusal(error)
            _drop_traceback(error)
    if loops and loops == len(addresses):
        raise Ourselves(", ".join(reasons))
    refused = 0 < refusals == len(addresses)
    reason = ", ".join(reasons) or "nobody knows its address any more"
    return Unreachable(reason, refused, login_failed)


async def dial_again(
    addresses: Sequence[Address], ours: Listening, secure: Secure, hint: str, can_refuse: bool
) -> Dialled | Unreachable:
    """Connect, and try again for a while, because a client whose connection ends at once comes back
    at once: it takes us for the broker.

    There is no second try if the broker refuses and the client's listener `can_refuse`: that
    refuses from then on, as the broker does. So clients are held at the bootstrap listener, and
    where a broker fails in other ways.

    `hint` says what to do if all addresses are our own.
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
        if found.final:  # many in a row may lock the account
            await trio.sleep_until(until)
            return found
        if trio.current_time() + pause > until:
            return found
        await trio.sleep(pause)
        pause *= 2


async def probe(
    addresses: Sequence[Address], ours: Listening, secure: Secure
) -> Unreachable | None:
    """Open and close a connection to the first address that answers; or return the reason why none
    does."""
    seconds = PROBE_SECONDS if secure is plaintext else SECURED_PROBE_SECONDS
    failures: list[Unreachable] = []
    for address in addresses:
        found = Unreachable(f"{address[0]}:{address[1]} does not answer within {seconds:g} s")
        try:
            with trio.move_on_after(seconds):
                found = await dial([address], ours, secure)
        except Ourselves as error:
            found = Unreachable(str(error))
        if isinstance(found, Dialled):
            found.close()
            return None
        failures.append(found)
        if found.final:
            break
    login_failed = any(each.login_failed for each in failures)
    return Unreachable(", ".join(each.reason for each in failures), login_failed=login_failed)


async def leads_to_ourselves(address: Address, ours: Listening) -> bool:
    """Return whether an address leads only to our own listeners."""
    try:
        return await _others(address, ours) == []
    except (OSError, ValueError):  # it does not resolve; `_check_bootstrap` reports that
        return False


async def _connect(address: Address, ours: Listening) -> trio.SocketStream:
    others = await _others(address, ours)
    if others == []:
        raise Ourselves
    host, port = address
    return await trio.open_tcp_stream(host if others is None else others[0], port)


async def _others(address: Address, ours: Listening) -> list[str] | None:
    """Return the IP addresses of a host at which we do not listen; None: all of them."""
    host, port = address
    if port not in ours.ports:
        return None
    found = await trio.socket.getaddrinfo(host, port, type=trio.socket.SOCK_STREAM)
    ips = [str(each[0]) for *_, each in found]
    others = [ip for ip in ips if not ours.has(ip, port)]
    # A host may be ours in IPv4 and a broker's in IPv6, as localhost can be.
    return others if len(others) < len(ips) else None


def why(error: BaseException) -> str:
    """Return in a few words why a peer cannot be reached, or is gone."""
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


def _is_refusal(error: BaseException) -> bool:
    """Return whether each IP address of the host refuses connections."""
    cause = error.__cause__ or error
    causes = cause.exceptions if isinstance(cause, BaseExceptionGroup) else [cause]
    real = [each for each in causes if getattr(each, "errno", None) not in _NO_SUCH_FAMILY]
    return bool(real) and all(isinstance(each, ConnectionRefusedError) for each in real)


def _drop_traceback(error: BaseException) -> None:
    """Drop the frames of an error, which refer back to it: they would be garbage in a cycle, a
    dozen times a second while a broker is down."""
    error.__traceback__ = None
    causes = {error.__cause__, error.__context__, *getattr(error, "exceptions", ())}
    for cause in causes:
        if cause is not None:
            _drop_traceback(cause)
