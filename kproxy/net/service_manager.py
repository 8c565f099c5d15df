"""What kproxy tells the manager that started it as a service of `Type=notify`: sd_notify(3).

::

    READY=1 · RELOADING=1, READY=1 · STOPPING=1 · WATCHDOG=1 ─▶ the datagram socket $NOTIFY_SOCKET

Invariant: nothing waits for the manager, and without one nothing happens.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import time
from collections.abc import Awaitable, Callable
from functools import partial

import trio


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
