"""The control address, at which an operator sees a running machine and changes its rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import attrs
import trio

from kproxy.net import listeners
from kproxy.net.addresses import listening_at, reachable
from kproxy.net.operated import Operated
from kproxy.net.running import Task
from kproxy.net.unusable import Unusable
from kproxy.proxy.actions import Address

if TYPE_CHECKING:
    from kproxy.net.control import ControlServer
    from kproxy.net.page_process import PageProcess


@attrs.frozen(eq=False)
class ControlAddress:
    """The control address with its open listeners."""

    host: str
    token: str | None
    """The token that a request must carry; None: it needs none."""
    listening: Sequence[trio.SocketListener]


async def open_control(control: Address | None, token: str | None) -> ControlAddress | None:
    """Open the control address, if there is one.

    Raises:
        Unusable: other machines reach it, and there is no token.
        ListenError: it cannot be used.
    """
    if control is None:
        return None
    host, port = control
    interface = await listeners.resolve(host, "--control")
    if not interface.loopback and not token:
        raise Unusable(
            f"--control {host}: other machines can reach that; set KPROXY_CONTROL_TOKEN to what"
            " they must send, or use 127.0.0.1"
        )
    return ControlAddress(host, token, interface.open(port))


def control_server(at: ControlAddress, operated: Operated, log: Callable[[str], None]) -> Task:
    """Return the task that serves the control address."""
    # Imported only with --control: that takes 20 ms and 5 MiB.
    from kproxy.net.browser_access import BrowserAccess
    from kproxy.net.control import BROWSER_CONNECTIONS_MAX, ControlServer
    from kproxy.net.control_api import ControlApi
    from kproxy.net.metrics import exposition
    from kproxy.net.page_process import PageProcess

    here = listening_at(reachable(at.host), at.listening)

    def on_next(path: str) -> None:
        log(f"page, for another browser: http://{here}{path}")

    access = BrowserAccess(at.listening[0].socket.getsockname()[1], on_next)
    log(f"metrics: http://{here}/metrics{', for who sends the token' if at.token else ''}")
    log(f"page: http://{here}{access.path}")
    page = PageProcess(lambda: operated.shown)
    api = ControlApi(operated)
    routes = {"/metrics": {"GET": exposition(operated)}, **api.routes(), **page.routes()}
    server = ControlServer(routes, at.host, at.token, log, access, BROWSER_CONNECTIONS_MAX)
    return partial(_serve, server, at.listening, page)


async def _serve(
    server: ControlServer, listening: Sequence[trio.SocketListener], page: PageProcess
) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(page.run)
        nursery.start_soon(server.serve, listening)
