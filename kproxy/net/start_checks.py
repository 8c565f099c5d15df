"""What can be seen at the start to go wrong later: one line each, with what to change.

    Options, Interface ─▶ start_warnings ─▶ lines for the log

None of it is a reason not to start: a name may resolve where the clients are and not here, and a
cluster may be meant to be open.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import trio

_RESOLVE_SECONDS = 2.0


async def start_warnings(
    listen_host: str, loopback: bool, advertised_host: str | None
) -> AsyncIterator[str]:
    """Yield a line for each thing that may not be meant."""
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
        with trio.move_on_after(_RESOLVE_SECONDS):  # a resolver that is down says nothing of a name
            await trio.socket.getaddrinfo(host, None, type=trio.socket.SOCK_STREAM)
    except (OSError, UnicodeError):  # the latter for a name that no host can have
        return False
    return True
