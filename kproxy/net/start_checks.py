"""Checks at the start: likely later problems, one line each, with what to change.

Only bootstrap addresses that lead nowhere, or all to kproxy itself, prevent the start: a name may
resolve where the clients are and not here, and a cluster may be open on purpose.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence

import trio

from kproxy.levels import Logger
from kproxy.net.addresses import address_text
from kproxy.net.dial import leads_to_ourselves, why
from kproxy.net.listeners import Listening
from kproxy.net.unusable import Unusable
from kproxy.proxy.actions import Address

_RESOLVE_SECONDS = 2.0


async def warn(listen_host: str, loopback: bool, advertised_host: str | None, log: Logger) -> None:
    """Log a line for each option that may be a mistake."""
    if not loopback:
        what = f"--listen {listen_host} opens the cluster to every machine that can reach this one"
        log(f"{what}; to keep it to this machine, listen at 127.0.0.1", "warning")
    if advertised_host is None:
        return
    try:
        with trio.move_on_after(_RESOLVE_SECONDS):  # if the resolver is down, do not warn
            await trio.socket.getaddrinfo(advertised_host, None, type=trio.socket.SOCK_STREAM)
    except (OSError, UnicodeError):  # the latter for a name that no host can have
        what = "clients that cannot resolve it either will not get past the bootstrap address"
        log(f"--advertise {advertised_host} resolves nowhere from here; {what}", "warning")


async def check_bootstrap(bootstrap: Sequence[Address], log: Logger) -> None:
    """Resolve the bootstrap addresses, so that a typing mistake shows before a client does."""
    unresolved = []
    for host, port in bootstrap:
        try:
            await trio.socket.getaddrinfo(host, port, type=trio.socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:  # the latter for a name that no host can have
            unresolved.append(f"{host}: {why(error)}")
    if unresolved and len(unresolved) == len(bootstrap):
        raise Unusable(
            f"cannot resolve {'; '.join(unresolved)}; check the address for typing mistakes"
        )
    for text in unresolved:
        log(f"cannot resolve {text}; going on with the other bootstrap addresses", "warning")


async def check_loops(
    bootstrap: Sequence[Address],
    listening: Sequence[socket.socket],
    log: Logger,
) -> None:
    """Refuse bootstrap addresses that all lead to kproxy itself; log single ones."""
    if not bootstrap:
        return
    ours = Listening()
    ours.add(listening)
    loops = [address for address in bootstrap if await leads_to_ourselves(address, ours)]
    names = ", ".join(address_text(*address) for address in loops)
    text = f"--bootstrap {names} is where kproxy itself listens"
    if loops and len(loops) == len(bootstrap):
        raise Unusable(f"{text}; give the address of a broker, or another --listen")
    if loops:
        log(f"{text}; going on with the other bootstrap addresses", "warning")
