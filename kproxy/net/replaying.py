"""Run a replaying broker: its listeners and the pump, from the first byte to the last.

::

    listen ─▶ machine.start (the listeners of its brokers) ─▶ ready(address) ─▶ pump ∥ signals

A signal closes every connection and ends it; a second one ends it at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import trio

from kproxy.net import listeners
from kproxy.net.pump import CONNECTIONS_MAX, Pump
from kproxy.net.recorder import Recorder
from kproxy.net.serve import ENDING, address_text, end_at_signals, monotonic_clock, reachable
from kproxy.proxy.actions import Action
from kproxy.proxy.machine import Machine


class StartingMachine(Machine, Protocol):
    """A machine that knows its brokers before a client has come."""

    def start(self, now: int) -> list[Action]:
        """What it wants at the start: listeners."""
        ...


async def replay(
    machine: StartingMachine,
    listen_host: str,
    listen_port: int,
    advertised_host: str | None,
    ready: Callable[[str], None],
    log: Callable[[str], None],
    stop: trio.Event | None = None,
) -> None:
    """Run until a signal, or until `stop` is set; say the bootstrap address through `ready`.

    Raises:
        ListenError: the listen address cannot be used.
    """
    interface = await listeners.resolve(listen_host)
    clock = monotonic_clock()
    with trio.open_signal_receiver(*ENDING) as signals:
        bootstrap = interface.open(listen_port)
        port = bootstrap[0].socket.getsockname()[1]
        pump = Pump(machine, interface, Recorder(None, log), clock, log, CONNECTIONS_MAX)
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
            ready(address_text(advertised_host or reachable(listen_host), port))
