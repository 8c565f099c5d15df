"""The proxy as one state machine: what all connections share, and the events that drive it.

::

    accepted · dialled · logged_in · receive · closed · listening · probed · wake
          │
          ▼
    Cluster ── node id → broker address, our listener; which are down
       ├── Connection
       └── Connection …
          │
          ▼
    [Dial, LogIn, Send, Eof, Pause, Resume, Close, Listen, Refuse, Probe, RecordEntries, Log]

Invariants: it knows no socket, file, clock or chance; time (`now`, integer nanoseconds) and
everything else come as arguments. Node ids and the cluster id are never changed, because clients
tell a broker which node they believe it to be (KIP-1242); there is one listener per node id, at
the same port after every restart, and no response names a node before its listener is open.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import attrs

from kproxy.exchange import notes
from kproxy.exchange.entities import TopicNames
from kproxy.exchange.entries import Note, Side
from kproxy.proxy.actions import Action, Address, Dial, Listen, Log, RecordEntries, Unlisten
from kproxy.proxy.authenticate import LoginSession
from kproxy.proxy.budget import Budget, Share
from kproxy.proxy.connection import Connection
from kproxy.proxy.down import Down
from kproxy.proxy.due import Due, Idle
from kproxy.proxy.framer import Violation
from kproxy.proxy.gate import AddressGate
from kproxy.proxy.interests import Interests
from kproxy.proxy.machine import Accepted, OpenConnection, TlsSession
from kproxy.proxy.mechanisms import shortened
from kproxy.proxy.nodes import Nodes, listener_port
from kproxy.proxy.rewrite import BrokerAddress
from kproxy.proxy.settings import Settings, Shared
from kproxy.proxy.topics import Topics
from kproxy.proxy.verdicts import Decider

_LOGGED_MAX = 1000
"""At most this many different lines are logged once; further ones are not logged."""


class Cluster:
    """The machine. Feed it events; perform, in order, the actions that it answers with."""

    def __init__(
        self, settings: Settings, rules: Decider | None = None, names: TopicNames | None = None
    ) -> None:
        """`names` are those of topic ids that are known already."""
        self._settings = settings
        self._nodes = Nodes(settings.nodes_max)
        self._budget = Budget(settings.held_bytes_max)
        self._interests = Interests(rules)
        self._logged: set[str] = set()
        self._shared = Shared(
            settings,
            self._interests,
            self._nodes.brokers,
            self._budget,
            self._log_once,
            Topics(names),
        )
        self._connections: dict[int, Connection] = {}
        self._turns: dict[int, None] = {}
        """Connections with more requests for rules to decide on, in order of their turn."""
        self._requested_listeners: set[int] = set()
        """The nodes whose listener was requested and is not open yet."""
        self._last_bootstrap_index = 0
        first_round_ns = 0 if settings.probes else None
        about = first_round_ns, settings.probes_log_in
        self._down = Down(self._nodes, lambda: self._bootstrap, self._used, *about)
        self._idle = Idle(settings.idle_seconds)
        self._next_idle_check: int | None = None
        self._due = Due()
        self.next_wake: int | None = first_round_ns
        """The time of the next `wake`; None while nothing is open, and no broker is probed."""
        self._next_turn_ns = 0
        """The time of the next turn, while `_turns` has any connection."""

    @property
    def busy(self) -> bool:
        """True while any request has not been answered to the last byte."""
        return any(connection.busy for connection in self._connections.values())

    @property
    def reachable(self) -> dict[int | None, bool]:
        """Node id (None: bootstrap) of each known broker → True if the last attempt to reach it
        succeeded; False also if there was none yet."""
        known = dict.fromkeys((None, *self._nodes.by_id), False)
        return known | self._down.reachable

    def _used(self) -> set[int | None]:
        """Return the node ids of brokers to which a connection leads."""
        about = (each.about for each in self._connections.values())
        return {each["node_id"] for each in about if each["broker_address"]}

    @property
    def connections(self) -> Iterator[OpenConnection]:
        """The open connections, the oldest first."""
        return (connection.state for connection in self._connections.values())

    def accepted(self, client: Accepted, now: int) -> list[Action]:
        """Take a client that connected."""
        host = self._settings.advertised_host or client.local_address[0]
        about = _connection_facts(client)
        if tls := client.tls:
            about["client_tls"] = _recorded(tls)
            if tls.subject and self._settings.record_users:
                about["user"] = shortened(tls.subject)
        advertised = partial(self._nodes.advertised, host=host)
        gate = AddressGate(self._nodes, advertised, Share(self._budget))
        self._connections[client.number] = Connection(client.number, about, self._shared, gate, now)
        if self._next_idle_check is None:
            self._next_idle_check = now + self._idle.ns
            self._set_next_wake()
        return [Dial(client.number, self._addresses(client.node_id))]

    def rejected(self, client: Accepted, reason: str, now: int) -> list[Action]:
        """Record a client whose handshake failed."""
        number, about = client.number, _connection_facts(client)
        actions: list[Action] = [
            RecordEntries(
                [
                    notes.opened(number, now, about),
                    notes.closed(number, now, about, "tls", reason, "client"),
                ]
            )
        ]
        host = client.address.rpartition(":")[0]
        if self._log_once(f"{host} {reason}"):
            text = f"connection {number} from {client.address}: TLS failed: {reason}"
            actions.append(Log(text, "warning"))
        return actions

    def dialled(
        self,
        number: int,
        broker: Address,
        now: int,
        tls: TlsSession | None = None,
        login: LoginSession | None = None,
    ) -> list[Action]:
        """Note that the broker of a connection answered at this address."""
        if broker in self._settings.bootstrap:
            self._last_bootstrap_index = self._settings.bootstrap.index(broker)
        connection = self._connections.get(number)
        if connection is None:
            return []
        if tls:
            connection.about["broker_tls"] = _recorded(tls)
        actions = connection.dialled(f"{broker[0]}:{broker[1]}", now, login)
        actions += self._down.answered(connection.about["node_id"], now, login is not None)
        self._set_next_wake()
        return actions

    def logged_in(self, number: int, login: LoginSession, now: int) -> list[Action]:
        """Let a connection go on, which kproxy has logged in anew."""
        connection = self._connections.get(number)
        if connection is None:
            return []
        return self._after_event(connection, connection.logged_in(login, now), now)

    def not_dialled(self, number: int, reason: str, refused: bool, now: int) -> list[Action]:
        """End a connection: no address of its broker answered."""
        connection = self._connections.get(number)
        if connection is None:
            return []
        # First: a client that finds its connection closed may come back at once.
        actions = self._down.not_dialled(connection.about["node_id"], reason, refused, now)
        ending = connection.end(Side.BROKER, "down", reason, now)
        actions += self._after_event(connection, ending, now)
        self._set_next_wake()
        return actions

    def probed(
        self,
        node_id: int | None,
        addresses: Sequence[Address],
        failure: str,
        login_failed: bool,
        now: int,
    ) -> list[Action]:
        """Take the result of a Probe."""
        actions = self._down.probed(node_id, addresses, failure, login_failed, now)
        self._set_next_wake()
        return actions

    def probe_anew(self, now: int) -> list[Action]:
        """Find out at once who can be reached: kproxy has other credentials, or trusts others."""
        self._down.probe_anew(now)
        return self.wake(now)

    def receive(self, number: int, side: Side, data: bytes, now: int) -> list[Action]:
        """Take bytes that arrived on a connection from one side."""
        connection = self._connections.get(number)
        if connection is None:
            return []
        self._interests.refresh()
        actions, more = connection.receive(side, data, now)
        return self._after_event(connection, actions, now) if more else actions

    def all_sent(self, number: int, side: Side, now: int) -> list[Action]:
        """Do nothing: nothing waits for it."""
        return []

    def closed(self, number: int, side: Side, how: str, reason: str, now: int) -> list[Action]:
        """Take the end of one side: it half-closed ("eof") or broke (any other `how`)."""
        connection = self._connections.get(number)
        if connection is None:
            return []
        return self._after_event(connection, connection.closed(side, how, reason, now), now)

    def listening(self, node_id: int, address: Address, now: int) -> list[Action]:
        """Note that the listener of a node is open; let the responses go that waited for it."""
        self._nodes.listening(node_id, address)
        self._requested_listeners.discard(node_id)
        actions = self._down.listening(node_id, now)
        self._set_next_wake()
        for connection in list(self._connections.values()):
            if connection.gate.parked and not connection.gate.awaited:
                actions += self._after_event(connection, connection.resume(now), now)
        # Opening a listener may let more responses go on any connection: behind all of these.
        return sorted(actions, key=lambda action: isinstance(action, Listen))

    def not_listening(self, node_id: int, reason: str, now: int) -> list[Action]:
        """Close the connections with a response that names a node whose listener cannot open."""
        self._requested_listeners.discard(node_id)
        self._nodes.forget(node_id)
        self._down.not_listening(node_id, now)
        self._set_next_wake()
        waiting = [each for each in self._connections.values() if node_id in each.gate.awaited]
        return self._end(waiting, "refused", f"no listener for node {node_id}: {reason}", now)

    def learn(self, note: Note) -> None:
        """Take a note of a schema: from here on, rules look into the records that name it."""
        self._shared.topics.names.note(note.body)

    def discovered(self, brokers: list[BrokerAddress], now: int) -> list[Action]:
        """Open listeners for brokers found by discovery, before a response has named them.

        So a client that knew us before a restart finds the listener of its broker open again.
        """
        try:
            return self._listen(self._nodes.learn(brokers, now), now)
        except Violation as error:
            return [Log(str(error), "warning")]

    @property
    def named(self) -> dict[int, tuple[Address, int]]:
        """Node id → the address of each broker that a response has named, and when one last did."""
        return self._nodes.named

    def restored(self, seen: Mapping[int, Address]) -> list[Action]:
        """Open listeners at the start: for brokers that were seen before it, and for those to which
        the user gave a port. Until a response names one, its address is a guess, and a bootstrap
        broker stands in for it where nobody answers."""
        bootstrap = self._settings.bootstrap[0]
        guessed = dict.fromkeys(self._settings.node_ports, bootstrap) | dict(seen)
        first = sorted(guessed, key=lambda node_id: node_id not in self._settings.node_ports)
        brokers = {node_id: guessed[node_id] for node_id in first[: self._settings.nodes_max]}
        return self._listen(brokers, 0)

    def wake(self, now: int) -> list[Action]:
        """Do what is due: send delayed bytes, give connections turns, close idle connections."""
        actions = self._down.probe(now)
        while (number := self._due.take(now)) is not None:
            connection = self._connections[number]
            due_ns = connection.next_due_ns
            is_due = due_ns is not None and due_ns <= now  # it may have put it off meanwhile
            actions += self._after_event(connection, connection.wake(now) if is_due else [], now)
        if self._turns:
            # One connection in each wake: what arrived on others meanwhile comes before the next.
            number = next(iter(self._turns))
            del self._turns[number]
            self._next_turn_ns = now + 1
            self._interests.refresh()
            connection = self._connections[number]
            actions += self._after_event(connection, connection.wake(now), now)
        if self._next_idle_check is not None and self._next_idle_check <= now:
            actions += self._close_idle(now)
        self._set_next_wake()
        return actions

    def _set_next_wake(self) -> None:
        turn_ns = self._next_turn_ns if self._turns else None
        due_ns = (self._due.next_ns, self._down.next_probe_ns, self._next_idle_check, turn_ns)
        self.next_wake = min((each for each in due_ns if each is not None), default=None)

    def _close_idle(self, now: int) -> list[Action]:
        idle = [
            each
            for each in self._connections.values()
            if self._idle.is_over(each.last_ns, now) and not each.holds_back
        ]
        actions = self._end(idle, "idle", self._idle.reason, now)
        last_ns = (each.last_ns for each in self._connections.values())
        self._next_idle_check = self._idle.next_check(last_ns, now)
        return actions

    def end(self, number: int, now: int) -> list[Action]:
        """End a connection for the operator; do nothing if it is not open."""
        connection = self._connections.get(number)
        return self._end(
            [connection] if connection else [], "refused", "the operator ended it", now
        )

    def drain(self, now: int) -> list[Action]:
        """Take no further request, and close each connection as soon as nothing is due on it."""
        actions: list[Action] = []
        for connection in list(self._connections.values()):
            actions += self._after_event(connection, connection.drain(now), now)
        return actions

    def stop(self, now: int) -> list[Action]:
        """Close every connection: the proxy stops."""
        actions = self._end(list(self._connections.values()), "stopped", "", now)
        self._down.stop()
        self._set_next_wake()
        return actions

    def _end(
        self, connections: Iterable[Connection], how: str, reason: str, now: int
    ) -> list[Action]:
        actions: list[Action] = []
        for connection in connections:
            ending = connection.end(None, how, reason, now)
            actions += self._after_event(connection, ending, now)
        return actions

    def _after_event(self, connection: Connection, actions: list[Action], now: int) -> list[Action]:
        number = connection.number
        if connection.over:
            self._connections.pop(number, None)
            self._due.forget(number)
            self._turns.pop(number, None)
            if not self._connections:
                self._next_idle_check = None
                self._set_next_wake()
            return actions
        if connection.wants_turn:
            self._turns[number] = None
            self._next_turn_ns = now + 1
            self._set_next_wake()
        if self._due.note(number, connection.next_due_ns):
            self._set_next_wake()
        if connection.gate.parked and (awaited := connection.gate.awaited):
            try:
                return [*actions, *self._listen(awaited, now)]
            except Violation as error:
                ending = connection.closed(Side.BROKER, "violation", str(error), now)
                return actions + self._after_event(connection, ending, now)
        return actions

    def _listen(self, brokers: Mapping[int, Address], now: int) -> list[Action]:
        """Open listeners for brokers, all of them or none.

        Raises:
            Violation: there are more brokers than may have a listener.
        """
        in_use = {each.about["node_id"] for each in self._connections.values()}
        _, removed = self._nodes.add(brokers, in_use, now)
        self._down.forget(removed)
        actions: list[Action] = [Unlisten(node_id) for node_id in removed]
        listen_port = self._settings.listen_port
        missing = sorted(brokers.keys() - self._requested_listeners)
        self._requested_listeners.update(missing)
        for node_id in missing:
            port = listener_port(node_id, listen_port, self._settings.node_ports)
            if not port and listen_port:
                text = f"node {node_id} is too large for its usual port, it gets any (--node-port)"
                actions.append(Log(text, "warning"))
            actions.append(Listen(node_id, port))
        return actions

    def _log_once(self, text: str) -> bool:
        if text in self._logged or len(self._logged) >= _LOGGED_MAX:
            return False
        self._logged.add(text)
        return True

    def _addresses(self, node_id: int | None) -> Sequence[Address]:
        if node_id is not None:
            node = self._nodes.by_id.get(node_id)
            if node is None:  # its listener has just been closed
                return ()
            if node.named_ns:
                return (node.broker,)
            return [*dict.fromkeys((node.broker, *self._bootstrap))]
        return self._bootstrap

    @property
    def _bootstrap(self) -> Sequence[Address]:
        """The bootstrap addresses, the one that answered last first."""
        bootstrap = self._settings.bootstrap
        return [*bootstrap[self._last_bootstrap_index :], *bootstrap[: self._last_bootstrap_index]]


def _connection_facts(client: Accepted) -> dict[str, Any]:
    """Return the facts that the recording gets of a connection before its broker is known."""
    return {
        "node_id": client.node_id,
        "client_address": client.address,
        "listener": "{}:{}".format(*client.local_address),
        "broker_address": None,
    }


def _recorded(tls: TlsSession) -> dict[str, Any]:
    """Return what is always recorded of TLS."""
    return attrs.asdict(tls, filter=lambda field, _: field.name != "subject")
