"""Warnings at the start about likely later problems: one line each, with what to change.

    Options, Interface ─▶ start_warnings ─▶ lines for the log

None of them prevents the start: a name may resolve where the clients are and not here, and a
cluster may be open on purpose.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import trio

_RESOLVE_SECONDS = 2.0


async def start_warnings(
    listen_host: str, loopback: bool, advertised_host: str | None
) -> AsyncIterator[str]:
    """Yield a line for each option that may be a mistake."""
    if not loopback:
        yield (
            f"--listen {listen_host} opens the cluster to every machine that can reach this one;"
            " to keep it to this machine, listen at 127.0.0.1"
        )
    if advertised_host is not None and not await _resolves(advertised_host):
        yield (
            f"--advertise {advertised_host} resolves nowhere from here; clients that cannot resolve"
            " it either will not get past the bootstrap address"
        )


async def _resolves(host: str) -> bool:
    try:
        with trio.move_on_after(_RESOLVE_SECONDS):  # if the resolver is down, do not warn
            await trio.socket.getaddrinfo(host, None, type=trio.socket.SOCK_STREAM)
    except (OSError, UnicodeError):  # the latter for a name that no host can have
        return False
    return True
