"""The replaying broker as one state machine: a cluster that exists only in a recording.

::

    accepted · receive · all_sent · closed · listening · wake
          │
          ▼
    ReplayBroker ── ReplayConnection … ─▶ request ─▶ Serving ─┐
       │                                               │      ▼
       └── State ◀─────────────────────────────────────┘   [Send, Close, Listen, Log]

It satisfies `proxy.machine.Machine`; its connections have one end, so it never dials. There is one
listener for each broker of the recording, and one to bootstrap from; every one of them serves
everything. Long polls, rebalances and session timeouts are timers behind `next_wake`. It knows no
rules: they act in front of it (`ruled`).

Invariants: it uses no socket, file, clock or randomness; it reads the frames of the recording
through `Store.read_frame`, a function that it is given. One request of a connection is handled at
a time, so that responses leave in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from kproxy.defects import defect
from kproxy.exchange.entries import Buffer, Side
from kproxy.proxy.actions import Action, Address, Close, Listen, Log, Pause, Resume
from kproxy.proxy.budget import Budget, Share
from kproxy.proxy.due import Idle
from kproxy.proxy.framer import Violation
from kproxy.proxy.machine import Accepted, ClientSideOnly, OpenConnection
from kproxy.proxy.nodes import listener_port
from kproxy.replay import producers
from kproxy.replay.call import CLOSE, LATER, NONE, Call, Unanswerable
from kproxy.replay.connection import ReplayConnection
from kproxy.replay.loaded import Loaded
from kproxy.replay.pace import Pace
from kproxy.replay.report import Report
from kproxy.replay.serving import Serving
from kproxy.replay.settings import ReplaySettings, Visible
from kproxy.replay.state import State
from kproxy.replay.steps import STEPS_MAX, Steps, Work, WorkTurns
from kproxy.replay.strict import Strict
from kproxy.replay.timers import Timer

_WAITING_MAX = 100
"""A connection with more waiting requests is not read from."""

_REQUEST_STEPS = 5
"""A request counts like so many elements: a turn of a connection has 100 requests at most."""

_LEAVING_BYTES_MAX = 4 << 20
"""A connection with more unsent response bytes has no other request handled until its client has
taken them all."""


class ReplayBroker(ClientSideOnly):
    """The replaying broker. Feed it events; perform, in order, the actions that it returns."""

    def __init__(
        self,
        loaded: Loaded,
        settings: ReplaySettings,
        report: Report,
        pace: Pace | None = None,
        strict: Strict | None = None,
    ) -> None:
        self.state = State(loaded, settings, report)
        self.strict = strict
        """What answers in strict mode, in place of the state."""
        self._serving = Serving(self.state)
        self._turns = WorkTurns(self.state.timers)
        self._steps_left = 0
        """In the present turn."""
        self._settings = settings
        self._pace = pace
        self._connections: dict[int, ReplayConnection] = {}
        self._budget = Budget(settings.held_bytes_max)
        self._late: list[Action] = []
        """Actions of timers that have fired, returned by `wake`."""
        self._asked = False
        self._idle = Idle(settings.idle_seconds)
        self._idle_timer: Timer | None = None
        """The next check for idle connections; None while there is no connection."""
        self._unopened: set[int] = set()
        self._stopped = False
        if settings.visible is Visible.CAUSAL:
            self.state.hold_back()
        else:
            self.state.cluster.begin_at_end()

    # ---- events

    @property
    def next_wake(self) -> int | None:
        """The time at which to call `wake`; None: not before another event."""
        return self.state.timers.next

    def start(self, now: int) -> list[Action]:
        """Open the listeners of the recording's brokers, before any client connects."""
        if self._asked:
            return []
        self._asked, settings = True, self._settings
        self._unopened = set(self.state.cluster.racks)
        return [
            Listen(node_id, listener_port(node_id, settings.listen_port, settings.node_ports))
            for node_id in sorted(self._unopened)
        ]

    def accepted(self, client: Accepted, now: int) -> list[Action]:
        """Take a client's connection."""
        share = Share(self._budget)
        self._connections[client.number] = ReplayConnection(client, now, now, share)
        if self._idle_timer is None:
            self._idle_timer = self.state.timers.at(now + self._idle.ns, self._end_idle)
        return self.start(now)

    def receive(self, number: int, side: Side, data: bytes, now: int) -> list[Action]:
        """Take bytes from a client."""
        connection = self._connections.get(number)
        if connection is None:
            return []
        connection.last_ns = now
        try:
            connection.receive(data, self._settings.request_bytes_max)
        except Violation as error:
            return self._end(connection, str(error))
        actions: list[Action] = []
        self._handle_waiting(connection, now, actions)
        self._drain(now, actions)
        alive = number in self._connections
        if alive and len(connection.waiting) > _WAITING_MAX and not connection.paused:
            connection.paused = True
            actions.append(Pause(number, Side.CLIENT))
        return actions

    def all_sent(self, number: int, side: Side, now: int) -> list[Action]:
        """Handle the requests that waited until a client has taken its responses; if there are
        none, read ahead."""
        connection = self._connections.get(number)
        if connection is None:
            return []
        actions: list[Action] = []
        if connection.held:
            connection.held = connection.busy = False
            self._handle_waiting(connection, now, actions)
        else:
            connection.read_ahead()
        return self._drain(now, actions)

    def closed(self, number: int, side: Side, how: str, reason: str, now: int) -> list[Action]:
        """Handle the end of a client's connection; `how` is "eof" after a half-close."""
        connection = self._connections.get(number)
        if connection is None:
            return []
        connection.ended = True
        if how == "eof" and (connection.busy or connection.waiting):
            self.state.fetches.answer(self.state, number)  # it half-closed
            return self._drain(now, [])
        return self._end(connection, "")

    def listening(self, node_id: int, address: Address, now: int) -> list[Action]:
        """Note the address of a broker's listener that is open now."""
        self.state.listening[node_id] = address
        return self._opened(node_id, now)

    def not_listening(self, node_id: int, reason: str, now: int) -> list[Action]:
        """Log a broker whose listener could not be opened: Metadata leaves it out."""
        return [Log(f"node {node_id} is left out: {reason}"), *self._opened(node_id, now)]

    def wake(self, now: int) -> list[Action]:
        """Run the timers that are due."""
        self.state.timers.run(now)
        actions, self._late = self._late, []
        return self._drain(now, actions)

    def stop(self, now: int) -> list[Action]:
        """Close every connection; report the records that were not committed."""
        if not self._stopped:  # stop may be called twice
            producers.report_at_end(self.state)
        self._stopped = True
        self._turns.end()
        return [
            action
            for connection in list(self._connections.values())
            for action in self._end(connection, "")
        ]

    # ---- for an operator

    @property
    def connections(self) -> Iterator[OpenConnection]:
        """The open connections, the oldest first."""
        for each in self._connections.values():
            yield OpenConnection(
                each.number,
                each.client.address,
                each.client_id,
                each.client.node_id,
                None,
                each.opened_ns,
                each.last_ns,
                each.busy + len(each.waiting),
            )

    def end(self, number: int, now: int) -> list[Action]:
        """End a connection for the operator; do nothing if it is not open."""
        connection = self._connections.get(number)
        return [] if connection is None else self._end(connection, "the operator ended it")

    # ---- requests

    def _opened(self, node_id: int, now: int) -> list[Action]:
        self._unopened.discard(node_id)
        actions: list[Action] = []
        for connection in [] if self._unopened else list(self._connections.values()):
            self._handle_waiting(connection, now, actions)
        return self._drain(now, actions)

    def _drain(self, now: int, actions: list[Action]) -> list[Action]:
        """Send the responses of waiting requests, and handle the next requests after them."""
        if self.state.gives_up:
            self.state.fetches.answer_all(self.state)
        responses = self.state.responses
        while responses:
            call, body = responses.pop(0)
            connection = call.connection
            if self._connections.get(connection.number) is not connection:
                continue
            connection.busy = False
            self._steps_left = STEPS_MAX
            work = self._answered(call, body)
            self._go_on(connection, work, now, actions)
            self._handle_waiting(connection, now, actions)
        return actions

    def _handle_waiting(
        self, connection: ReplayConnection, now: int, actions: list[Action]
    ) -> None:
        waiting = connection.waiting
        self._steps_left = STEPS_MAX
        while waiting and not connection.busy and not self._unopened:
            if connection.number not in self._connections:
                return
            if self._steps_left <= 0:
                self._later(connection, _nothing, now, Work.NONE)
                break
            self._steps_left -= _REQUEST_STEPS
            if connection.leaving_bytes > _LEAVING_BYTES_MAX:
                # Those of this event have not been sent yet: at the next turn they have been tried.
                wait = partial(self._wait_until_taken, connection)
                self._later(connection, wait, now, Work.NONE)
                break
            frame = connection.next_request()
            if self.strict is not None:
                work = self.strict.answer(self.state, connection, bytes(frame))
            else:
                work = self._serving.answer(connection, frame, now)
            self._go_on(connection, work, now, actions)
        if connection.number not in self._connections:
            return
        if not connection.busy:
            connection.answered()
        if connection.paused and len(waiting) <= _WAITING_MAX // 2:
            connection.paused = False
            actions.append(Resume(connection.number, Side.CLIENT))
        if connection.ended and not connection.busy and not waiting:
            actions += self._end(connection, "")

    def _wait_until_taken(
        self, connection: ReplayConnection, now: int, actions: list[Action]
    ) -> None:
        """Handle no other request of a connection until its client has taken its responses."""
        if connection.leaving_bytes <= _LEAVING_BYTES_MAX:
            return  # they have left at once
        connection.held = connection.busy = True

    def _go_on(
        self,
        connection: ReplayConnection,
        work: Steps,
        now: int,
        actions: list[Action],
        state: Work = Work.NEW,
    ) -> None:
        """Go on with a request for a turn; its result is the API key and pieces, or a `Reply`."""
        try:
            for left in range(self._steps_left, 0, -1):
                self._steps_left = left
                next(work)
        except StopIteration as done:
            api_key, answer = done.value
        except Unanswerable as error:
            actions += self._end(connection, str(error))
            return
        else:
            self._steps_left = 0
            go_on = partial(self._go_on, connection, work, state=Work.BEGUN)
            self._later(connection, go_on, now, state)
            return
        if answer is LATER:
            connection.busy = True
        elif answer is CLOSE:
            actions += self._end(connection, "")
        elif answer is not NONE:
            self._respond(connection, api_key, answer, now, actions)

    def _later(
        self,
        connection: ReplayConnection,
        act: Callable[[int, list[Action]], None],
        now: int,
        work: Work,
    ) -> None:
        """Call `act` at the next turn of a connection, which is behind those of others. New work of
        a client that has gone meanwhile is dropped."""
        connection.busy = connection.working = True

        def go_on(now: int) -> None:
            connection.busy = connection.working = False
            self._steps_left = STEPS_MAX
            try:
                if work is Work.BEGUN or connection.number in self._connections:
                    act(now, self._late)
                if self._connections.get(connection.number) is connection:
                    self._handle_waiting(connection, now, self._late)
            except Exception as error:  # it is this connection's alone
                self._late += self._end(connection, defect(error), abrupt=True)
            if connection.number not in self._connections and not connection.working:
                connection.share.release()

        self._turns.later(go_on, now, work)

    def _answered(self, call: Call, body: Any) -> Steps:
        """Encode the response to a request that has waited."""
        return call.api_key, (yield from self._serving.encoded(call, body))

    # ---- responses

    def _respond(
        self,
        connection: ReplayConnection,
        api_key: int,
        pieces: list[Buffer],
        now: int,
        actions: list[Action],
    ) -> None:
        if self._connections.get(connection.number) is not connection:
            return  # it has ended meanwhile
        delay_ns = self._pace.delay_ns(api_key) if self._pace is not None else 0
        if not delay_ns:
            self._send(connection, pieces, now, actions)
            return
        connection.busy = True  # nothing else of it is handled meanwhile

        def due(now: int) -> None:
            if self._connections.get(connection.number) is connection:
                connection.busy = False
                self._send(connection, pieces, now, self._late)
                self._handle_waiting(connection, now, self._late)

        self.state.timers.at(now + delay_ns, due)

    def _send(
        self, connection: ReplayConnection, pieces: list[Buffer], now: int, actions: list[Action]
    ) -> None:
        actions.append(connection.send(pieces, now))
        if connection.reads_ahead:  # now, if the client takes it at once; else see `all_sent`
            self.state.timers.at(now + 1, lambda _: connection.read_ahead())

    def _end_idle(self, now: int) -> None:
        """End the idle connections, and set the timer for the next check."""
        for each in list(self._connections.values()):
            waits = each.busy or each.waiting
            if self._idle.is_over(each.last_ns, now) and not waits:
                self._late += self._end(each, self._idle.reason)
        last_ns = (each.last_ns for each in self._connections.values())
        again_ns = self._idle.next_check(last_ns, now)
        if again_ns is not None:
            self._idle_timer = self.state.timers.at(again_ns, self._end_idle)

    def _end(self, connection: ReplayConnection, reason: str, abrupt: bool = False) -> list[Action]:
        if self._connections.pop(connection.number, None) is None:
            return []
        if not self._connections and self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
        if not connection.working:
            connection.share.release()
        self.state.fetches.forget(connection.number)
        if self.strict is not None:
            self.strict.forget(connection.number)
        log: list[Action] = (
            [Log(f"connection {connection.number} ended: {reason}")] if reason else []
        )
        return [*log, Close(connection.number, abrupt)]


def _nothing(now: int, actions: list[Action]) -> None:
    """Do nothing: only time passes before the next request is handled."""
