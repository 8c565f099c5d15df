"""One proxied connection: a request stream and a response stream that share what is pending.

::

    client ═▶ RequestStream ───▶ Delays ═▶ broker
                   │ PendingRequests (FIFO)
    client ◀═ Delays ◀─── ResponseStream ◀═ broker

Invariants:

* A connection is in one phase (`phase` has them all, and the theory). Every event leads through
  this file: a stream takes its bytes, `_perform` sends or delays the result, `_settle` draws the
  consequences for both directions, if there are any.
* Responses pair with requests in order; the correlation id must agree, or the connection ends.
* Bytes of a direction leave in the order in which they came, also those that a rule delays; nothing
  is sent after a violation.
* A client's half-close is passed on when its requests are answered, to the last byte; a broker's at
  once, but behind bytes that wait for a listener or for their time.

The places where bytes wait, with the owner of each; other frames pass without waiting::

    peer ═▶ kernel ─▶ Framer ──────────▶ AddressGate ──▶ Delays ───────▶ End ──────────▶ kernel ═▶
                      a header's start,  a response      departures      what a slow
                      a frame that a     that names a    before their    peer does not
                      rule wants whole,  node without    time            take (net.link)
                      bytes behind a     a listener
                      blocked stream
                      └── refused beyond `budget` ────┘  └ its side is paused beyond 1 MiB

    ResponseStream holds the end of a large response, from its addresses on (`rewrite.Tail`).

The parties that stop reading, and their reasons:

* the machine, by Pause (`_is_full`): requests are pending or wait for their turn under rules, a
  response is parked, or much is delayed;
* the link: the other end does not take what there is, or the broker is dialled (`net.link`);
* the pump: the recorder has no room (`net.pump`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kproxy.exchange import notes
from kproxy.exchange.derived import POLL_KEYS
from kproxy.exchange.endings import SideEnd
from kproxy.exchange.entries import (
    RAW_SASL,
    SILENCED,
    Buffer,
    ChunkTimes,
    Entry,
    Frame,
    Note,
    Side,
    each_frame,
)
from kproxy.proxy import diagnosis
from kproxy.proxy.actions import Action, Close, Eof, Log, LogIn, Pause, RecordEntries, Resume, Send
from kproxy.proxy.authenticate import LoginSession
from kproxy.proxy.budget import Share
from kproxy.proxy.delays import Delays
from kproxy.proxy.framer import Violation
from kproxy.proxy.gate import AddressGate
from kproxy.proxy.login import Login
from kproxy.proxy.machine import OpenConnection
from kproxy.proxy.output import Departure, Output
from kproxy.proxy.pending import PendingRequests
from kproxy.proxy.phase import ENDED_SIDES, EOF, SILENT, WAITS_FOR_BROKER, Event, Phase, after
from kproxy.proxy.requests import RequestStream
from kproxy.proxy.responses import ResponseStream
from kproxy.proxy.settings import Shared
from kproxy.proxy.verdicts import Ending

_CLIENT, _BROKER = Side.CLIENT, Side.BROKER
_OPEN = Phase.OPEN
_ENDED_BY_EOF = SILENT | {Phase.DIALLING}
_OTHER_SIDE = (_BROKER, _CLIENT)
"""Side → the other side."""
_HALF_CLOSED_NS = 10_000_000_000
"""A client that has sent FIN keeps its slot for this long without a byte from the broker."""
_DELAYED_BYTES_MAX = 1 << 20
"""With this much delayed on the way to one side, the other side is paused."""
_ENDED_HOW = {Ending.DISCONNECT: "fault", Ending.RESET: "fault reset"}
"""The endings that close a connection → how the recording says so."""
_FAULT = "a fault rule ended it"
_NEVER_NS = 1 << 63
_SESSION_SHARE = 0.85
"""kproxy logs in anew when this share of a session is over: as early as Kafka's clients may."""
_ORDERLY = ("eof", "idle", "stopped", "refused", "down", "violation", "fault")
"""The ways to end that close both sides behind the bytes sent before; others reset them."""


