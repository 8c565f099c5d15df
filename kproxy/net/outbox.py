"""What is on its way to one side of a connection.

Sending is tried at once; what the peer does not take now waits here, in order, for `flush`. Whoever
reads from the other side does not read on while something waits: that is all the backpressure
there is, and it acts in one direction only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from kproxy.exchange.entries import Frame
from kproxy.net.transport import Transport


class Outbox:
    """Bytes for one transport, and the frames whose sending they complete."""

    def __init__(self, transport: Transport, clock: Callable[[], int]) -> None:
        self.transport = transport
        self._clock = clock
        self._waiting: deque[tuple[memoryview, list[Frame]]] = deque()
        self._eof_due = False
        self._flushing = False

    @property
    def blocked(self) -> bool:
        """Whether something waits that nobody is flushing."""
        return bool(self._waiting) and not self._flushing

    @property
    def empty(self) -> bool:
        """Whether nothing waits."""
        return not self._waiting

    def send(self, data: bytes, frames: list[Frame]) -> None:
        """Send now what can be sent now.

        Raises:
            OSError: the peer is gone.
        """
        if not self._waiting:
            sent = self.transport.try_send(data)
            if sent == len(data):
                self._note_sent(frames)
                return
            data = memoryview(data)[sent:]
        self._waiting.append((memoryview(data), frames))

    def send_eof(self) -> None:
        """Half-close after what waits.

        Raises:
            OSError: the peer is gone.
        """
        if self._waiting:
            self._eof_due = True
        else:
            self.transport.send_eof()

    async def flush(self) -> None:
        """Send what waits, as the peer takes it; return at once if another task does that.

        Raises:
            OSError: the peer is gone.
        """
        if self._flushing:
            return
        self._flushing = True
        try:
            while self._waiting:
                data, frames = self._waiting[0]
                sent = self.transport.try_send(data)
                if sent == len(data):
                    self._waiting.popleft()
                    self._note_sent(frames)
                else:
                    self._waiting[0] = (data[sent:], frames)
                    await self.transport.wait_sendable()
            if self._eof_due:
                self._eof_due = False
                self.transport.send_eof()
        finally:
            self._flushing = False

    def _note_sent(self, frames: list[Frame]) -> None:
        now = self._clock()
        for frame in frames:
            frame.sent_ns = now
