"""Two small machines beside the proxy, as replay has them: a client, and a broker with one end."""

from __future__ import annotations

import attrs

from kproxy.exchange.entries import Side
from kproxy.proxy.actions import Action, Address, Close, Dial, Send
from kproxy.proxy.machine import Accepted


class Quiet:
    """A machine that leaves every event alone."""

    next_wake: int | None = None
    busy = False

    def _leave(self, *event: object) -> list[Action]:
        return []

    accepted = rejected = dialled = not_dialled = all_sent = _leave
    listening = not_listening = probed = wake = drain = _leave


@attrs.define(eq=False)
class Caller(Quiet):
    """A client: it opens its connections itself, and sends what it was given."""

    frames: dict[int, bytes] = attrs.field(factory=dict)
    """What it sends on each connection."""
    received: dict[int, bytes] = attrs.field(factory=dict)
    refused: dict[int, str] = attrs.field(factory=dict)
    ended: list[int] = attrs.field(factory=list)

    def call(self, number: int, address: Address, frames: bytes) -> list[Action]:
        """Open a connection on which these bytes are sent."""
        self.frames[number] = frames
        return [Dial(number, [address])]

    def dialled(self, number: int, *about: object) -> list[Action]:
        """See Machine."""
        self.received[number] = b""
        return [Send(number, Side.BROKER, [self.frames[number]], [])]

    def not_dialled(self, number: int, reason: str, refused: bool, now: int) -> list[Action]:
        """See Machine."""
        self.refused[number] = reason
        return [Close(number, False)]

    def receive(self, number: int, side: Side, data: bytes, now: int) -> list[Action]:
        """See Machine."""
        self.received[number] += data
        return []

    def closed(self, number: int, side: Side, how: str, reason: str, now: int) -> list[Action]:
        """See Machine."""
        self.ended.append(number)
        return [Close(number, False)]

    def stop(self, now: int) -> list[Action]:
        """See Machine."""
        return [Close(number, False) for number in self.received]


@attrs.define(eq=False)
class Answerer(Quiet):
    """A broker with no broker behind it: it responds to each chunk, so long after it came."""

    response: bytes
    delay_ns: int = 0
    received: dict[int, bytes] = attrs.field(factory=dict)
    woken: list[tuple[int, int]] = attrs.field(factory=list)
    """Each time when it wanted to be woken, and when it was."""
    _due: list[tuple[int, int]] = attrs.field(factory=list)

    @property
    def next_wake(self) -> int | None:
        """See Machine."""
        return self._due[0][0] if self._due else None

    @property
    def busy(self) -> bool:
        """See Machine."""
        return bool(self._due)

    def accepted(self, client: Accepted, now: int) -> list[Action]:
        """See Machine."""
        self.received[client.number] = b""
        return []

    def receive(self, number: int, side: Side, data: bytes, now: int) -> list[Action]:
        """See Machine."""
        self.received[number] += data
        if not self.delay_ns:
            return [Send(number, Side.CLIENT, [self.response], [])]
        self._due.append((now + self.delay_ns, number))
        return []

    def closed(self, number: int, side: Side, how: str, reason: str, now: int) -> list[Action]:
        """See Machine."""
        if number not in self.received:
            return []
        self._forget(number)
        return [Close(number, how != "eof")]

    def wake(self, now: int) -> list[Action]:
        """See Machine."""
        actions: list[Action] = []
        while self._due and self._due[0][0] <= now:
            due, number = self._due.pop(0)
            self.woken.append((due, now))
            actions.append(Send(number, Side.CLIENT, [self.response], []))
        return actions

    def stop(self, now: int) -> list[Action]:
        """See Machine."""
        open_now = list(self.received)
        for number in open_now:
            self._forget(number)
        return [Close(number, False) for number in open_now]

    def _forget(self, number: int) -> None:
        del self.received[number]
        self._due = [each for each in self._due if each[1] != number]
