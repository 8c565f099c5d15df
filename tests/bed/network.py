"""Machines that reach each other by address, in memory, on one clock.

::

    client's machine ═ proxy ═ broker's machine        each in a `memory.Performer`
        Dial ─▶ whoever listens there: accepted        Send ─▶ arrivals ─▶ receive

Invariants: what one machine sends arrives at the other in order, after the event that sent it.
Nothing arrives from a side that is paused, or while the connection waits for its broker. A Dial to
where nobody listens is refused.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence

import attrs

from kproxy.exchange.entries import Side
from kproxy.proxy.actions import Address, Dial, Listen
from kproxy.proxy.machine import Machine
from tests.bed.memory import Clock, Performer, Times

_PORT_FIRST = 40_000
"""The first of those that a listener gets that may have any."""


@attrs.define(eq=False)
class _Arrivals:
    """What is under way to one side of one connection of a machine."""

    performer: Performer
    number: int
    side: Side
    queue: deque[bytes | None] = attrs.field(factory=deque)
    """Bytes; None is a half-close."""
    ended: bool = False
    reset: bool = False

    def deliver(self) -> bool:
        """Let the next of it arrive; whether anything did."""
        performer, number = self.performer, self.number
        if number not in performer.links:
            self.queue.clear()
            self.reset = False
            return False
        if (number, self.side) in performer.paused or number in performer.dialling:
            return False
        if not self.queue:
            was_reset, self.reset = self.reset, False
            if was_reset:
                performer.reset(number, self.side)
            return was_reset
        data = self.queue.popleft()
        if data is None:
            performer.eof(number, self.side)
        else:
            performer.receive(number, self.side, data)
        return True


@attrs.define(eq=False)
class _Line:
    """The wires of one connection: each side leads to the arrivals of another machine."""

    clock: Clock
    to: dict[Side, _Arrivals] = attrs.field(factory=dict)

    def send(self, side: Side, data: bytes, timed: Sequence[Times]) -> None:
        """See Wires."""
        for times in timed:
            times.sent_ns = self.clock.tick()
        self.to[side].queue.append(data)

    def send_eof(self, side: Side) -> None:
        """See Wires."""
        self.to[side].ended = True
        self.to[side].queue.append(None)

    def close(self, abrupt: bool) -> None:
        """See Wires."""
        for side, arrivals in self.to.items():
            if abrupt:
                arrivals.queue.clear()
                arrivals.reset = True
            elif not arrivals.ended:
                self.send_eof(side)


@attrs.define(eq=False)
class Network:
    """Owns the performers, and what is under way between them."""

    clock: Clock = attrs.field(factory=Clock)
    listeners: dict[Address, tuple[Performer, int | None]] = attrs.field(factory=dict)
    """Who listens where, and for which node."""
    performers: list[Performer] = attrs.field(factory=list)
    _lines: dict[tuple[Performer, int], _Line] = attrs.field(factory=dict)
    _dials: deque[tuple[Performer, Dial]] = attrs.field(factory=deque)
    _numbers: dict[Performer, itertools.count] = attrs.field(factory=dict)
    _ports: itertools.count = attrs.field(factory=lambda: itertools.count(_PORT_FIRST))

    def add(self, machine: Machine, address: Address | None = None) -> Performer:
        """Add a machine; it listens at `address`, and at that host for its nodes."""
        performer = Performer(machine, self.clock)
        performer.wires = lambda number: self._line(performer, number)
        performer.dial = lambda dial: self._dials.append((performer, dial))
        self.performers.append(performer)
        self._numbers[performer] = itertools.count(1)
        if address is not None:
            performer.listen = lambda listen: self._listen(performer, address[0], listen)
            performer.unlisten = lambda unlisten: self._unlisten(performer, unlisten.node_id)
            performer.refuse = lambda refuse: self._unlisten(performer, refuse.node_id)
            performer.probe = lambda probe: not self.listeners.keys().isdisjoint(probe.addresses)
            self.listeners[address] = performer, None
        return performer

    def run(self) -> None:
        """Let everything arrive that is under way, until nothing is; no time passes for it."""
        moved = True
        while moved:
            moved = bool(self._dials)
            while self._dials:
                self._connect(*self._dials.popleft())
            for line in list(self._lines.values()):
                for arrivals in list(line.to.values()):
                    moved |= arrivals.deliver()
        for (performer, number), line in list(self._lines.items()):
            if number not in performer.links and not any(map(_pending, line.to.values())):
                del self._lines[performer, number]

    def advance(self, to_ns: int) -> None:
        """Let time pass: each machine is woken at exactly its `next_wake`."""
        self.run()
        while (due := self._next()) is not None and due[0] <= to_ns:
            self.clock.now = max(self.clock.now, due[0])
            due[1].wake()
            self.run()
        self.clock.now = max(self.clock.now, to_ns)

    def _next(self) -> tuple[int, Performer] | None:
        wakes = [(each.machine.next_wake, each) for each in self.performers]
        due = [(wake, each) for wake, each in wakes if wake is not None]
        return min(due, key=lambda each: each[0], default=None)

    def _line(self, performer: Performer, number: int) -> _Line:
        return self._lines.setdefault((performer, number), _Line(self.clock))

    def _listen(self, performer: Performer, host: str, listen: Listen) -> Address | str:
        address = host, listen.port or next(self._ports)
        if address in self.listeners:
            return f"port {listen.port} is taken"
        self.listeners[address] = performer, listen.node_id
        return address

    def _unlisten(self, performer: Performer, node_id: int) -> None:
        for address, listener in list(self.listeners.items()):
            if listener == (performer, node_id):
                del self.listeners[address]

    def _connect(self, performer: Performer, dial: Dial) -> None:
        if performer.dialling.get(dial.connection) is not dial:
            return  # it was closed meanwhile
        for address in dial.addresses:
            if address in self.listeners:
                break
        else:
            performer.not_dialled(dial.connection, "nobody listens there", refused=True)
            return
        acceptor, node_id = self.listeners[address]
        number = next(self._numbers[acceptor])
        self._line(acceptor, number).to[Side.CLIENT] = _Arrivals(
            performer, dial.connection, Side.BROKER
        )
        self._line(performer, dial.connection).to[Side.BROKER] = _Arrivals(
            acceptor, number, Side.CLIENT
        )
        acceptor.accept(number, node_id, f"127.0.0.1:{_PORT_FIRST + number}", address)
        performer.dialled(dial.connection, address)


def _pending(arrivals: _Arrivals) -> bool:
    return bool(arrivals.queue) or arrivals.reset
