"""The addresses for the operator: --control, to see a running machine and change its rules, and
--health.

::

    --control ─▶ listen_at ─┐
    --health ──▶ listen_at ─┴─▶ OperatorAddresses ─▶ control_servers ─▶ tasks

Invariants: both are open, or neither is. Other machines reach --control only where there is a
token; --health serves nothing that needs one. HTTP is imported only where there is an address.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import attrs
import trio

from kproxy.levels import Logger
from kproxy.net import listeners
from kproxy.net.addresses import listening_at, reachable
from kproxy.net.operated import Operated
from kproxy.net.running import Task
from kproxy.net.unusable import Unusable
from kproxy.proxy.actions import Address

if TYPE_CHECKING:
    from kproxy.net.control import ControlServer, Routes
    from kproxy.net.page_process import PageProcess


@attrs.frozen(eq=False)
class ControlAddress:
    """The control address, or that of --health, with its open listeners."""

    host: str
    loopback: bool
    """Only this machine can reach it."""
    token: str | None
    """The token that a request must carry; None: it needs none."""
    listening: Sequence[socket.socket]


@attrs.frozen(eq=False)
class OperatorAddresses:
    """The control address and that of --health, where there are any."""

    control: ControlAddress | None
    health: ControlAddress | None

    @property
    def listening(self) -> Sequence[socket.socket]:
        """The open listeners of both."""
        return [each for at in (self.control, self.health) if at for each in at.listening]


async def open_addresses(
    control: Address | None, token: str | None, health: Address | None
) -> OperatorAddresses:
    """Open both addresses.

    Raises:
        Unusable: other machines reach the control address, and there is no token.
        ListenError: an address cannot be used.
    """
    controlled = checked = None
    if control is not None:
        interface = await resolve_control(control, token)
        listening = interface.open(control[1])
        controlled = ControlAddress(control[0], interface.loopback, token, listening)
    with listeners.closed_on_failure(controlled.listening if controlled else ()):
        if health is not None:
            interface = await listeners.resolve(health[0], "--health")
            listening = interface.open(health[1])
            checked = ControlAddress(health[0], interface.loopback, None, listening)
    return OperatorAddresses(controlled, checked)


async def resolve_control(control: Address, token: str | None) -> listeners.Interface:
    """Look up the host of the control address.

    Raises:
        Unusable: other machines reach it, and there is no token.
        ListenError: it cannot be used.
    """
    interface = await listeners.resolve(control[0], "--control")
    if not interface.loopback and not token:
        raise Unusable(
            f"--control {control[0]}: other machines can reach that; set KPROXY_CONTROL_TOKEN to"
            " what they must send, or use 127.0.0.1"
        )
    return interface


def control_servers(at: OperatorAddresses, operated: Operated, log: Logger) -> list[Task]:
    """Return the tasks that serve the addresses."""
    if not at.listening:
        return []
    from kproxy.net.control import ControlServer
    from kproxy.net.health import Health

    tasks: list[Task] = []
    if control := at.control:
        access = "public" if control.loopback else "open"
        tasks.append(_control_server(control, Health(operated).routes(access), operated, log))
    if health := at.health:
        log(f"health: http://{listening_at(reachable(health.host), health.listening)}/readyz")
        server = ControlServer(Health(operated).routes(), health.host, None, log)
        tasks.append(partial(server.serve, listeners.for_trio(health.listening)))
    return tasks


def _control_server(at: ControlAddress, health: Routes, operated: Operated, log: Logger) -> Task:
    # Imported only with --control: that takes 20 ms and 5 MiB.
    from kproxy.net.browser_access import BrowserAccess
    from kproxy.net.control import BROWSER_CONNECTIONS_MAX, ControlServer
    from kproxy.net.control_api import ControlApi
    from kproxy.net.metrics import exposition
    from kproxy.net.page_process import PageProcess

    here = listening_at(reachable(at.host), at.listening)

    def on_next(path: str) -> None:
        log(f"page, for another browser: http://{here}{path}")

    access = BrowserAccess(at.listening[0].getsockname()[1], on_next)
    log(f"metrics: http://{here}/metrics{', for who sends the token' if at.token else ''}")
    log(f"page: http://{here}{access.path}")
    page = PageProcess(lambda: operated.shown)
    api = ControlApi(operated)
    metrics = {"/metrics": {"GET": exposition(operated)}}
    routes = {**metrics, **health, **api.routes(), **page.routes()}
    limit = BROWSER_CONNECTIONS_MAX
    server = ControlServer(routes, at.host, at.token, log, access, limit)
    return partial(_serve, server, at.listening, page)


async def _serve(
    server: ControlServer, listening: Sequence[socket.socket], page: PageProcess
) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(page.run)
        nursery.start_soon(server.serve, listeners.for_trio(listening))
