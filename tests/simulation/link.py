"""One simulated connection: a client, its broker, and the `Wires` between them and the machine.

::

    client ── wire ──▶ reads ─▶ machine ─▶ outbox ──▶ broker
    client ◀── outbox ◀─ machine ◀─ reads ◀── wire ── broker

Each arrow is a place where bytes wait until the scheduler lets them go on, in pieces of any size. A
link says what could happen next (`moves`); the world picks. As in the real pump, a side is not read
while the outbox of the other side is blocked, and sending to a peer that is gone is noticed at
once.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import attrs

from kproxy.exchange.entries import Side
from kproxy.proxy.actions import Address
from tests.bed.memory import Times
from tests.simulation.scripts import BROKER_GARBAGE, CLIENT_GARBAGE, HANDSHAKE, Answer, Step

if TYPE_CHECKING:
    from tests.simulation.world import World

ENDINGS = (
    "client eof",
    "client eof",
    "client eof early",
    "client reset",
    "client cut",
    "client garbage",
    "broker eof",
    "broker reset",
    "broker cut",
    "broker garbage",
    "broker early",
    "silence",
)
"""How a connection ends: who does it, and how."""

_CHUNKS = (1, 5, 13, 100, 1500, 1500, 65_536, 65_536, 65_536, 1 << 22)


class Wire:
    """Bytes on their way from a peer to the machine."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._start = 0
        self.ended = False
        self.broken = False

    def __len__(self) -> int:
        return len(self._data) - self._start

    def put(self, data: bytes) -> None:
        """The peer sends."""
        self._data += data

    def take(self, size: int) -> bytes:
        """The machine reads at most so many bytes."""
        data = bytes(self._data[self._start : self._start + size])
        self._start += len(data)
        if self._start == len(self._data):
            self._data.clear()
            self._start = 0
        return data

    def lose(self, size: int) -> None:
        """A reset: all but the first bytes never arrive."""
        del self._data[self._start + size :]


@attrs.define(eq=False)
class Outbox:
    """Bytes on their way from the machine to a peer."""

    waiting: deque[tuple[bytes, Sequence[Times]]] = attrs.Factory(deque)
    eof_due: bool = False
    gone: bool = False
    """Whether the peer is gone, so that sending fails."""


