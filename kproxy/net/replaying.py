"""Run a replaying broker: its listeners and the pump, from the first byte to the last.

::

    listen ─▶ machine.start (the listeners of its brokers) ─▶ ready(address) ─▶ pump ∥ signals

A signal closes every connection and ends it; a second one ends it at once.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import attrs
import trio

from kproxy.net import listeners
from kproxy.net.pump import CONNECTIONS_MAX, Pump
from kproxy.net.recorder import Recorder
from kproxy.net.serve import (
    address_text,
    control_listeners,
    control_server,
    end_at_signals,
    ending_signals,
    monotonic_clock,
    reachable,
)
from kproxy.net.traffic import Traffic
from kproxy.proxy.actions import Action, Address
from kproxy.proxy.faults import Rules
from kproxy.proxy.machine import Machine, OpenMachine


class StartingMachine(Machine, Protocol):
    """A machine that knows its brokers before a client has come."""

    def start(self, now: int) -> list[Action]:
        """What it wants at the start: listeners."""
        ...


@attrs.frozen
class Control:
    """Where an operator looks into a replaying broker, and what there is to change."""

    address: Address
    token: str | None
    machine: OpenMachine
    rules: Rules
    recordings: Path | None
    """The folder below which rules that come there may name recordings."""


async def replay(
    machine: StartingMachine,
    listen_host: str,
    listen_port: int,
    advertised_host: str | None,
    ready: Callable[[str], None],
    log: Callable[[str], None],
    stop: trio.Event | None = None,
    control: Control | None = None,
) -> None:
    """Run until a signal, or until `stop` is set; say the bootstrap address through `ready`.

    Raises:
        Unusable: other machines reach the control address, and there is no token.
        ListenError: the listen address, or the control address, cannot be used.
    """
    interface = await listeners.resolve(listen_host)
    clock = monotonic_clock()
    with ending_signals() as signals:
        bootstrap = interface.open(listen_port)
        port = bootstrap[0].socket.getsockname()[1]
        address = address_text(advertised_host or reachable(listen_host), port)
        recorder = Recorder(None, log)
        pump = Pump(machine, interface, recorder, clock, log, CONNECTIONS_MAX)
        async with trio.open_nursery() as nursery:

            async def serve(task_status: trio.TaskStatus[None]) -> None:
                await pump.serve(bootstrap, task_status=task_status)
                nursery.cancel_scope.cancel()

            async def wait_for_stop(stop: trio.Event) -> None:
                await stop.wait()
                await pump.drain(0)

            await nursery.start(serve)
            nursery.start_soon(end_at_signals, signals, pump, nursery.cancel_scope, log)
            if stop is not None:
                nursery.start_soon(wait_for_stop, stop)
            pump.perform(machine.start(clock()))
            if control is not None:
                listening = await control_listeners(control.address, control.token)
                place = control.address[0], control.token, listening, log, address, clock
                changed = control.rules, control.recordings
                sources = pump, control.machine, recorder, None, Traffic(), *changed
                nursery.start_soon(control_server(*place, *sources))
            ready(address)
