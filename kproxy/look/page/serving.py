"""Serve the page of recordings on a loopback address, until a signal comes.

listen ─▶ http://127.0.0.1:PORT/enter/CODE ─▶ routes
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from pathlib import Path

import trio

from kproxy.levels import Logger
from kproxy.look.page.routes import Pages
from kproxy.net import listeners
from kproxy.net.addresses import listening_at, reachable
from kproxy.net.browser_access import BrowserAccess
from kproxy.net.control import BROWSER_CONNECTIONS_MAX, ControlServer
from kproxy.net.unusable import Unusable
from kproxy.proxy.actions import Address


async def serve(
    paths: Sequence[Path | str], at: Address, ready: Callable[[str], None],
    log: Logger,
) -> None:  # fmt: skip
    """Serve the page of recordings; call `ready` with its address.

    Raises: Unusable, if other machines reach the address; ListenError, if it cannot be used; what
    `ready` raises.
    """
    host, port = at
    interface = await listeners.resolve(host, "--listen")
    if not interface.loopback:
        raise Unusable(f"--listen {host}: other machines can reach that; use 127.0.0.1")
    listening = interface.open(port)
    here = listening_at(reachable(host), listening)

    def on_next(path: str) -> None:
        log(f"for another browser: http://{here}{path}")

    access = BrowserAccess(listening[0].getsockname()[1], on_next)
    # Before the address is told: who has it may end us.
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        ready(f"http://{here}{access.path}")  # who comes at once waits for the server
        async with trio.open_nursery() as nursery:
            routes = Pages(paths, nursery, log).routes()
            server = ControlServer(routes, host, None, log, access, BROWSER_CONNECTIONS_MAX)
            nursery.start_soon(server.serve, listeners.for_trio(listening))
            await anext(signals)
            nursery.cancel_scope.cancel()
