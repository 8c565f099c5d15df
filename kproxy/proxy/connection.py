"""One proxied connection: a request stream and a response stream that share what is pending.

::

    client ─▶ RequestStream ───▶ Delays ──▶ broker
                   │ pending (FIFO)
    client ◀── Delays ◀─── ResponseStream ◀── broker

Invariants:

* Responses pair with requests in order; the correlation id must agree, or the connection ends.
* A request that is not answered (Produce with acks=0) never enters `pending`.
* Bytes of a direction leave in the order in which they came, also those that a rule delays; nothing
  is sent after a violation.
* A client's half-close is passed on when what it requested is answered, to the last byte; a
  broker's at once, but behind what waits for a listener or for its time.
* After a blackhole nothing passes in either direction, and nothing else happens until a side ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import attrs

from kproxy.exchange import notes
from kproxy.exchange.endings import SideEnd
from kproxy.exchange.entries import ChunkTimes, Entry, Note, PendingRequest, Side
from kproxy.proxy import diagnosis
from kproxy.proxy.actions import Action, Address, Close, Eof, Log, Pause, Record, Resume, Send
from kproxy.proxy.budget import Budget, Share
from kproxy.proxy.delays import Delays
from kproxy.proxy.framer import Violation
from kproxy.proxy.gate import AddressGate
from kproxy.proxy.interests import Interests
from kproxy.proxy.output import Departure, Output
from kproxy.proxy.requests import Origin, RequestStream
from kproxy.proxy.responses import ResponseStream
from kproxy.proxy.settings import Settings
from kproxy.proxy.tokens import Tokens
from kproxy.proxy.topics import Topics
from kproxy.proxy.verdicts import Decider, Ending

_CLIENT = Side.CLIENT
_OTHER = {Side.CLIENT: Side.BROKER, Side.BROKER: Side.CLIENT}
_HALF_CLOSED_NS = 10_000_000_000
"""A client that has sent FIN keeps its slot so long without a byte from the broker."""
_DELAYED_BYTES_MAX = 1 << 20
"""With so much delayed on its way to a side, the other side is not read."""
_HOW = {Ending.DISCONNECT: "fault", Ending.RESET: "fault reset"}
_FAULT = "a fault rule ended it"
_GENTLE = ("eof", "idle", "stopped", "refused", "down", "violation", "fault")
"""The ways to end that close both sides after what was sent before; others reset them."""


@attrs.frozen
class OpenConnection:
    """A connection as it is now, for people."""

    number: int
    client_address: str
    client_id: str | None
    node_id: int | None
    broker_address: str | None
    opened_ns: int
    last_ns: int
    """When something last arrived, or left late."""
    pending_requests: int


class Connection:
    """The state of one connection, and what its events lead to."""

    def __init__(
        self,
        number: int,
        about: dict[str, Any],
        settings: Settings,
        numbers: Iterator[int],
        gate: AddressGate,
        interests: Interests,
        topics: Topics,
        brokers: Mapping[int, Address],
        rules: Decider | None,
        budget: Budget,
        is_news: Callable[[str], bool],
        now: int,
    ) -> None:
        self.number = number
        self.about = about
        """What the recording says of it: node id, client address, listener, broker address."""
        self.pending: deque[PendingRequest] = deque()
        self._gate = gate
        tokens = Tokens()
        self._place = diagnosis.place(about["node_id"])
        """Where it stands which address the broker has."""
        self._broker_bytes = 0
        self._responses = ResponseStream(
            number, self._place, self.pending, gate, tokens, interests, topics, Share(budget)
        )
        origin = Origin(number, about["node_id"], about["client_address"], topics.names, brokers)
        self._requests = RequestStream(
            origin,
            settings,
            numbers,
            self.pending,
            tokens,
            interests,
            rules,
            Share(budget),
        )
        self._rules = rules
        self._is_news = is_news
        """Whether the operator has not been told this yet, by any connection."""
        self._pending_max = settings.pending_requests_max
        self._delays = {side: Delays(Share(budget)) for side in Side}
        """What is on its way to a side."""
        self.delayed = False
        """Whether something waits for its time."""
        self._paused: set[Side] = set()
        self._opened_ns = now
        self.last_ns = now
        """When something last arrived."""
        self._ended: list[Side] = []
        """The sides that have half-closed, in that order."""
        self._eof_sent: set[Side] = set()
        """Those of which the other side was told."""
        self._ends: list[SideEnd] = []
        """How each side ended, the first one first."""
        self._last_sent: ChunkTimes | None = None
        """Of a connection on which a side has ended: what was sent last."""
        self._noted = False
        self._blackholed = False
        self.eventful = False
        """Whether the last bytes may have led to more than passing: it may wait for listeners or
        for a time, or be over."""
        self._ending_due: tuple[int, Ending] | None = None
        """When, and how, a connection ends in which nothing passes any more."""
        self.over = False

    @property
    def busy(self) -> bool:
        """Whether the client waits for a response, or for the rest of one."""
        waits = bool(self.pending) or self._responses.busy or bool(self._delays[Side.CLIENT])
        return waits and not self._blackholed

    @property
    def state(self) -> OpenConnection:
        """What it is, and what it waits for."""
        return OpenConnection(
            self.number,
            self.about["client_address"],
            self._requests.client_id,
            self.about["node_id"],
            self.about["broker_address"],
            self._opened_ns,
            self.last_ns,
            len(self.pending),
        )

    @property
    def holds_back(self) -> bool:
        """Whether something waits here for its time: then silence has a reason."""
        return self.delayed or self._ending_due is not None

    @property
    def parked(self) -> bool:
        """Whether a response waits for listeners."""
        return self._gate.parked

    @property
    def awaited(self) -> Mapping[int, Address]:
        """The brokers whose listeners must be open before anything more may leave."""
        return self._gate.awaited

    @property
    def next_due_ns(self) -> int | None:
        """When `wake` wants to be called: something that is delayed leaves, or a broker has been
        silent for too long."""
        due = [delays.next_due_ns for delays in self._delays.values()]
        if self._ending_due is not None:
            due.append(self._ending_due[0])
        if self._requests.turn_is_over:
            due.append(self.last_ns)  # at once, but others first
        if not self.delayed and self._ended == [Side.CLIENT]:
            due.append(self.last_ns + _HALF_CLOSED_NS)
        return min((each for each in due if each is not None), default=None)

    def use_rules(self, rules: Decider | None) -> None:
        """Have these rules decide from the next request on."""
        self._rules = rules
        self._requests.rules = None if self._blackholed else rules

    # Events

    def dialled(self, broker_address: str, now: int) -> list[Action]:
        """The broker's side is connected."""
        self.about["broker_address"] = broker_address
        return [Record([self._opened()])]

    def not_dialled(self, reason: str, now: int) -> list[Action]:
        """No broker address answered."""
        return self._end(Side.BROKER, "down", reason, now)

    def receive(self, side: Side, data: bytes, now: int) -> list[Action]:
        """Bytes arrived from one side."""
        self.last_ns = now
        if side is _CLIENT:
            return self._run(side, self._requests.feed, data, now)
        self._broker_bytes += len(data)
        return self._run(side, self._responses.feed, data, now)

    def resume(self, now: int) -> list[Action]:
        """The listeners that a parked response waited for are open."""

        def go_on(_: bytes, now: int, out: Output) -> None:
            self._responses.resume(now, out)
            if Side.BROKER in self._ended and not self._responses.blocked:
                self._responses.finish(now, out)

        return self._run(Side.BROKER, go_on, b"", now)

    def closed(self, side: Side, how: str, reason: str, now: int) -> list[Action]:
        """One side half-closed ("eof") or broke (anything else)."""
        if how != "eof" or self._blackholed:
            hint = self._hint() if side is Side.BROKER and how == "reset" else None
            return self._end(side, how, hint or reason, now)
        hint = self._hint() if side is Side.BROKER else None
        self._ended.append(side)
        self._ends.append(SideEnd(side.name.lower(), "eof", now))
        self.last_ns = now

        def finish(_: bytes, now: int, out: Output) -> None:
            if side is Side.CLIENT:
                if not self._requests.stopped:
                    self._requests.finish(now, out)
            elif not self._responses.blocked:
                self._responses.finish(now, out)

        actions = self._run(side, finish, b"", now)
        return actions if hint is None else [Log(self._line(hint)), *actions]

    def wake(self, now: int) -> list[Action]:
        """The time of something delayed has come."""
        actions: list[Action] = []
        if self._ending_due is not None and self._ending_due[0] <= now:
            return self._end(None, _HOW[self._ending_due[1]], _FAULT, now)
        silent = not self.delayed and now - self.last_ns >= _HALF_CLOSED_NS
        if silent and self._last_sent is not None and not self._last_sent.sent_ns:
            self.last_ns = now  # the client does not take what there is: the broker is not silent
        elif silent and self._ended == [Side.CLIENT]:
            seconds = _HALF_CLOSED_NS // 1_000_000_000
            why = f"the client has ended, and the broker sent nothing for {seconds} s"
            return self._end(None, "idle", why, now)
        self._requests.begin_turn()
        for side in self._delays:
            self._leave(side, actions, now)
        if not self.over:
            self._settle(actions, now)
        return actions

    def close(self, how: str, reason: str, now: int) -> list[Action]:
        """End it from our side: idle for too long, or the proxy stops."""
        return self._end(None, how, reason, now)

    # What events lead to

    def _run(
        self, side: Side, feed: Callable[[bytes, int, Output], None], data: bytes, now: int
    ) -> list[Action]:
        """Have one direction take an event; perform what it leads to, in both."""
        out = Output()
        actions: list[Action] = []
        try:
            feed(data, now, out)
        except Violation as error:
            self.eventful = True
            self._send(side, out, 0, actions, now)
            return actions if self.over else actions + self._end(side, "violation", str(error), now)
        self._send(side, out, len(data), actions, now)
        pending = self.pending
        self.eventful = eventful = (
            self.delayed
            or self._gate.parked
            or bool(self._ended)
            or bool(self._paused)
            or self._blackholed
            or self.over
            or (self._rules is not None and self._requests.turn_is_over)
            or (bool(pending) and (len(pending) >= self._pending_max or pending[0][-1] is not None))
        )
        if eventful and not self.over:
            self._settle(actions, now)
        return actions

    def _settle(self, actions: list[Action], now: int) -> None:
        """After any event: our own responses that are due, requests that waited for room, who is
        read from, half-closes."""
        pending = self.pending
        while True:
            if pending and pending[0][-1] is not None and not self._responses.busy:
                out = Output()
                self._responses.respond(now, out)
                self._send(Side.BROKER, out, 0, actions, now)
            if pending and Side.BROKER in self._ended and not self._responses.busy:
                actions.append(Record(self._give_up(now)))
            room = len(pending) <= self._pending_max // 2 and not self._requests.turn_is_over
            if self.over or not self._requests.stopped or not room:
                break
            self._feed_rest(actions, now)
        if self.over:
            return
        full = len(pending) >= self._pending_max or self.delayed or self._gate.parked
        full = full or self._requests.turn_is_over
        if self._paused or full:
            self._pause(actions)
        if self._ended and not self._responses.blocked and not self._blackholed:
            self._pass_half_closes(actions, now)

    def _feed_rest(self, actions: list[Action], now: int) -> None:
        """Go on with requests that waited because as many were pending as may be."""
        out = Output()
        try:
            self._requests.feed(b"", now, out)
            if Side.CLIENT in self._ended and not self._requests.stopped:
                self._requests.finish(now, out)
        except Violation as error:
            self._send(Side.CLIENT, out, 0, actions, now)
            if not self.over:
                actions += self._end(Side.CLIENT, "violation", str(error), now)
            return
        self._send(Side.CLIENT, out, 0, actions, now)

    def _pause(self, actions: list[Action]) -> None:
        """Read from a side, or stop reading, as much is unanswered or delayed, or little."""
        for side in (Side.CLIENT, Side.BROKER):
            limit_bytes = _DELAYED_BYTES_MAX
            pending_max = self._pending_max
            if side in self._paused:  # not to be read from again before half of it is gone
                limit_bytes, pending_max = limit_bytes // 2, pending_max // 2 + 1
            delays = self._delays[_OTHER[side]]
            if delays.pressed:
                limit_bytes //= 16
            full = delays.held_bytes >= limit_bytes
            if side is Side.BROKER and self._gate.parked:
                full = True  # what is behind a parked response can wait in the kernel
            if side is Side.CLIENT and not self._ended:
                full = full or len(self.pending) >= pending_max or self._requests.turn_is_over
            if full and side not in self._paused:
                self._paused.add(side)
                actions.append(Pause(self.number, side))
            elif not full and side in self._paused:
                self._paused.discard(side)
                actions.append(Resume(self.number, side))

    def _pass_half_closes(self, actions: list[Action], now: int) -> None:
        if len(self._ended) == 2:
            if not self.delayed:
                actions += self._end(self._ended[-1], "eof", "", now)
            return
        (side,) = self._ended
        if side in self._eof_sent or self._delays[_OTHER[side]]:
            return
        if side is Side.BROKER or not self.busy:
            self._eof_sent.add(side)
            actions.append(Eof(self.number, _OTHER[side]))

    def _send(
        self, side: Side, out: Output, data_bytes: int, actions: list[Action], now: int
    ) -> None:
        """Perform what came from one side: send it on or delay it, and record it."""
        departures = out.finish()
        to = _OTHER[side]
        if departures is None and not self.delayed:
            if out.pieces and not self._blackholed:
                if self._ended:
                    self._last_sent = ChunkTimes(now)
                    out.timed.append(self._last_sent)
                actions.append(Send(self.number, to, out.pieces, out.timed))
        elif not self._blackholed:
            delays = self._delays[to]
            delays.put(departures or [Departure(0, out.pieces, out.timed)])
            self.delayed = True
        if out.entries:
            actions.append(Record(out.entries, data_bytes))
        if out.reports:
            actions += [Log(text) for text in out.reports if self._is_news(text)]
        if self.delayed:
            self._leave(to, actions, now)

    def _leave(self, to: Side, actions: list[Action], now: int) -> None:
        """Let leave what is due, up to what ends the connection."""
        for departure in self._delays[to].take(now):
            if not self.over and not self._blackholed:
                self._depart(to, departure, actions, now)
        self.delayed = any(self._delays.values())

    def _depart(self, to: Side, departure: Departure, actions: list[Action], now: int) -> None:
        """Bytes leave, and maybe the connection ends behind them."""
        if departure.pieces:
            actions.append(Send(self.number, to, departure.pieces, departure.timed))
            self.last_ns = now
        ending = departure.ending
        if ending is Ending.BLACKHOLE or departure.ending_delay_ns:
            self._blackholed = True
            self._requests.rules = None
            if (parked := self._gate.take()) is not None:
                out = Output()
                self._responses.give_up(parked, out)
                actions.append(Record(out.entries))
            for delays in self._delays.values():
                delays.clear()
            if ending is not None and ending is not Ending.BLACKHOLE:
                self._ending_due = now + departure.ending_delay_ns, ending
        elif ending is not None:
            actions += self._end(None, _HOW[ending], _FAULT, now)

    def _end(self, side: Side | None, how: str, reason: str, now: int) -> list[Action]:
        self.over = True
        out = Output()
        self._requests.rules = None  # what cannot leave any more is no rule's business
        self._requests.finish(now, out)
        self._responses.finish(now, out)
        for delays in self._delays.values():
            delays.clear()
        closing = self._give_up(now)
        if self._rules is not None:
            self._rules.closed(self.number)
        name = None if side is None else side.name.lower()
        if how != "eof":
            who = "proxy" if side is None or how == "violation" else side.name.lower()
            self._ends.append(SideEnd(who, how, now))
        note = notes.closed(self.number, now, self.about, how, reason, name, self._ends)
        opened = [] if self._noted else [self._opened()]
        actions: list[Action] = [Record([*opened, *out.entries, *closing, note])]
        if reason and how != "down":  # which is said once for all connections
            actions.append(Log(self._line(reason)))
        return [*actions, Close(self.number, how not in _GENTLE)]

    def _give_up(self, now: int) -> list[Entry]:
        """Nothing answers any more: close the exchanges of what is pending."""
        closing: list[Entry] = [self._responses.unanswered(each, now) for each in self.pending]
        self.pending.clear()
        return closing

    def _hint(self) -> str | None:
        """What it may mean that the broker ends the connection now."""
        if not self.pending:
            return None
        has_responded = self._broker_bytes > self._responses.versions_bytes
        return diagnosis.hung_up(self._place, has_responded, self.pending[0][1])

    def _line(self, reason: str) -> str:
        """What the log says of its end."""
        node_id = self.about["node_id"]
        node = "bootstrap" if node_id is None else f"node {node_id}"
        between = f"{self.about['client_address']} → {node}"
        return f"connection {self.number} ({between}) ended: {reason}"

    def _opened(self) -> Note:
        self._noted = True
        return notes.opened(self.number, self._opened_ns, self.about)
