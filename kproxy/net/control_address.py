"""The control address: where an operator looks into a running machine, and changes its rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import attrs
import trio

from kproxy.net import listeners
from kproxy.net.addresses import address_text, reachable
from kproxy.net.pump import Pump
from kproxy.net.recorder import Recorder
from kproxy.net.running import Task, Unusable
from kproxy.net.traffic import Traffic
from kproxy.proxy.actions import Address
from kproxy.proxy.faults import Rules
from kproxy.proxy.machine import OpenMachine
from kproxy.recording.rotation import Recording


@attrs.frozen(eq=False)
class ControlAddress:
    """The address, opened."""

    host: str
    token: str | None
    """What a request there must carry."""
    listening: Sequence[trio.SocketListener]


@attrs.frozen(eq=False)
class Operated:
    """What an operator can look at and change."""

    pump: Pump
    machine: OpenMachine
    recorder: Recorder
    recording: Recording | None
    traffic: Traffic
    rules: Rules
    address: str
    """Where clients connect."""
    clock: Callable[[], int]
    recordings: Path | None
    """The folder below which rules that come there may name recordings."""


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
    """Return what serves the control address."""
    # Imported only for those who want it: that takes 20 ms and 5 MiB.
    from kproxy.net.control import Control
    from kproxy.net.control_api import Api
    from kproxy.net.metrics import Sources, exposition

    here = address_text(reachable(at.host), at.listening[0].socket.getsockname()[1])
    log(f"metrics: http://{here}/metrics{', for who sends the token' if at.token else ''}")
    pump, machine, recorder = operated.pump, operated.machine, operated.recorder
    recording, rules, clock = operated.recording, operated.rules, operated.clock
    at_ns, recordings = clock(), operated.recordings
    address = operated.address
    api = Api(rules, machine, pump, recorder, recording, address, clock, at_ns, recordings)
    sources = Sources(pump, machine, recorder, recording, operated.traffic, rules)
    routes = {"/metrics": {"GET": exposition(sources)}, **api.routes()}
    return partial(Control(routes, at.host, at.token, log).serve, at.listening)
