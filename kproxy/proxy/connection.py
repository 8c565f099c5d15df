"""One proxied connection: a request stream and a response stream that share what is pending.

::

    client ═▶ RequestStream ───▶ Delays ═▶ broker
                   │ PendingRequests (FIFO)
    client ◀═ Delays ◀─── ResponseStream ◀═ broker

Invariants:

* A connection is in one phase (`phase` has them all, and the theory). Every event leads through
  this file: a stream takes its bytes, `_perform` lets leave what comes of them, `_settle` draws the
  consequences for both directions.
* Responses pair with requests in order; the correlation id must agree, or the connection ends.
* Bytes of a direction leave in the order in which they came, also those that a rule delays; nothing
  is sent after a violation.
* A client's half-close is passed on when what it requested is answered, to the last byte; a
  broker's at once, but behind what waits for a listener or for its time.

Where bytes wait, with the owner of each place; frames that nobody wants pass without waiting::

    peer ═▶ kernel ─▶ Framer ──────────▶ AddressGate ──▶ Delays ───────▶ End ──────────▶ kernel ═▶
                      a header's start,  a response      departures      what a slow
                      a frame that a     that names a    before their    peer does not
                      rule wants whole,  node without    time            take (net.link)
                      bytes behind a     a listener
                      blocked stream
                      └── refused beyond `budget` ────┘  └ its side is paused beyond 1 MiB

    ResponseStream holds the end of a large response, from its addresses on (`rewrite.Tail`).

Who stops reading, and why:

* the machine, by Pause (`_is_full`): requests are pending or wait for their turn under rules, a
  response is parked, or much is delayed;
* the link: the other end does not take what there is, or the broker is dialled (`net.link`);
* the pump: the recorder has no room (`net.pump`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import attrs

from kproxy.exchange import notes
from kproxy.exchange.endings import SideEnd
from kproxy.exchange.entries import Buffer, ChunkTimes, Entry, Frame, Note, Side
from kproxy.proxy import diagnosis
from kproxy.proxy.actions import Action, Address, Close, Eof, Log, Pause, Record, Resume, Send
from kproxy.proxy.budget import Budget, Share
from kproxy.proxy.delays import Delays
from kproxy.proxy.framer import Violation
from kproxy.proxy.gate import AddressGate
from kproxy.proxy.interests import Interests
from kproxy.proxy.output import Departure, Output
from kproxy.proxy.pending import PendingRequests
from kproxy.proxy.phase import ENDED_SIDES, EOF, SILENT, WAITS_FOR_BROKER, Event, Phase, after
from kproxy.proxy.requests import Origin, RequestStream
from kproxy.proxy.responses import ResponseStream
from kproxy.proxy.settings import Settings
from kproxy.proxy.tokens import Tokens
from kproxy.proxy.topics import Topics
from kproxy.proxy.verdicts import Ending

_CLIENT, _BROKER = Side.CLIENT, Side.BROKER
_OPEN = Phase.OPEN
_ENDED_BY_EOF = SILENT | {Phase.DIALLING}
_OTHER = (_BROKER, _CLIENT)
"""By Side."""
_HALF_CLOSED_NS = 10_000_000_000
"""A client that has sent FIN keeps its slot for this long without a byte from the broker."""
_DELAYED_BYTES_MAX = 1 << 20
"""With this much delayed on its way to a side, the other side is not read."""
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


@attrs.frozen
class Shared:
    """What all connections of a cluster have in common."""

    settings: Settings
    numbers: Iterator[int]
    """Of exchanges."""
    interests: Interests
    topics: Topics
    brokers: Mapping[int, Address]
    budget: Budget
    is_new: Callable[[str], bool]
    """Tells, once for each text, that no connection has logged it yet."""


class Connection:
    """The state of one connection, and what its events lead to."""

    def __init__(
        self, number: int, about: dict[str, Any], shared: Shared, gate: AddressGate, now: int
    ) -> None:
        self.number = number
        self.about = about
        """What the recording says of it: node id, client address, listener, broker address."""
        self._shared = shared
        self._gate = gate
        self._phase = Phase.DIALLING
        settings, budget, tokens = shared.settings, shared.budget, Tokens()
        self._address_source = diagnosis.address_source(about["node_id"])
        """The setting that names the broker."""
        self._pending = PendingRequests(settings.pending_requests_max)
        topics, node_id = shared.topics, about["node_id"]
        self._requests = RequestStream(
            Origin(number, node_id, about["client_address"], topics.names, shared.brokers),
            settings.request_bytes_max,
            shared.numbers,
            self._pending,
            tokens,
            shared.interests,
            Share(budget),
        )
        self._responses = ResponseStream(
            number,
            self._address_source,
            self._pending,
            gate,
            tokens,
            shared.interests,
            topics,
            Share(budget),
        )
        self._delays = (Delays(Share(budget)), Delays(Share(budget)))
        """By the side to which bytes are on their way."""
        self._paused: set[Side] = set()
        self._broker_bytes = 0
        self._opened_ns = now
        self.last_ns = now
        """When something last arrived, or left late."""
        self._ends: list[SideEnd] = []
        """How each side ended, the first one first: for the recording."""
        self._last_to_client: Frame | ChunkTimes | None = None
        """Tells when the client took what was sent to it last."""
        self._looked_ns = now
        """When it was last looked whether the client takes it."""
        self._close_due: tuple[int, Ending] | None = None
        """When, and how, a silent connection is closed."""

    # What it is

    @property
    def over(self) -> bool:
        """It has ended, and its Close is among the actions."""
        return self._phase is Phase.OVER

    @property
    def busy(self) -> bool:
        """The client waits for a response, or for the rest of one."""
        if self._phase in SILENT:
            return False
        return bool(self._pending) or self._responses.busy or bool(self._delays[_CLIENT])

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
            len(self._pending),
        )

    @property
    def _delayed(self) -> bool:
        """Bytes wait here for their time."""
        return bool(self._delays[_CLIENT].waiting or self._delays[_BROKER].waiting)

    @property
    def holds_back(self) -> bool:
        """Bytes, or its end, wait here for their time: silence has a reason."""
        return self._delayed or self._close_due is not None

    @property
    def parked(self) -> bool:
        """A response waits for listeners."""
        return self._gate.parked

    @property
    def awaited(self) -> Mapping[int, Address]:
        """The brokers whose listeners must be open before anything more may leave."""
        return self._gate.awaited

    @property
    def wants_turn(self) -> bool:
        """Rules have more requests to decide on; others have their turn before."""
        return self._phase is not Phase.OVER and self._requests.wants_turn

    @property
    def next_due_ns(self) -> int | None:
        """When `wake` wants to be called: something that is delayed leaves, or a broker has been
        silent for too long."""
        due = [delays.next_due_ns for delays in self._delays]
        if self._close_due is not None:
            due.append(self._close_due[0])
        if self._depends_on_broker:
            due.append(max(self.last_ns, self._looked_ns) + _HALF_CLOSED_NS)
        return min((each for each in due if each is not None), default=None)

    @property
    def _depends_on_broker(self) -> bool:
        """The client has ended, and only the broker keeps the connection alive."""
        return self._phase in WAITS_FOR_BROKER and not self.holds_back

    # Events

    def dialled(self, broker_address: str, now: int) -> list[Action]:
        """The broker's side is connected."""
        self._phase = after(self._phase, Event.DIALLED)
        self.about["broker_address"] = broker_address
        return [Record([self._opened()])]

    def not_dialled(self, reason: str, now: int) -> list[Action]:
        """No broker address answered."""
        return self._end(_BROKER, "down", reason, now)

    def receive(self, side: Side, data: bytes, now: int) -> tuple[list[Action], bool]:
        """Take bytes that arrived from one side.

        Returns the actions, and whether they may be over more than these bytes: then the connection
        may be over, or have other things to wait for than before.
        """
        self.last_ns = now
        out = Output()
        try:
            if side is _CLIENT:
                self._requests.feed(data, now, out)
            else:
                self._broker_bytes += len(data)
                self._responses.feed(data, now, out)
        except Violation as error:
            return self._violated(side, out, error, now), True
        actions: list[Action] = []
        self._perform(side, out, len(data), actions, now)
        if self._is_plain():
            return actions, False
        self._settle(actions, now)
        return actions, True

    def resume(self, now: int) -> list[Action]:
        """Go on: the listeners that a parked response waited for are open."""
        return self._take(_BROKER, self._responses.resume, now)

    def closed(self, side: Side, how: str, reason: str, now: int) -> list[Action]:
        """One side half-closed ("eof") or broke (anything else)."""
        hint = self._hint() if side is _BROKER and how in ("eof", "reset") else None
        if how == "eof":
            self._ends.append(SideEnd(side.name.lower(), "eof", now))
        if how != "eof" or self._phase in _ENDED_BY_EOF:
            return self._end(side, how, hint or reason, now)
        self._phase = after(self._phase, EOF[side])
        self.last_ns = now
        stream = self._requests if side is _CLIENT else self._responses
        actions = self._take(side, stream.half_close, now)
        return actions if hint is None else [Log(self._line(hint)), *actions]

    def wake(self, now: int) -> list[Action]:
        """Do what is due, and go on with requests that waited for another turn."""
        if self._close_due is not None and self._close_due[0] <= now:
            return self._end(None, _HOW[self._close_due[1]], _FAULT, now)
        waits_ns = now - max(self.last_ns, self._looked_ns)
        if self._depends_on_broker and waits_ns >= _HALF_CLOSED_NS:
            if self._last_to_client is None or self._last_to_client.sent_ns:
                seconds = _HALF_CLOSED_NS // 1_000_000_000
                why = f"the client has ended, and the broker sent nothing for {seconds} s"
                return self._end(None, "idle", why, now)
            self._looked_ns = now  # the client does not take what there is: it is idle, if anybody
        self._requests.begin_turn()
        actions: list[Action] = []
        for side in Side:
            self._leave(side, actions, now)
        self._settle(actions, now)
        return actions

    def close(self, how: str, reason: str, now: int) -> list[Action]:
        """End it from our side: idle for too long, or the proxy stops."""
        return self._end(None, how, reason, now)

    # What events lead to

    def _take(self, side: Side, event: Callable[[int, Output], None], now: int) -> list[Action]:
        """Have the stream of one side take an event, and do all that it leads to."""
        out = Output()
        try:
            event(now, out)
        except Violation as error:
            return self._violated(side, out, error, now)
        actions: list[Action] = []
        self._perform(side, out, 0, actions, now)
        self._settle(actions, now)
        return actions

    def _violated(self, side: Side, out: Output, error: Violation, now: int) -> list[Action]:
        """Let leave what came before bytes that are not Kafka's, and end."""
        actions: list[Action] = []
        self._perform(side, out, 0, actions, now)
        if not self.over:
            actions += self._end(side, "violation", str(error), now)
        return actions

    def _is_plain(self) -> bool:
        """Tell if nothing follows from bytes that passed: the connection is as it was before."""
        rows = self._pending.rows
        return (
            self._phase is _OPEN
            and not self._paused
            and not self._delays[_CLIENT].waiting
            and not self._delays[_BROKER].waiting
            and not self._gate.parked
            and not self._requests.stopped
            and (not rows or (rows[0][-1] is None and len(rows) < self._pending.requests_max))
        )

    def _settle(self, actions: list[Action], now: int) -> None:
        """Draw the consequences of an event: our own responses that are due, requests that waited
        for room, whom to read from, half-closes."""
        while not self.over:
            if self._pending.due and not self._responses.busy:
                out = Output()
                self._responses.respond(now, out)
                self._perform(_BROKER, out, 0, actions, now)
            elif self._pending and self._broker_has_ended and not self._responses.busy:
                actions.append(Record(self._give_up(now)))
            elif self._requests.can_go_on:
                actions += self._go_on(now)
            else:
                break
        if not self.over:
            self._read_or_pause(actions)
            if not self._responses.blocked:
                self._pass_half_closes(actions, now)

    @property
    def _broker_has_ended(self) -> bool:
        return _BROKER in ENDED_SIDES.get(self._phase, ())

    def _go_on(self, now: int) -> list[Action]:
        """Take requests that waited because as many were pending as may be."""
        out = Output()
        try:
            self._requests.feed(b"", now, out)
        except Violation as error:
            return self._violated(_CLIENT, out, error, now)
        actions: list[Action] = []
        self._perform(_CLIENT, out, 0, actions, now)
        return actions

    def _read_or_pause(self, actions: list[Action]) -> None:
        """Read from a side, or stop reading, as much is unanswered or delayed, or little."""
        for side in Side:
            full = self._is_full(side)
            if full and side not in self._paused:
                self._paused.add(side)
                actions.append(Pause(self.number, side))
            elif not full and side in self._paused:
                self._paused.discard(side)
                actions.append(Resume(self.number, side))

    def _is_full(self, side: Side) -> bool:
        """Tell if nothing more may be read from a side for now."""
        was_full = side in self._paused  # then half of it must be gone
        delays = self._delays[_OTHER[side]]
        limit_bytes = _DELAYED_BYTES_MAX // 2 if was_full else _DELAYED_BYTES_MAX
        if delays.held_bytes >= (limit_bytes // 16 if delays.pressed else limit_bytes):
            return True
        if side is _BROKER:
            return self._gate.parked  # what is behind a parked response can wait in the kernel
        if _CLIENT in ENDED_SIDES.get(self._phase, ()):
            return False  # it is to be seen when it breaks
        pending = self._pending
        return self._requests.stopped or pending.full or (was_full and not pending.roomy)

    def _pass_half_closes(self, actions: list[Action], now: int) -> None:
        if self._phase is Phase.BOTH_ENDED:
            if not self._delayed:
                last = Side[self._ends[-1].side.upper()]
                actions += self._end(last, "eof", "", now)
        elif self._phase is Phase.CLIENT_ENDED:
            waits = self._requests.stopped or self._delays[_BROKER].waiting
            if not self.busy and not waits:
                self._pass_on(_BROKER, actions)
        elif self._phase is Phase.BROKER_ENDED:
            if not self._delays[_CLIENT].waiting:
                self._pass_on(_CLIENT, actions)

    def _pass_on(self, to: Side, actions: list[Action]) -> None:
        self._phase = after(self._phase, Event.PASSED_ON)
        actions.append(Eof(self.number, to))

    # What leaves

    def _perform(
        self, side: Side, out: Output, data_bytes: int, actions: list[Action], now: int
    ) -> None:
        """Perform what a stream made of what came from one side: send it on or delay it, and record
        it."""
        departures = out.finish()
        to = _OTHER[side]
        delays = self._delays[to]
        if self._phase is not _OPEN and self._phase in SILENT:
            for entry in out.entries:
                if isinstance(entry, Frame):
                    entry.withheld = True
        elif departures is None and not delays.waiting:
            if out.pieces:
                self._send(to, out.pieces, out.timed, actions, now)
        else:
            delays.put(departures or [Departure(0, out.pieces, out.timed)])
        if out.entries:
            actions.append(Record(out.entries, data_bytes))
        if out.reports:
            actions += [Log(text) for text in out.reports if self._shared.is_new(text)]
        if delays.waiting:
            self._leave(to, actions, now)

    def _leave(self, to: Side, actions: list[Action], now: int) -> None:
        """Let leave what is due, up to what ends or silences the connection."""
        for departure in self._delays[to].take(now):
            if self.over or self._phase in SILENT:
                return
            if departure.pieces:
                self._send(to, departure.pieces, departure.timed, actions, now)
                self.last_ns = now
            if departure.silences:
                self._silence(actions)
            if (closing := departure.closes) is not None:
                if departure.ending_delay_ns:
                    self._close_due = now + departure.ending_delay_ns, closing
                else:
                    actions += self._end(None, _HOW[closing], _FAULT, now)

    def _send(
        self,
        to: Side,
        pieces: list[Buffer],
        timed: list[Frame | ChunkTimes],
        actions: list[Action],
        now: int,
    ) -> None:
        if to is _CLIENT:
            if self._phase is not _OPEN:
                timed.append(ChunkTimes(now))  # a piece of a frame has no other one
            if timed:
                self._last_to_client = timed[-1]
        actions.append(Send(self.number, to, pieces, timed))

    def _silence(self, actions: list[Action]) -> None:
        """Let nothing pass any more, in either direction."""
        self._phase = after(self._phase, Event.SILENCED)
        self._requests.ignore_rules()
        if (parked := self._gate.take()) is not None:
            out = Output()
            self._responses.give_up(parked, out)
            actions.append(Record(out.entries))
        for delays in self._delays:
            delays.clear()

    # The end

    def _end(self, side: Side | None, how: str, reason: str, now: int) -> list[Action]:
        opened = [self._opened()] if self._phase is Phase.DIALLING else []
        self._phase = after(self._phase, Event.ENDED)
        out = Output()
        self._requests.ignore_rules()
        self._requests.finish(now, out)
        self._responses.finish(now, out)
        for delays in self._delays:
            delays.clear()
        closing = self._give_up(now)
        self._shared.interests.closed(self.number)
        name = None if side is None else side.name.lower()
        if how != "eof":
            who = "proxy" if side is None or how == "violation" else side.name.lower()
            self._ends.append(SideEnd(who, how, now))
        note = notes.closed(self.number, now, self.about, how, reason, name, self._ends)
        actions: list[Action] = [Record([*opened, *out.entries, *closing, note])]
        if reason and how != "down":  # which is said once for all connections
            actions.append(Log(self._line(reason)))
        return [*actions, Close(self.number, how not in _GENTLE)]

    def _give_up(self, now: int) -> list[Entry]:
        """Nothing answers any more: close the exchanges of what is pending."""
        return [self._responses.unanswered(each, now) for each in self._pending.give_up()]

    def _hint(self) -> str | None:
        """Guess what it means that the broker ends the connection now."""
        first = self._pending.first
        if first is None:
            return None
        has_responded = self._broker_bytes > self._responses.versions_bytes
        silent_tls = "broker_tls" in self.about and not self._broker_bytes
        return diagnosis.hung_up(self._address_source, has_responded, first.api_key, silent_tls)

    def _line(self, reason: str) -> str:
        """What the log says of its end."""
        node_id = self.about["node_id"]
        node = "bootstrap" if node_id is None else f"node {node_id}"
        between = f"{self.about['client_address']} → {node}"
        return f"connection {self.number} ({between}) ended: {reason}"

    def _opened(self) -> Note:
        return notes.opened(self.number, self._opened_ns, self.about)
