"""Run a machine, be it a proxy or a replaying broker: from its first byte to its last.

::

    pump ∥ recorder ∥ tasks ─▶ ready ─▶ …
                                        │ a signal, `stop`, or the recorder has failed
                                        ▼
          drain, `drain_seconds` at most ─▶ complete the recording, 3 s more at most ─▶ the end
                                        └ schemas, if they are collected: 5 s at most

A second signal ends it at once: the drain is over, and the disk has half a second left. SIGHUP is
none of them where no terminal can hang up: it reloads.

Invariants: nothing here waits for a disk without a limit, and only the recorder's thread touches
one. So signals are handled to the very end, even if the disk hangs. A service manager that started
kproxy (`Type=notify`) is told of it by sd_notify(3); nothing waits for that.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from functools import partial

import attrs
import trio

from kproxy.levels import Logger
from kproxy.net.accept import CONNECTIONS_MAX
from kproxy.net.descriptors import Descriptors, raise_limit
from kproxy.net.pump import Pump
from kproxy.net.recorder import Recorder
from kproxy.net.schema_process import SchemaProcess

DRAIN_SECONDS = 5.0
"""The default time for which a stop waits for responses that are due."""
_COMPLETE_SECONDS = 3.0
"""The time to complete the recording, on top of the rest of the drain. The wait for stuck terminals
comes behind it: all together less than 5 s."""
_AT_ONCE_SECONDS = 0.5
"""The same after a second signal: a disk that works needs a tenth of it."""
_FEW_CONNECTIONS = 1000
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

Task = Callable[[], Awaitable[None]]


@attrs.frozen(eq=False)
class Running:
    """A machine with all parts that run it."""

    pump: Pump
    recorder: Recorder
    bootstrap: Sequence[socket.socket]
    log: Logger
    signals: AsyncIterator[int] | None
    """The signals that end it: `ending_signals`."""
    stop: trio.Event | None = None
    """An event that ends it as a first signal does."""
    drain_seconds: float = DRAIN_SECONDS
    """The time for which a stop, or a first signal, waits for responses that are due."""
    tasks: Sequence[Task] = ()
    """Other tasks that run meanwhile."""
    schemas: SchemaProcess | None = None
    """Collects the schemas of the recording."""
    reload: Callable[[], Awaitable[None]] | None = None
    """Loads files again at SIGHUP, which ends a run only where there is a terminal to hang up."""


def open_files(connections_max: int, log: Logger) -> Descriptors:
    """Raise the limit of open files for this many connections, or log how many are possible.

    Raises:
        Unusable: no client could be served.
    """
    descriptors = raise_limit(connections_max)
    possible = descriptors.connections_max(1)
    # If the default is out of reach, only runs with very many clients need to know.
    if possible < (connections_max if connections_max != CONNECTIONS_MAX else _FEW_CONNECTIONS):
        files = f"ulimit -n {descriptors.files_max}"
        log(f"{files} allows {possible} connections at most, raise it", "warning")
    return descriptors


@contextlib.contextmanager
def ending_signals() -> Iterator[AsyncIterator[int] | None]:
    """Receive the signals that end a run; only the main thread gets any, others None."""
    if threading.current_thread() is threading.main_thread():
        is_ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN  # by nohup
        with trio.open_signal_receiver(*ENDING[: -1 if is_ignored else None]) as signals:
            yield signals
    else:
        yield None


async def run(running: Running, ready: Callable[[], None]) -> bool:
    """Run until a signal, until `stop` is set, or until the recorder fails; call `ready` when the
    pump accepts. Return whether the recording could be completed in time."""
    pump, recorder = running.pump, running.recorder
    completing = trio.CancelScope(shield=True)

    def begin() -> None:
        ready()
        notify("READY=1")

    async with trio.open_nursery() as ending:
        try:
            async with trio.open_nursery() as nursery:
                end_now = nursery.cancel_scope.cancel
                if running.signals is not None:
                    reload = None if _has_terminal() else running.reload
                    by = running.signals, reload, completing, end_now
                    ending.start_soon(_end_at_signals, running, *by)
                if running.stop is not None:
                    ending.start_soon(_end_at_stop, running, running.stop, completing)
                if running.schemas is not None:
                    ending.start_soon(running.schemas.run)
                nursery.start_soon(_run_recorder, recorder, end_now)
                for task in running.tasks:
                    nursery.start_soon(task)
                if watched := watchdog():
                    nursery.start_soon(watched)
                await pump.serve(running.bootstrap, begin)
                end_now()
        finally:
            _allow(completing, running.drain_seconds + _COMPLETE_SECONDS)
            if running.schemas is not None and await running.schemas.finish():
                least = trio.current_time() + _COMPLETE_SECONDS
                completing.deadline = max(completing.deadline, least)
            with completing:
                await recorder.finish()
            ending.cancel_scope.cancel()
    return not completing.cancelled_caught


async def _run_recorder(recorder: Recorder, end_now: Callable[[], None]) -> None:
    await recorder.run()
    end_now()


async def _end_at_signals(
    running: Running,
    signals: AsyncIterator[int],
    reload: Callable[[], Awaitable[None]] | None,
    completing: trio.CancelScope,
    end_now: Callable[[], None],
) -> None:
    """Drain at the first signal, end at the second; SIGHUP is none if there is a `reload`."""
    pump, seconds = running.pump, running.drain_seconds
    async with trio.open_nursery() as nursery:
        async for number in signals:
            if number == signal.SIGHUP and reload is not None:
                nursery.start_soon(reload)
                continue
            if pump.draining:
                _allow(completing, _AT_ONCE_SECONDS)
                if running.schemas is not None:
                    running.schemas.give_up()
                end_now()
                continue
            pump.draining = True
            notify("STOPPING=1")
            if pump.busy:
                again = "; press Ctrl-C again to end at once" if number == signal.SIGINT else ""
                running.log(f"answers that are due have {seconds:g} s{again}")
            _allow(completing, seconds + _COMPLETE_SECONDS)
            nursery.start_soon(pump.drain, seconds, signal.Signals(number).name)


async def _end_at_stop(running: Running, stop: trio.Event, completing: trio.CancelScope) -> None:
    await stop.wait()
    running.pump.draining = True
    notify("STOPPING=1")
    _allow(completing, running.drain_seconds + _COMPLETE_SECONDS)
    await running.pump.drain(running.drain_seconds)


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True


def _allow(completing: trio.CancelScope, seconds: float) -> None:
    """Set the deadline to this many seconds from now, unless it is earlier already."""
    completing.deadline = min(completing.deadline, trio.current_time() + seconds)


def notify(state: str) -> None:
    """Tell the manager, if there is one."""
    path = os.environ.get("NOTIFY_SOCKET", "")
    if path[:1] in ("/", "@"):  # @: an abstract socket, which is in no folder
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as to:
            to.setblocking(False)
            to.sendto(state.encode(), f"\0{path[1:]}" if path[0] == "@" else path)


def notify_reloading() -> None:
    """Tell the manager that a reload begins; READY=1 ends it."""
    notify(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")


def watchdog() -> Callable[[], Awaitable[None]] | None:
    """Return what tells the manager that the event loop turns, as often as it wants to know; None
    if it does not."""
    interval, pid = os.environ.get("WATCHDOG_USEC", ""), os.environ.get("WATCHDOG_PID", "")
    if re.fullmatch("[1-9][0-9]{0,17}", interval) and pid in ("", str(os.getpid())):
        return partial(_tell_turns, int(interval) / 2e6)
    return None


async def _tell_turns(seconds: float) -> None:
    while True:
        notify("WATCHDOG=1")
        await trio.sleep(seconds)
