"""One connection as the pump sees it: its ends, each with the bytes that wait to be sent to it.

::

    client ═ End(CLIENT) ─ Link ─ End(BROKER) ═ broker

Sending is tried at once; bytes that the peer does not take wait in the end's outbox, and meanwhile
the other end is not read: that is all the backpressure there is, and it acts in one direction only.
They count as sent on when that was tried: that the peer is slow to take them is not kproxy's time.

A link exists from the moment when its client was accepted. While its broker is dialled it has one
end, and nothing is read: the client's bytes wait in the kernel. If the machine is a broker its
links have only the client's end; if it is a client, only the broker's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import attrs
import trio

from kproxy.exchange.entries import ChunkTimes, Frame, Side
from kproxy.net.transport import Transport

_UNSENT_PIECES_MAX = 16
"""With more pieces than this waiting for a peer, that peer is not read from either."""


@attrs.define(eq=False)
class End:
    """One side of a connection."""

    number: int
    """The number of the connection."""
    side: Side
    transport: Transport
    clock: Callable[[], int]
    link: Link | None
    """The link of the end; None: it was closed."""
    receiving: bool = True
    """The peer has not half-closed yet."""
    watched: int = 0
    """The events for which it is watched."""
    blocked_ns: int = 0
    """When bytes last began to wait."""
    _waiting: deque[tuple[memoryview, Sequence[Frame | ChunkTimes], int]] = attrs.field(
        factory=deque
    )
    """Bytes, what they hold the last bytes of, and when they would have been sent."""
    _eof_due: bool = attrs.field(default=False, init=False)

    @property
    def blocked(self) -> bool:
        """True while bytes wait until the peer takes more."""
        return bool(self._waiting) or self.transport.wants_write

    @property
    def other(self) -> End | None:
        """The other end of its link."""
        return None if self.link is None else self.link.ends[1 - self.side]

    @property
    def readable(self) -> bool:
        """True while more should be read from it."""
        link = self.link
        if link is None or link.dialling or link.closing or not self.receiving:
            return False
        if self.side in link.paused or len(self._waiting) > _UNSENT_PIECES_MAX:
            return False  # hold up a peer that requests without end and takes no response
        other = self.other
        return other is None or not other.blocked

    def send(self, data: bytes | memoryview, timed: Sequence[Frame | ChunkTimes]) -> bool:
        """Send what the peer takes now; `timed` have their last bytes in `data`.

        Returns whether bytes wait then, as `blocked` does.

        Raises:
            OSError: the peer is gone.
        """
        # Read the clock first: sending wakes the peer, which may answer before we go on.
        now = self.clock()
        if not self._waiting:
            transport = self.transport
            sent = transport.try_send(data)
            if sent == len(data):
                for times in timed:
                    times.sent_ns = now
                return transport.wants_write
            data = memoryview(data)[sent:]
        self._waiting.append((memoryview(data), timed, now))
        return True

    def send_eof(self) -> None:
        """Half-close behind the bytes that wait.

        Raises:
            OSError: the peer is gone.
        """
        if self.blocked:
            self._eof_due = True
        else:
            self.transport.send_eof()

    def flush(self) -> None:
        """Send the bytes that wait, as far as the peer takes them.

        Raises:
            OSError: the peer is gone.
        """
        transport = self.transport
        if transport.wants_write:
            transport.flush()
        while self._waiting:
            data, timed, due_ns = self._waiting[0]
            sent = transport.try_send(data)
            if sent < len(data):
                self._waiting[0] = (data[sent:], timed, due_ns)
                return
            self._waiting.popleft()
            for times in timed:
                times.sent_ns = due_ns
        if self._eof_due and not transport.wants_write:
            self._eof_due = False
            transport.send_eof()


@attrs.define(eq=False)
class Link:
    """A connection that is open."""

    number: int
    node_id: int | None
    """The node of the client's listener; None: bootstrap."""
    ends: list[End | None] = attrs.Factory(lambda: [None, None])
    """The ends by Side; None: there is none, or not yet."""
    paused: set[Side] = attrs.field(factory=set)
    """The sides that the machine has paused."""
    dialling: trio.CancelScope | None = None
    """The scope in which its broker is dialled, or kproxy logs in anew; None: that has ended."""
    closing: bool = False
    """It closes when all is sent."""

    def end(self, side: Side) -> End:
        """Return an end that must be there.

        Raises:
            ValueError: it is not there.
        """
        end = self.ends[side]
        if end is None:
            raise ValueError(f"connection {self.number} has no {side.name.lower()}")
        return end

    @property
    def open_ends(self) -> list[End]:
        """The ends that are there."""
        return [end for end in self.ends if end]

    @property
    def blocked(self) -> bool:
        """True while bytes wait on either side."""
        return any(end.blocked for end in self.open_ends)
