"""Performs the actions of a machine in memory: a proxy or a broker without a socket.

::

    accept · receive · eof · advance …
          │
          ▼
      Performer ─ event ─▶ Machine ─ actions ─▶ Send, Eof, Close ─▶ Wires of that connection
                                                Dial, Listen ─▶ hooks: at once, later or never
                                                RecordEntries, Log ─▶ kept

A `Performer` drives one machine. What is behind its connections are `Wires`, which the caller may
bring; without, what the machine sends is kept. `network` joins the machines of several performers.

Invariants: time goes on only when the clock is told so. Actions are performed as `net.pump` does:
in order, a Listen at once, the end of a Dial and the loss of a peer after all actions of the event.
What the pump would take for a defect of the machine is an exception here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import attrs

from kproxy.exchange.entries import ChunkTimes, Entry, Frame, Side
from kproxy.proxy.actions import (
    Action,
    Address,
    Close,
    Dial,
    Eof,
    Listen,
    Log,
    LogIn,
    Pause,
    Probe,
    RecordEntries,
    Refuse,
    Resume,
    Send,
    Unlisten,
)
from kproxy.proxy.authenticate import LoginSession
from kproxy.proxy.machine import Accepted, Machine, unperformed

Times = Frame | ChunkTimes


@attrs.define(eq=False)
class Clock:
    """The time of one or more machines, in nanoseconds."""

    now: int = 0
    step: Callable[[], int] = lambda: 0
    """How much later the next event is."""

    def tick(self) -> int:
        """Return the time of the next event."""
        self.now += self.step()
        return self.now


class Wires(Protocol):
    """What is behind a connection: takes what the machine sends to its two sides.

    Its functions raise OSError when the peer is gone.
    """

    def send(self, side: Side, data: bytes, timed: Sequence[Times]) -> None:
        """Take bytes for one side; tell `timed` when the last of them are sent."""
        ...

    def send_eof(self, side: Side) -> None:
        """Take the half-close of one side."""
        ...

    def close(self, abrupt: bool) -> None:
        """Both sides are closed."""
        ...


@attrs.define(eq=False)
class Kept:
    """Wires that lead nowhere: they keep what was sent."""

    clock: Clock
    sent: dict[Side, bytearray] = attrs.field(
        factory=lambda: {Side.CLIENT: bytearray(), Side.BROKER: bytearray()}
    )
    ended: list[Side] = attrs.field(factory=list)
    """The sides that were half-closed, in that order."""
    abrupt: bool | None = None
    """How it was closed; None: it is open."""
    takes: bool = True
    """The peers take what is sent."""

    def send(self, side: Side, data: bytes, timed: Sequence[Times]) -> None:
        """See Wires."""
        if not self.takes:
            return
        self.sent[side] += data
        now = self.clock.tick() if timed else 0
        for times in timed:
            times.sent_ns = now

    def send_eof(self, side: Side) -> None:
        """See Wires."""
        self.ended.append(side)

    def close(self, abrupt: bool) -> None:
        """See Wires."""
        self.abrupt = abrupt


@attrs.define(eq=False)
class Performer:
    """Drives one machine: tell it what happens, and look at what it leads to."""

    machine: Machine
    clock: Clock = attrs.field(factory=Clock)
    wires: Callable[[int], Wires] | None = None
    """Makes the wires of a connection; None: they keep what was sent."""
    dial: Callable[[Dial], Address | str | None] = lambda dial: dial.addresses[0]
    """The address that answers, or why none does, or None: `dialled` or `not_dialled` says so."""
    listen: Callable[[Listen], Address | str | None] = lambda listen: None
    """Where the listener is open, or why it cannot be, or None: `listening` or `not_listening`
    says so."""
    watch: Callable[[list[Entry]], None] = lambda entries: None
    """Is shown what the machine records, at once."""
    unlisten: Callable[[Unlisten], None] = lambda unlisten: None
    """Closes a listener."""
    refuse: Callable[[Refuse], None] = lambda refuse: None
    """Has a listener refuse."""
    probe: Callable[[Probe], bool | None] = lambda probe: None
    """Whether somebody takes connections there, or None: `probed` says so."""
    links: dict[int, Wires] = attrs.field(factory=dict)
    """The connections that are open."""
    paused: set[tuple[int, Side]] = attrs.field(factory=set)
    """The sides of connections that are not to be read from, because the machine wants it so."""
    dialling: dict[int, Dial] = attrs.field(factory=dict)
    """Those that wait for their broker; their clients are not to be read from either."""
    logging_in: dict[int, LogIn] = attrs.field(factory=dict)
    """Those at whose broker kproxy logs in anew; neither side is to be read from."""
    recorded: list[Entry] = attrs.field(factory=list)
    logs: list[str] = attrs.field(factory=list)
    levels: list[str] = attrs.field(factory=list)
    _lost: list[tuple[int, Side, OSError]] = attrs.field(factory=list)
    _answered: deque[tuple[int, Address | str]] = attrs.field(factory=deque)
    _depth: int = 0

    # Events

    def accept(
        self,
        number: int,
        node_id: int | None = None,
        client_address: str = "127.0.0.1:50000",
        local_address: Address = ("127.0.0.1", 9092),
    ) -> None:
        """A client connects to the listener of a node (None: bootstrap)."""
        self._open(number)
        client = Accepted(number, node_id, client_address, local_address)
        self.perform(self.machine.accepted(client, self.clock.tick()))

    def dialled(self, number: int, address: Address, login: LoginSession | None = None) -> None:
        """The Dial of a connection ends: this address answers, and kproxy has logged in, or not."""
        self.dialling.pop(number, None)
        self.perform(self.machine.dialled(number, address, self.clock.tick(), None, login))

    def logged_in(self, number: int, login: LoginSession) -> None:
        """The LogIn of a connection ends well."""
        del self.logging_in[number]
        self.perform(self.machine.logged_in(number, login, self.clock.tick()))

    def not_dialled(self, number: int, reason: str, refused: bool = False) -> None:
        """The Dial of a connection ends: no address answers."""
        self.dialling.pop(number, None)
        self.perform(self.machine.not_dialled(number, reason, refused, self.clock.tick()))

    def receive(self, number: int, side: Side, data: bytes) -> None:
        """Bytes arrive from one side."""
        self.perform(self.machine.receive(number, side, data, self.clock.tick()))

    def eof(self, number: int, side: Side) -> None:
        """One side half-closes."""
        self.perform(self.machine.closed(number, side, "eof", "", self.clock.tick()))

    def reset(self, number: int, side: Side, reason: str = "reset by the peer") -> None:
        """One side is found gone."""
        self.perform(self.machine.closed(number, side, "reset", reason, self.clock.tick()))

    def listening(self, node_id: int, address: Address) -> None:
        """The listener of a node is open."""
        self.perform(self.machine.listening(node_id, address, self.clock.tick()))

    def not_listening(self, node_id: int, reason: str) -> None:
        """The listener of a node cannot be opened."""
        self.perform(self.machine.not_listening(node_id, reason, self.clock.tick()))

    def probed(
        self,
        node_id: int | None,
        addresses: Sequence[Address],
        answers: bool,
        login_failed: bool = False,
    ) -> None:
        """A Probe ends."""
        failure = "" if answers else "no login" if login_failed else "it refuses"
        about = node_id, addresses, failure, login_failed, self.clock.tick()
        self.perform(self.machine.probed(*about))

    def advance(self, to_ns: int) -> None:
        """Let time pass: the machine is woken each time at exactly its `next_wake`.

        Raises:
            RuntimeError: the machine does not move `next_wake` on.
        """
        while (due := self.machine.next_wake) is not None and due <= to_ns:
            self.clock.now = max(self.clock.now, due)
            self.wake()
        self.clock.now = max(self.clock.now, to_ns)

    def wake(self) -> None:
        """Call the machine's `wake`, now.

        Raises:
            RuntimeError: the machine does not move `next_wake` on.
        """
        now = self.clock.now
        actions = self.machine.wake(now)
        due = self.machine.next_wake
        if due is not None and due <= now:
            raise RuntimeError(f"wake({now}) leaves next_wake at {due}: it would be for ever")
        self.perform(actions)

    def stop(self) -> None:
        """Whoever runs the machine ends."""
        self.perform(self.machine.stop(self.clock.tick()))

    # Actions

    def perform(self, actions: list[Action]) -> None:
        """Perform the actions of an event.

        Raises:
            TypeError: there is one that nobody performs.
            LookupError: one names a connection that is not open.
            ValueError: one cannot be done in the state that its connection is in.
        """
        self._depth += 1
        try:
            for action in actions:
                PERFORMERS.get(type(action), unperformed)(self, action)
        finally:
            self._depth -= 1
        while self._lost:
            number, side, error = self._lost.pop(0)
            if number in self.links:
                self.reset(number, side, error.strerror or str(error))
        while self._answered and not self._depth:
            number, answer = self._answered.popleft()
            if number not in self.dialling:
                continue  # it was closed meanwhile
            if isinstance(answer, str):
                self.not_dialled(number, answer)
            else:
                self.dialled(number, answer)

    def _open(self, number: int) -> None:
        self.links[number] = Kept(self.clock) if self.wires is None else self.wires(number)

    def _link(self, action: Dial | Send | Eof | Pause | Resume | Close) -> Wires:
        link = self.links.get(action.connection)
        if link is None:
            raise LookupError(f"connection {action.connection} is not open: {action}")
        return link

    def _dial(self, action: Dial) -> None:
        number = action.connection
        if number in self.dialling:
            raise ValueError(f"connection {number} is dialled twice")
        if number not in self.links:  # a client's machine opens its connections itself
            self._open(number)
        self.dialling[number] = action
        answer = self.dial(action)
        if answer is not None:
            self._answered.append((number, answer))

    def _log_in(self, action: LogIn) -> None:
        assert action.connection not in self.logging_in
        self.logging_in[action.connection] = action

    def _send(self, action: Send) -> None:
        link = self._link(action)
        try:
            link.send(action.side, b"".join(action.pieces), action.timed)
        except OSError as error:
            self._lost.append((action.connection, action.side, error))
        self._keep(action.entries)

    def _send_eof(self, action: Eof) -> None:
        link = self._link(action)
        try:
            link.send_eof(action.side)
        except OSError as error:
            self._lost.append((action.connection, action.side, error))

    def _pause(self, action: Pause) -> None:
        self._link(action)
        if (action.connection, action.side) in self.paused:
            raise ValueError(f"it is paused already: {action}")
        self.paused.add((action.connection, action.side))

    def _resume(self, action: Resume) -> None:
        self._link(action)
        if (action.connection, action.side) not in self.paused:
            raise ValueError(f"it is not paused: {action}")
        self.paused.remove((action.connection, action.side))

    def _close(self, action: Close) -> None:
        link = self._link(action)
        del self.links[action.connection]
        self.paused -= {(action.connection, side) for side in Side}
        self.dialling.pop(action.connection, None)
        link.close(action.abrupt)

    def _listen(self, action: Listen) -> None:
        answer = self.listen(action)
        if isinstance(answer, str):
            self.not_listening(action.node_id, answer)
        elif answer is not None:
            self.listening(action.node_id, answer)

    def _unlisten(self, action: Unlisten) -> None:
        self.unlisten(action)

    def _refuse(self, action: Refuse) -> None:
        self.refuse(action)

    def _probe(self, action: Probe) -> None:
        answers = self.probe(action)
        if answers is not None:
            self.probed(action.node_id, action.addresses, answers)

    def _record(self, action: RecordEntries) -> None:
        self._keep(action.entries)

    def _keep(self, entries: Sequence[Entry]) -> None:
        if entries:
            self.recorded += entries
            self.watch(list(entries))

    def _log(self, action: Log) -> None:
        self.logs.append(action.text)
        self.levels.append(action.level)


PERFORMERS: dict[type, Callable[[Performer, Any], None]] = {
    Dial: Performer._dial,
    LogIn: Performer._log_in,
    Send: Performer._send,
    Eof: Performer._send_eof,
    Pause: Performer._pause,
    Resume: Performer._resume,
    Close: Performer._close,
    Listen: Performer._listen,
    Refuse: Performer._refuse,
    Probe: Performer._probe,
    Unlisten: Performer._unlisten,
    RecordEntries: Performer._record,
    Log: Performer._log,
}
"""How each action is performed."""
