"""Run a replaying broker: its listeners and the pump, from the first byte to the last.

::

    listen ─▶ pump ─▶ machine.start (the listeners of its brokers) ─▶ ready(address) ─▶ …

`running` runs it beside other tasks, and ends it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import attrs
import trio

from kproxy.net import listeners
from kproxy.net.accept import CONNECTIONS_MAX
from kproxy.net.addresses import listening_at, reachable
from kproxy.net.clock import Clock
from kproxy.net.control_address import control_servers, open_addresses
from kproxy.net.operated import Operated
from kproxy.net.pump import Pump
from kproxy.net.recorder import Recorder
from kproxy.net.reloading import ReadRules, Reloading
from kproxy.net.running import Running, Task, ending_signals, open_files, run
from kproxy.net.security import security
from kproxy.net.tls.settings import ListenTls
from kproxy.proxy.actions import Action, Address
from kproxy.proxy.faults import Rules
from kproxy.proxy.machine import Machine, OpenMachine


class StartingMachine(Machine, Protocol):
    """A machine that has listeners before a client has come."""

    def start(self, now: int) -> list[Action]:
        """Return the actions of the start: listeners."""
        ...


@attrs.frozen
class ReplayOperation:
    """The parts of a replaying broker that an operator sees and changes, and how: at a control
    address, at that of health, by a signal."""

    control: Address | None
    token: str | None
    machine: OpenMachine
    rules: Rules
    replayed: Sequence[Path] = ()
    """The files of the recording."""
    recordings: Path | None = None
    """The folder of the recordings that rules from the control API may name; None: no recording."""
    health: Address | None = None
    """The address that tells only whether kproxy lives and is ready."""
    read_rules: ReadRules | None = None


async def replay(
    machine: StartingMachine,
    listen_host: str,
    listen_port: int,
    advertised_host: str | None,
    ready: Callable[[str], None],
    log: Callable[[str], None],
    stop: trio.Event | None = None,
    operation: ReplayOperation | None = None,
    listen_tls: ListenTls | None = None,
) -> None:
    """Run until a signal, or until `stop` is set; call `ready` with the bootstrap address.

    Raises:
        Unusable: other machines reach the control address, and there is no token; the system
            allows too few open files.
        ListenError: the listen address, or the control address, cannot be used.
        TlsError: a certificate, a key or a store cannot be used.
    """
    names = [*([advertised_host] if advertised_host else ()), listen_host]
    secure = security(None, listen_tls, names, log)
    descriptors = open_files(CONNECTIONS_MAX, log)
    interface = await listeners.resolve(listen_host)
    clock = Clock()
    with ending_signals() as signals:
        bootstrap = interface.open(listen_port)
        with listeners.closed_on_failure(bootstrap):
            addresses = None
            if operation:
                addresses = await open_addresses(
                    operation.control, operation.token, operation.health
                )
        address = listening_at(advertised_host or reachable(listen_host), bootstrap)
        recorder = Recorder(None, log)
        pump = Pump(machine, interface, recorder, clock, log, CONNECTIONS_MAX, descriptors, secure)
        tasks: list[Task] = [*secure.tasks]
        if operation and addresses:
            operated = Operated(
                pump=pump,
                machine=operation.machine,
                recorder=recorder,
                failures=secure.failures,
                rules=operation.rules,
                replayed=operation.replayed,
                address=address,
                clock=clock,
                recordings=operation.recordings,
            )
            tasks += control_servers(addresses, operated, log)

        def begin() -> None:
            pump.perform(machine.start(clock()))
            ready(address)

        ruled = (operation.rules, operation.read_rules) if operation else (Rules(), None)
        reload = Reloading(
            secure, *ruled, recorder.note, clock, log, is_ending=lambda: pump.draining
        ).reload
        running = Running(pump, recorder, bootstrap, log, signals, stop, tasks=tasks, reload=reload)
        await run(running, begin)
