"""Which descriptors are ready: one question for all of them.

Invariants: `poll` says of a descriptor only what it is watched for, and that it has failed. All of
them can be waited for as one, `descriptor`, which is readable while any is ready.

Where the system has epoll it is asked directly: the layer of `selectors` in between costs a tenth
of what a small request costs. Elsewhere there is that layer.
"""

from __future__ import annotations

import os
import select
import selectors
from collections.abc import Callable

READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE
_Poll = Callable[[float], list[tuple[int, int]]]


class Readiness:
    """The watched descriptors.

    Resource handling: owns descriptors of its own until `close`; the watched ones are the caller's.
    """

    def __init__(self, epoll: bool = hasattr(select, "epoll")) -> None:
        self._selector = selectors.DefaultSelector()
        self.descriptor = self._selector.fileno()
        """Readable while any watched descriptor is ready."""
        self._epoll = select.epoll.fromfd(os.dup(self.descriptor)) if epoll else None
        self.poll: _Poll = self._epoll.poll if self._epoll else self._select
        """Waits so many seconds at most; returns the descriptors that are ready, with events."""
        self.reads = ~select.EPOLLOUT if epoll else READ
        """The events after which a descriptor can be read, as `poll` gives them …"""
        self.writes = ~select.EPOLLIN if epoll else WRITE
        """… and those after which it can be written. Failures are among both."""

    def watch(self, descriptor: int, before: int, wanted: int) -> None:
        """Watch a descriptor for `wanted`, a union of READ and WRITE, or not at all (0); it was
        watched for `before`."""
        if not wanted:
            self._selector.unregister(descriptor)
        elif before:
            self._selector.modify(descriptor, wanted)
        else:
            self._selector.register(descriptor, wanted)

    def _select(self, seconds: float) -> list[tuple[int, int]]:
        return [(key.fd, events) for key, events in self._selector.select(seconds)]

    def close(self) -> None:
        """Watch nothing any more."""
        self._selector.close()
        if self._epoll is not None:
            self._epoll.close()