class Link:
    """One connection."""

    def __init__(
        self, world: World, number: int, node_id: int | None, reached: Address, script: list[Step]
    ) -> None:
        rng = self.rng = world.rng
        self.world = world
        self.number = number
        self.node_id = node_id
        self.reached = reached
        self.addresses: list[Address] = []
        """What the machine asked to dial."""
        self.due: Address | None = None
        """Where its broker was, by what the machine had heard, when the client came."""
        self.heard = 0
        """How many of the broker's answers the machine has recorded."""
        self.script = script
        self.wires = {Side.CLIENT: Wire(), Side.BROKER: Wire()}
        self.outboxes = {Side.CLIENT: Outbox(), Side.BROKER: Outbox()}
        self.received = {Side.CLIENT: bytearray(), Side.BROKER: bytearray()}
        self.eofs: set[Side] = set()
        self.fed = {Side.CLIENT: 0, Side.BROKER: 0}
        """How many bytes the machine was given."""
        self.reads: dict[Side, list[tuple[int, int]]] = {Side.CLIENT: [], Side.BROKER: []}
        """Each time how many that were by then, and when."""
        self.ended: set[Side] = set()
        """The sides whose half-close the machine was told of."""
        self.abrupt = False
        """Whether the machine asked for a reset."""
        self.said = bytearray()
        """All that the client sent."""
        self.asked = 0
        """How many steps the client has sent."""
        self.answers: list[tuple[int, Answer]] = []
        """What the broker sent: which step it answers, and how."""
        self.answer_bytes = 0
        self.tail: dict[Side, bytes] = {Side.CLIENT: b"", Side.BROKER: b""}
        """What a peer sent last that is no whole frame."""
        self.dialling = True
        self.closed = False
        self.hows = {"violation"} if world.settings.nodes_max < 1000 else set()
        """The ways in which this connection may have ended by now."""
        self.last_ns = world.now
        self._chunk = {side: rng.choice(_CHUNKS) for side in Side}
        self._tight = {side: rng.random() < 0.3 for side in Side}
        self._depth = rng.choice((1, 2, 5, 100))
        self._ending = rng.choice(ENDINGS)
        self._end_after = rng.randint(0, len(script)) if rng.random() < 0.7 else len(script)
        self._quiet: set[Side] = set()
        """The sides that say no more."""
        self._arrived_at_broker = 0
        self._due: deque[int] = deque()
        """Steps that the broker has and has not answered."""
        self._seen = 0
        self._counted = 0
        """Responses that the client has whole, and where in what it received they end."""
        self._ends: list[int] = []

    # ---- what could happen next

    def moves(self) -> list[Callable[[], None]]:
        """What could happen next on this connection."""
        if self.closed:
            return []
        if self.dialling:
            return [self._dial]
        found: list[Callable[[], None]] = []
        if Side.CLIENT not in self._quiet and (move := self._client_move()):
            found.append(move)
        if Side.BROKER not in self._quiet and (move := self._broker_move()):
            found.append(move)
        for side in Side:
            wire, other = self.wires[side], self.outboxes[1 - side]
            paused = self._paused(side)
            if (len(wire) or wire.ended or wire.broken) and not other.waiting and not paused:
                found.append(self._read_client if side is Side.CLIENT else self._read_broker)
            if self.outboxes[side].waiting:
                found.append(self._flush_client if side is Side.CLIENT else self._flush_broker)
        return found

    def _paused(self, side: Side) -> bool:
        """Whether the machine wants nothing read from one side for now."""
        return (self.number, side) in self.world.performer.paused

    def _dial(self) -> None:
        self.dialling = False
        self.world.dialled(self)

    def _read_client(self) -> None:
        self._read(Side.CLIENT)

    def _read_broker(self) -> None:
        self._read(Side.BROKER)

    def _flush_client(self) -> None:
        self._flush(Side.CLIENT)

    def _flush_broker(self) -> None:
        self._flush(Side.BROKER)

    # ---- the client

    def _client_move(self) -> Callable[[], None] | None:
        """What the client does next, or None while it waits."""
        if Side.CLIENT in self.eofs:
            return self._end_client
        outstanding = self._expected() - self._seen
        ending = self._ending if self._ending.startswith("client") else ""
        if ending == "client eof":
            if self.asked == len(self.script):
                return None if outstanding > 0 else self._end_client
        elif ending and self.asked >= self._end_after:
            return self._end_client
        if self.asked == len(self.script):
            return None
        waits = self.asked and self.script[self.asked - 1].wait and outstanding > 0
        return None if waits or outstanding >= self._depth else self._ask

    def _expected(self) -> int:
        return sum(1 for step in self.script[: self.asked] if step.answer)

    def _ask(self) -> None:
        step = self.script[self.asked]
        self.asked += 1
        self._say(step.request)
        self._ends.append(len(self.said))

    def _say(self, data: bytes) -> None:
        self.said += data
        self.wires[Side.CLIENT].put(data)

    def _end_client(self) -> None:
        rng, wire = self.rng, self.wires[Side.CLIENT]
        self._quiet.add(Side.CLIENT)
        ending = self._ending
        if ending == "client garbage":
            self.tail[Side.CLIENT] = rng.choice(CLIENT_GARBAGE)
            if not self._raw():
                self.hows.add("violation!")
            self.hows.add("violation")
            self._say(self.tail[Side.CLIENT])
        elif ending == "client cut" and self.asked < len(self.script) and not self._waits():
            request = self.script[self.asked].request
            self.tail[Side.CLIENT] = request[: rng.randint(1, min(len(request) - 1, 1_300_000))]
            self._say(self.tail[Side.CLIENT])
        if ending == "client reset" or (ending == "client cut" and rng.random() < 0.5):
            self._break(Side.CLIENT)
        else:
            wire.ended = True
            self.hows.add("eof")

    def _raw(self) -> bool:
        """Whether the machine takes what comes next for a token, or may do so."""
        if not self.asked:
            return True
        before = self.script[self.asked - 1]
        return before.token or before.wait or before.api_key == HANDSHAKE

    def _waits(self) -> bool:
        return self._expected() > self._seen and bool(self.script[self.asked - 1].wait)

    # ---- the broker

    def _broker_move(self) -> Callable[[], None] | None:
        ending = self._ending if self._ending.startswith("broker") else ""
        if ending:
            done = self.asked == len(self.script) and not self._due and self._arrived()
            if done or len(self.answers) >= self._end_after:
                return self._end_broker
        if self._due:
            return self._answer
        if Side.BROKER in self.eofs:
            return self._end_broker
        return None

    def _arrived(self) -> bool:
        return len(self.received[Side.BROKER]) == len(self.said)

    def _answer(self) -> None:
        index = self._due.popleft()
        answer = self.script[index].answer()
        self.answers.append((index, answer))
        self._reply(answer.data)

    def _reply(self, data: bytes) -> None:
        self.answer_bytes += len(data)
        self.wires[Side.BROKER].put(data)

    def _end_broker(self) -> None:
        rng, ending = self.rng, self._ending
        self._quiet.add(Side.BROKER)
        if ending == "broker garbage":
            self._broker_garbage()
        elif ending == "broker cut" and self._due:
            index = self._due.popleft()
            answer = self.script[index].answer()
            answer.garbage = True
            self.answers.append((index, answer))
            self.tail[Side.BROKER] = answer.data[: rng.randint(1, len(answer.data) - 1)]
            self._reply(self.tail[Side.BROKER])
        elif ending == "broker early":
            # An answer to what was not asked.
            self.hows.add("violation")
            self._reply_garbage(b"\0\0\0\6\x7a\x7b\x7c\x7d\0\0")
        if ending == "broker reset" or (ending == "broker cut" and rng.random() < 0.5):
            self._break(Side.BROKER)
        else:
            self.wires[Side.BROKER].ended = True
            self.hows.add("eof")

    def _broker_garbage(self) -> None:
        rng = self.rng
        plain = all(step.known and not step.token for step in self.script)
        self.hows.add("violation")
        if self._due and rng.random() < 0.3:
            step = self.script[self._due[0]]
            # More than is held back for addresses, or another one's answer.
            huge = step.api_key in (3, 10, 60) and step.known
            size = (100 << 20) + 1 if huge else 10
            wrong = step.correlation_id if huge else step.correlation_id ^ 0x55AA
            data = size.to_bytes(4) + wrong.to_bytes(4, signed=True) + bytes(10)
            plain = plain and (huge or all(s.correlation_id != wrong for s in self.script))
        else:
            data = rng.choice(BROKER_GARBAGE)
        if plain:
            self.hows.add("violation!")
        self._reply_garbage(data)

    def _reply_garbage(self, data: bytes) -> None:
        self.tail[Side.BROKER] = data
        self._reply(data)

    # ---- the wires

    def _break(self, side: Side) -> None:
        wire = self.wires[side]
        wire.lose(self.rng.randint(0, len(wire)))
        wire.broken = True
        self.outboxes[side].gone = True
        self.hows.add("reset")

    def _read(self, side: Side) -> None:
        """Give the machine a few chunks of what has arrived from one side."""
        world, wire, other = self.world, self.wires[side], self.outboxes[1 - side]
        # A byte at a time is for small frames: the larger, the more at once.
        chunk = max(self._chunk[side], len(wire) // 60)
        for _ in range(self.rng.randint(1, 8)):
            if self.closed or other.waiting or self._paused(side):
                return
            if not len(wire):
                if wire.broken:
                    wire.broken = wire.ended = False
                    world.broken(self, side)
                elif wire.ended:
                    wire.ended = False
                    self.ended.add(side)
                    world.ended(self, side)
                return
            how = self.rng.random()
            size = chunk if how < 0.5 else self.rng.randint(1, chunk)
            if how > 0.97:
                size = self.rng.choice((1, 3, 4, 7, 8, 9, 11, 12, 13))
            data = wire.take(size)
            self.fed[side] += len(data)
            self.reads[side].append((self.fed[side], world.now))
            world.fed(self, side, data)

    def send(self, side: Side, data: bytes, timed: Sequence[Times]) -> None:
        """The machine sends; raises OSError if the peer is gone."""
        outbox = self._outbox(side)
        assert side not in self.eofs and not outbox.eof_due, "sent behind a half-close"
        if outbox.waiting:
            outbox.waiting.append((data, timed))
            return
        accepted = len(data)
        if self._tight[side] and self.rng.random() < 0.5:
            accepted = self.rng.randint(0, len(data))
        self._deliver(side, data[:accepted])
        if accepted == len(data):
            self._sent(timed)
        else:
            outbox.waiting.append((data[accepted:], timed))

    def _outbox(self, side: Side) -> Outbox:
        outbox = self.outboxes[side]
        if outbox.gone:
            self.world.disturbed.add(self.number)
            raise ConnectionResetError(errno.ECONNRESET, "reset by the peer")
        return outbox

    def _flush(self, side: Side) -> None:
        outbox = self.outboxes[side]
        if outbox.gone:
            outbox.waiting.clear()
            self.world.broken(self, side)
            return
        data, timed = outbox.waiting[0]
        accepted = self.rng.choice((len(data), self.rng.randint(1, len(data))))
        self._deliver(side, data[:accepted])
        if accepted < len(data):
            outbox.waiting[0] = (data[accepted:], timed)
            return
        outbox.waiting.popleft()
        self._sent(timed)
        if outbox.eof_due and not outbox.waiting:
            outbox.eof_due = False
            self._eof(side)

    def send_eof(self, side: Side) -> None:
        """The machine half-closes one side; raises OSError if the peer is gone."""
        outbox = self._outbox(side)
        assert side not in self.eofs and not outbox.eof_due, "half-closed twice"
        if outbox.waiting:
            outbox.eof_due = True
        else:
            self._eof(side)

    def close(self, abrupt: bool) -> None:
        """The machine closes both sides."""
        self.closed = True
        self.abrupt = abrupt
        for side in Side:
            outbox = self.outboxes[side]
            if not abrupt and not outbox.gone:
                for data, timed in outbox.waiting:
                    self._deliver(side, data)
                    self._sent(timed)
            outbox.waiting.clear()
        self.world.closed(self)

    def _sent(self, timed: Sequence[Times]) -> None:
        now = self.world.tick()
        for times in timed:
            times.sent_ns = now

    def _eof(self, side: Side) -> None:
        self.eofs.add(side)
        if side is Side.BROKER:
            assert self.fed[Side.BROKER] == self.answer_bytes, "half-closed before the last answer"
            assert not self._due, "half-closed before all was answered"

    def _deliver(self, side: Side, data: bytes) -> None:
        received = self.received[side]
        start = len(received)
        received += data
        if side is Side.BROKER and self.world.rules is not None:
            self._take_requests()
        elif side is Side.BROKER:
            assert self.said.startswith(data, start), "the broker got what the client did not send"
            while self._arrived_at_broker < len(self._ends) and self._ends[
                self._arrived_at_broker
            ] <= len(received):
                if self.script[self._arrived_at_broker].answer:
                    self._due.append(self._arrived_at_broker)
                self._arrived_at_broker += 1
        else:
            while len(received) >= self._counted + 4:
                size = int.from_bytes(received[self._counted : self._counted + 4], signed=True)
                if size < 0 or len(received) < self._counted + 4 + size:
                    break
                self._counted += 4 + size
                self._seen += 1

    def _take_requests(self) -> None:
        """The broker takes what has arrived whole, whatever became of it on its way."""
        received, at = self.received[Side.BROKER], self._arrived_at_broker
        steps = {step.correlation_id: index for index, step in enumerate(self.script)}
        while len(received) >= at + 12:
            size = int.from_bytes(received[at : at + 4], signed=True)
            if size < 8 or len(received) < at + 4 + size:
                break
            index = steps.get(int.from_bytes(received[at + 8 : at + 12], signed=True))
            if index is not None and self.script[index].answer:
                self._due.append(index)
            at += 4 + size
        self._arrived_at_broker = at
