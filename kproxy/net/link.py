"""One connection as the pump sees it: two ends, each with what waits to be sent to it.

::

    client ═ End(CLIENT) ─ other ─ End(BROKER) ═ broker

Sending is tried at once; what the peer does not take now waits in the end's outbox, and meanwhile
nothing is read from the other end: that is all the backpressure there is, and it acts in one
direction only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import attrs

from kproxy.exchange.entries import ChunkTimes, Frame, Side
from kproxy.net.transport import Transport


@attrs.define(eq=False)
class End:
    """One side of a connection."""

    number: int
    """Of the connection."""
    side: Side
    transport: Transport
    clock: Callable[[], int]
    other: End | None = None
    receiving: bool = True
    """Whether it has not ended yet."""
    paused: bool = False
    """Whether the machine wants nothing read from it for now."""
    watched: int = 0
    """What the selector watches it for."""
    _waiting: deque[tuple[memoryview, list[Frame | ChunkTimes]]] = attrs.field(factory=deque)
    _eof_due: bool = False

    @property
    def blocked(self) -> bool:
        """Whether something waits until the peer takes more."""
        return bool(self._waiting)

    @property
    def readable(self) -> bool:
        """Whether more should be read from it now."""
        return self.receiving and not self.paused and not self.other.blocked

    def send(self, data: bytes, timed: list[Frame | ChunkTimes]) -> None:
        """Send now what can be sent now; `timed` have their last bytes in `data`.

        Raises:
            OSError: the peer is gone.
        """
        if not self._waiting:
            # The time before it: sending may wake the peer, which has answered before we go on.
            now = self.clock()
            sent = self.transport.try_send(data)
            if sent == len(data):
                for times in timed:
                    times.sent_ns = now
                return
            self._waiting.append((memoryview(data)[sent:], timed))
        else:
            self._waiting.append((memoryview(data), timed))

    def send_eof(self) -> None:
        """Half-close after what waits.

        Raises:
            OSError: the peer is gone.
        """
        if self._waiting:
            self._eof_due = True
        else:
            self.transport.send_eof()

    def flush(self) -> None:
        """Send what waits, as far as the peer takes it.

        Raises:
            OSError: the peer is gone.
        """
        while self._waiting:
            data, timed = self._waiting[0]
            now = self.clock()
            sent = self.transport.try_send(data)
            if sent < len(data):
                self._waiting[0] = (data[sent:], timed)
                return
            self._waiting.popleft()
            for times in timed:
                times.sent_ns = now
        if self._eof_due:
            self._eof_due = False
            self.transport.send_eof()


@attrs.define(eq=False)
class Link:
    """A connection whose two ends are open."""

    number: int
    ends: dict[Side, End]
    closing_until_ns: int = 0
    """Non-zero: it closes when all is sent, at this time at the latest."""

    @property
    def blocked(self) -> bool:
        """Whether something waits on either side."""
        return any(end.blocked for end in self.ends.values())
