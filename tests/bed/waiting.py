"""Ports and patience: free ports, and waiting for a condition with a deadline."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable


def free_ports(count: int) -> list[int]:
    """Ports of the loopback address that were free a moment ago, all different."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def accepts(port: int) -> bool:
    """Whether somebody listens on a loopback port."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def until(condition: Callable[[], object], what: str, timeout_seconds: float = 30) -> object:
    """Poll until `condition()` is true and return what it says; AssertionError if it never is."""
    deadline = time.monotonic() + timeout_seconds
    while not (answer := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {timeout_seconds} s")
        time.sleep(0.02)
    return answer