class Connection:
    """The state of one connection, and the actions that follow from its events."""

    def __init__(
        self, number: int, about: dict[str, Any], shared: Shared, gate: AddressGate, now: int
    ) -> None:
        self.number = number
        self.about = about
        """The facts for the recording: node id, client address, listener, broker address."""
        self._shared = shared
        self.gate = gate
        """Where a response waits for listeners."""
        self._phase = Phase.DIALLING
        self._login = login = Login(shared.settings.record_users)
        self._address_source = diagnosis.address_source(about["node_id"])
        """The setting that names the broker."""
        settings, budget = shared.settings, shared.budget
        self._pending = PendingRequests(settings.pending_requests_max)
        self._requests = RequestStream(number, about, shared, self._pending, login)
        self._responses = ResponseStream(
            number, self._address_source, shared, self._pending, login, gate
        )
        self._delays = (Delays(Share(budget)), Delays(Share(budget)))
        """Delays by the side that the bytes go to."""
        self._paused: set[Side] = set()
        self._broker_bytes = 0
        self._opened_ns = now
        self.last_ns = now
        """The time at which something last arrived, or left late."""
        self._hinted = ""
        """The likely reason of its end, if that is logged already."""
        self._ends: list[SideEnd] = []
        """The ends of the sides in order, for the recording."""
        self._last_to_client: Frame | ChunkTimes | None = None
        """The last frame sent to the client; its `sent_ns` shows when the client took it."""
        self._client_checked_ns = now
        """The last time of a check whether the client has taken it."""
        self._close_due: tuple[int, Ending] | None = None
        """The time and the way in which a silent connection is closed."""
        self._own_login: LoginSession | None = None
        """kproxy's own login; None: the client logs in, if anybody does."""
        self._log_in_ns = _NEVER_NS
        """The time from which kproxy logs in anew before the next request (KIP-368)."""
        self._logging_in = False
        self._draining = False
        """It ends as soon as nothing is due: the proxy stops."""

    # What it is

    @property
    def over(self) -> bool:
        """True when it has ended, and its Close is among the actions."""
        return self._phase is Phase.OVER

    @property
    def busy(self) -> bool:
        """True while the client waits for a response, or for the rest of one."""
        if self._phase in SILENT:
            return False
        if self._draining:  # nothing waits for a login, but a request would be cut
            own = self._requests.framer.partial is not None or self._delays[_BROKER].waiting
        else:
            own = self._logging_in
        waits = bool(self._pending) or self._responses.busy or own
        return bool(waits or self._delays[_CLIENT])

    @property
    def state(self) -> OpenConnection:
        """The connection as people see it."""
        return OpenConnection(
            self.number,
            self.about["client_address"],
            self._requests.client_id,
            self.about["node_id"],
            self.about["broker_address"],
            self._opened_ns,
            self.last_ns,
            len(self._pending),
            self._login.user or self.about.get("user"),
        )

    @property
    def _delayed(self) -> bool:
        """True while bytes wait here for their time."""
        return bool(self._delays[_CLIENT].waiting or self._delays[_BROKER].waiting)

    @property
    def holds_back(self) -> bool:
        """True while bytes, or its end, wait here for their time: it is not idle."""
        return self._delayed or self._close_due is not None

    @property
    def wants_turn(self) -> bool:
        """True while rules have more requests to decide on, in its next turn."""
        requests = self._requests
        return self._phase is not Phase.OVER and requests.has_room and requests.quota_used

    @property
    def next_due_ns(self) -> int | None:
        """The time of the next `wake`: something delayed leaves, or the broker has been silent for
        too long."""
        due = [delays.next_due_ns for delays in self._delays]
        if self._close_due is not None:
            due.append(self._close_due[0])
        if self._depends_on_broker:
            due.append(max(self.last_ns, self._client_checked_ns) + _HALF_CLOSED_NS)
        return min((each for each in due if each is not None), default=None)

    @property
    def _depends_on_broker(self) -> bool:
        """True while only the broker keeps the connection alive: the client has ended."""
        return self._phase in WAITS_FOR_BROKER and not self.holds_back

    # Events

    def dialled(
        self, broker_address: str, now: int, login: LoginSession | None = None
    ) -> list[Action]:
        """Note that the broker's side is connected, and logged in by kproxy if `login` says so."""
        self._phase = after(self._phase, Event.DIALLED)
        self.about["broker_address"] = broker_address
        if login:
            self.about["broker_login"] = login.mechanism
            if login.user and self._shared.settings.record_users:
                self.about["user"] = login.user
            self._begin_session(login, now)
        return [RecordEntries([self._opened_note()])]

    def logged_in(self, login: LoginSession, now: int) -> list[Action]:
        """Go on: kproxy has logged in anew."""
        self._logging_in = False
        self._pending.hold(self._draining)
        self._begin_session(login, now)
        actions: list[Action] = []
        self._settle(actions, now)
        return actions

    def _begin_session(self, login: LoginSession, now: int) -> None:
        self._own_login = login
        session_ns = int(login.lifetime_ms * 1e6 * _SESSION_SHARE)
        self._log_in_ns = now + session_ns if session_ns else _NEVER_NS

    def receive(self, side: Side, data: bytes, now: int) -> tuple[list[Action], bool]:
        """Take bytes that arrived from one side.

        Returns the actions, and whether more may have changed than these bytes: the connection may
        be over, or wait for other things than before.
        """
        self.last_ns = now
        out = Output()
        actions: list[Action] = []
        try:
            if side is _CLIENT:
                if now >= self._log_in_ns and self._phase is _OPEN:
                    self._pending.hold(True)
                self._requests.turn_cost = 0
                self._requests.framer.feed(data, now, out)
            else:
                self._broker_bytes += len(data)
                self._responses.framer.feed(data, now, out)
        except Violation as error:
            self._end_by_violation(side, out, error, actions, now)
            return actions, True
        self._perform(side, out, actions, now)
        if self._is_calm():
            return actions, False
        self._settle(actions, now)
        return actions, True

    def resume(self, now: int) -> list[Action]:
        """Go on: the listeners that a parked response waited for are open."""
        actions: list[Action] = []
        self._take(_BROKER, self._responses.resume, actions, now)
        self._settle(actions, now)
        return actions

    def drain(self, now: int) -> list[Action]:
        """Take no further request; end when those that were taken are answered."""
        self._draining = True
        self._pending.hold(True)
        actions: list[Action] = []
        self._settle(actions, now)
        return actions

    def closed(self, side: Side, how: str, reason: str, now: int) -> list[Action]:
        """Take the end of one side: it half-closed ("eof") or broke (any other `how`)."""
        hint = self._hint(now) if side is _BROKER and how in ("eof", "reset") else None
        if how == "eof":
            self._ends.append(SideEnd(side.name.lower(), "eof", now))
        if how != "eof" or self._phase in _ENDED_BY_EOF:
            return self.end(side, how, hint or reason, now)
        self._phase = after(self._phase, EOF[side])
        self.last_ns = now
        actions: list[Action] = []
        if hint is not None:
            self._hinted = hint
            actions.append(Log(self._log_line(hint), "warning"))
        self._finish_ended(side, now, out := Output())
        self._perform(side, out, actions, now)
        self._settle(actions, now)
        return actions

    def wake(self, now: int) -> list[Action]:
        """Do what is due, and continue with requests that waited for another turn."""
        if self._close_due is not None and self._close_due[0] <= now:
            return self.end(None, _ENDED_HOW[self._close_due[1]], _FAULT, now)
        waits_ns = now - max(self.last_ns, self._client_checked_ns)
        if self._depends_on_broker and waits_ns >= _HALF_CLOSED_NS:
            if self._last_to_client is None or self._last_to_client.sent_ns:
                seconds = _HALF_CLOSED_NS // 1_000_000_000
                why = f"the client has ended, and the broker sent nothing for {seconds} s"
                return self.end(None, "idle", why, now)
            self._client_checked_ns = now  # the client has not taken its bytes: it is the slow one
        self._requests.turn_cost = 0
        actions: list[Action] = []
        for side in Side:
            self._send_due(side, actions, now)
        self._settle(actions, now)
        return actions

    # Consequences of events

    def _take(
        self, side: Side, event: Callable[[int, Output], None], actions: list[Action], now: int
    ) -> None:
        """Have the stream of one side take an event, and perform what it leads to."""
        out = Output()
        try:
            event(now, out)
            self._finish_ended(side, now, out)
        except Violation as error:
            self._end_by_violation(side, out, error, actions, now)
        else:
            self._perform(side, out, actions, now)

    def _finish_ended(self, side: Side, now: int, out: Output) -> None:
        """If a side has ended, and none of its bytes wait, take the last of it."""
        stream = self._requests if side is _CLIENT else self._responses
        if side in ENDED_SIDES.get(self._phase, ()) and not stream.stopped:
            stream.finish(now, out)

    def _end_by_violation(
        self, side: Side, out: Output, error: Violation, actions: list[Action], now: int
    ) -> None:
        """Send what came before the bytes that are not Kafka's, and end."""
        self._perform(side, out, actions, now)
        if not self.over:
            actions += self.end(side, "violation", str(error), now)

    def _is_calm(self) -> bool:
        """Return whether bytes that passed have no consequences, as usual: nothing is changed."""
        to_client, to_broker = self._delays
        return (
            self._phase is _OPEN
            and self._pending.calm
            and not self._paused
            and not self._requests.framer.waiting
            and not to_client.waiting
            and not to_broker.waiting
            and not self.gate.parked
        )

    def _settle(self, actions: list[Action], now: int) -> None:
        """Draw the consequences of an event: send our own responses that are due, take requests
        that waited for room, pause or resume the sides, pass half-closes on."""
        responses, requests = self._responses, self._requests
        while not self.over:
            # A response would be behind its end.
            client_is_told = self._phase is Phase.BROKER_PASSED
            if self._pending.due and not responses.busy and not client_is_told:
                self._take(_BROKER, responses.respond, actions, now)
            elif self._pending and self._broker_has_ended and not responses.busy:
                actions.append(RecordEntries(self._give_up(now)))
            elif requests.has_room and not requests.quota_used:
                self._take(_CLIENT, requests.framer.go_on, actions, now)
            else:
                break
        if not self.over:
            self._read_or_pause(actions)
            if not responses.stopped:
                self._pass_half_closes(actions, now)
            if self._draining and not self.over and not self.busy:
                actions += self.end(None, "stopped", "", now)
            elif self._pending.held and not self._draining:
                self._log_in_anew(actions)

    def _log_in_anew(self, actions: list[Action]) -> None:
        """Log in anew as soon as nothing is under way: the client's next requests wait for it."""
        waits = self._pending or self._responses.busy or self._requests.framer.partial
        if waits or self._delays[_BROKER].waiting or self._logging_in or self._own_login is None:
            return
        if self._phase in (_OPEN, Phase.CLIENT_ENDED):
            self._logging_in = True
            actions.append(LogIn(self.number, self._own_login))

    @property
    def _broker_has_ended(self) -> bool:
        return _BROKER in ENDED_SIDES.get(self._phase, ())

    def _read_or_pause(self, actions: list[Action]) -> None:
        """Pause a side when much is unanswered or delayed, and resume it when little is."""
        for side in Side:
            full = self._is_full(side)
            if full and side not in self._paused:
                self._paused.add(side)
                actions.append(Pause(self.number, side))
            elif not full and side in self._paused:
                self._paused.discard(side)
                actions.append(Resume(self.number, side))

    def _is_full(self, side: Side) -> bool:
        """Return whether nothing more may be read from a side for now."""
        was_full = side in self._paused  # then half of it must be gone
        delays = self._delays[_OTHER_SIDE[side]]
        limit_bytes = _DELAYED_BYTES_MAX // 2 if was_full else _DELAYED_BYTES_MAX
        if delays.held_bytes >= (limit_bytes // 16 if delays.pressed else limit_bytes):
            return True
        if side is _BROKER:
            return self.gate.parked  # bytes behind a parked response can wait in the kernel
        if _CLIENT in ENDED_SIDES.get(self._phase, ()):
            return False  # reading goes on to notice when it breaks
        pending, requests = self._pending, self._requests
        if requests.framer.partial is not None and not requests.stopped:
            return False  # the broker may want the rest of a frame before it answers others
        return requests.stopped or pending.full or (was_full and not pending.roomy)

    def _pass_half_closes(self, actions: list[Action], now: int) -> None:
        if self._phase is Phase.BOTH_ENDED:
            if not self._delayed:
                last = Side[self._ends[-1].side.upper()]
                actions += self.end(last, "eof", "", now)
        elif self._phase is Phase.CLIENT_ENDED:
            waits = self._requests.stopped or self._delays[_BROKER].waiting
            if not self.busy and not waits:
                self._pass_half_close(_BROKER, actions)
        elif self._phase is Phase.BROKER_ENDED:
            if not self._delays[_CLIENT].waiting:
                self._pass_half_close(_CLIENT, actions)

    def _pass_half_close(self, to: Side, actions: list[Action]) -> None:
        self._phase = after(self._phase, Event.PASSED_ON)
        actions.append(Eof(self.number, to))

    # Departures

    def _perform(self, side: Side, out: Output, actions: list[Action], now: int) -> None:
        """Perform the output of a stream: send it on or delay it, and record it."""
        departures, to = out.finish(), _OTHER_SIDE[side]
        delays = self._delays[to]
        entries: list[Entry] = out.entries
        if self._phase is not _OPEN and self._phase in SILENT:
            entries = []
            for entry in each_frame(out.entries):
                entries.append(entry)
                if isinstance(entry, Frame):
                    entry.withheld = True
                    entry.flags |= SILENCED
        elif departures is not None or delays.waiting:
            delays.put(departures or [Departure(0, out.pieces, out.timed)])
        elif out.pieces:
            actions.append(self._sending(to, out.pieces, out.timed, now, entries))
            entries = []
        if entries:
            actions.append(RecordEntries(entries))
        if out.reports:
            actions += [Log(text) for text in out.reports if self._shared.log_once(text)]
        if delays.waiting:
            self._send_due(to, actions, now)

    def _send_due(self, to: Side, actions: list[Action], now: int) -> None:
        """Send what is due, up to a departure that ends or silences the connection."""
        for departure in self._delays[to].take(now):
            if self.over or self._phase in SILENT:
                return
            if departure.pieces:
                actions.append(self._sending(to, departure.pieces, departure.timed, now))
                self.last_ns = now
            ending, delay_ns = departure.ending, departure.ending_delay_ns
            if ending is Ending.BLACKHOLE or delay_ns:
                self._silence(actions)
            if ending is None or ending is Ending.BLACKHOLE:
                continue
            if delay_ns:
                self._close_due = now + delay_ns, ending
            else:
                actions += self.end(None, _ENDED_HOW[ending], _FAULT, now)

    def _sending(
        self,
        to: Side,
        pieces: list[Buffer],
        timed: list[Frame | ChunkTimes],
        now: int,
        entries: Sequence[Entry] = (),
    ) -> Send:
        """Return the action that sends bytes; remember what shows when a client has taken them."""
        if to is _CLIENT:
            if self._phase is not _OPEN:
                timed.append(ChunkTimes(now))  # a piece of a frame has no other one
                if _CLIENT in ENDED_SIDES.get(self._phase, ()):
                    for each_time in timed:
                        each_time.client_ended = True
            if timed:
                self._last_to_client = timed[-1]
        return Send(self.number, to, pieces, timed, entries)

    def _silence(self, actions: list[Action]) -> None:
        """Let nothing pass any more, in either direction."""
        self._phase = after(self._phase, Event.SILENCED)
        self._requests.ignores_rules = True
        if (parked := self.gate.take()) is not None:
            out = Output()
            self._responses.give_up(parked, out)
            actions.append(RecordEntries(out.entries))
        for delays in self._delays:
            delays.clear()

    # The end

    def end(self, side: Side | None, how: str, reason: str, now: int) -> list[Action]:
        """End it because of one side, or, without one, by ourselves: it was idle for too long, a
        rule wants it, or the proxy stops."""
        side = None if how in ("defect", "login") else side  # kproxy's, whosever bytes led to it
        opened = [self._opened_note()] if self._phase is Phase.DIALLING else []
        by_rule = reason == _FAULT or self._phase in SILENT
        self._phase = after(self._phase, Event.ENDED)
        out = Output()
        self._requests.ignores_rules = True
        self._requests.finish(now, out)
        self._responses.finish(now, out)
        for delays in self._delays:
            delays.clear()
        # A client that closes with a poll under way does not read its response, so it resets.
        ordinary = side is _CLIENT and how == "reset" and self._pending.api_keys <= POLL_KEYS
        closing = self._give_up(now, SILENCED if by_rule else 0)
        self._shared.interests.closed(self.number)
        name = None if side is None else side.name.lower()
        if how != "eof":
            who = "proxy" if side is None or how == "violation" else side.name.lower()
            self._ends.append(SideEnd(who, how, now))
        if side is not None and how in ("eof", "reset"):
            reason = self._login.refusal or reason
        known = reason or self._hinted
        note = notes.closed(self.number, now, self.about, how, known, name, self._ends)
        actions: list[Action] = [RecordEntries([*opened, *out.entries, *closing, note])]
        # "down" is logged once for all connections, and so is a login of kproxy's.
        logged = how == "down" or (how == "login" and not self._shared.log_once(reason))
        if reason and not logged and not ordinary:
            actions.append(Log(self._log_line(reason), "warning"))
        return [*actions, Close(self.number, how not in _ORDERLY)]

    def _give_up(self, now: int, flags: int = 0) -> list[Entry]:
        """Close the exchanges of pending requests: nothing answers them any more."""
        frames = [self._responses.unanswered(request, now) for request in self._pending.give_up()]
        for frame in frames:
            frame.flags |= flags
        return [*frames]

    def _hint(self, now: int) -> str | None:
        """Guess why the broker ends the connection now; None: no idea."""
        first = self._pending.first
        if first is None or self._own_login or not self._shared.settings.hang_up_hints:
            return None
        if 0 < self._login.session_ends_ns <= now:
            return diagnosis.SESSION_OVER
        has_responded = self._broker_bytes > self._responses.versions_bytes
        silent_tls = "broker_tls" in self.about and not self._broker_bytes
        if first.flags & RAW_SASL and self._pending.first_with_header is None:
            return diagnosis.refused_credentials(self._login.mechanism, user=self._login.claimed)
        answers = self._address_source in self._shared.answered
        return diagnosis.explain_hang_up(
            self._address_source, has_responded, first.api_key, silent_tls, answers
        )

    def _log_line(self, reason: str) -> str:
        """Return the line in the log about its end."""
        node_id = self.about["node_id"]
        node = "bootstrap" if node_id is None else f"node {node_id}"
        between = f"{self.about['client_address']} → {node}"
        return f"connection {self.number} ({between}) ended: {reason}"

    def _opened_note(self) -> Note:
        return notes.opened(self.number, self._opened_ns, self.about)
