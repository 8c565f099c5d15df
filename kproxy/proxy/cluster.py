"""The proxy as one state machine: what all connections share, and the events that drive it.

::

    accepted · dialled · receive · closed · listening · wake
          │
          ▼
    Cluster ── node id → broker address, our listener
       ├── Connection
       └── Connection …
          │
          ▼
    [Dial, Send, Eof, Pause, Resume, Close, Listen, Record, Log]

Invariants: it knows no socket, file, clock or chance; time (`now`, integer nanoseconds) and
everything else come as arguments. Node ids and the cluster id are never changed, because clients
tell a broker which node they believe it to be (KIP-1242); there is one listener per node id, at
the same port after every restart, and no response names a node before its listener is open.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from kproxy.exchange.entries import Side
from kproxy.proxy.actions import Action, Address, Dial, Listen, Log
from kproxy.proxy.connection import Connection
from kproxy.proxy.nodes import Nodes
from kproxy.proxy.rewrite import BrokerAddress
from kproxy.proxy.settings import Settings
from kproxy.proxy.stream import Violation

_PORT_MAX = 65_535
_WAKE_NS = 1_000_000_000


class Cluster:
    """The machine. Feed it events; perform, in order, the actions that it answers with."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._nodes = Nodes(settings.nodes_max)
        self._connections: dict[int, Connection] = {}
        self._numbers = itertools.count(1)
        self._asked: set[int] = set()
        self._down: dict[int | None, int] = {}
        """How many connections to a node (None: bootstrap) have ended because it is down; 0: it
        answers."""
        self._last_bootstrap = 0
        self._next_idle_check: int | None = None

    @property
    def next_wake(self) -> int | None:
        """When `wake` wants to be called, or None while nothing is open."""
        return self._next_idle_check

    @property
    def busy(self) -> bool:
        """Whether any request is still to be answered, to the last byte."""
        return any(connection.busy for connection in self._connections.values())

    @property
    def reachable(self) -> dict[int | None, bool]:
        """Whether the last attempt to connect a client to a node (None: bootstrap) succeeded."""
        return {node_id: not ended for node_id, ended in self._down.items()}

    def accepted(
        self,
        number: int,
        node_id: int | None,
        client_address: str,
        local_address: Address,
        now: int,
    ) -> list[Action]:
        """A client connected to the listener of a node (None: bootstrap), at our `local_address`.

        `number` names the connection from here on and is never used again.
        """
        host = self._settings.advertised_host or local_address[0]
        about = {
            "node_id": node_id,
            "client_address": client_address,
            "listener": f"{local_address[0]}:{local_address[1]}",
            "broker_address": None,
        }
        advertised = self._nodes.advertised(host)
        self._connections[number] = Connection(
            number, about, self._settings, self._numbers, self._nodes, advertised, now
        )
        if self._next_idle_check is None:
            self._next_idle_check = now + _WAKE_NS
        return [Dial(number, self._addresses(node_id))]

    def dialled(self, number: int, broker: Address, now: int) -> list[Action]:
        """The broker of a connection answered at this address."""
        if broker in self._settings.bootstrap:
            self._last_bootstrap = self._settings.bootstrap.index(broker)
        connection = self._connections.get(number)
        if connection is None:
            return []
        actions = connection.dialled(f"{broker[0]}:{broker[1]}", now)
        node_id = connection.about["node_id"]
        ended, self._down[node_id] = self._down.get(node_id, 0), 0
        if ended:
            text = f"{_name(node_id)} answers again; {ended} connections have ended meanwhile"
            actions.append(Log(text))
        return actions

    def not_dialled(self, number: int, reason: str, now: int) -> list[Action]:
        """No address of the broker of a connection answered."""
        connection = self._connections.get(number)
        if connection is None:
            return []
        node_id = connection.about["node_id"]
        ended = self._down[node_id] = self._down.get(node_id, 0) + 1
        actions = self._after(connection, connection.not_dialled(reason, now))
        if ended == 1:
            name = _name(node_id)
            actions.append(Log(f"{name} is down, connections to it end: {reason}"))
        return actions

    def receive(self, number: int, side: Side, data: bytes, now: int) -> list[Action]:
        """Bytes arrived on a connection from one side."""
        connection = self._connections.get(number)
        if connection is None:
            return []
        actions = connection.receive(side, data, now)
        if connection.responses.waiting or connection.over:
            return self._after(connection, actions)
        return actions

    def closed(self, number: int, side: Side, how: str, reason: str, now: int) -> list[Action]:
        """One side of a connection half-closed ("eof") or broke (another word for how)."""
        connection = self._connections.get(number)
        if connection is None:
            return []
        return self._after(connection, connection.closed(side, how, reason, now))

    def listening(self, node_id: int, address: Address, now: int) -> list[Action]:
        """The listener that a node asked for is open."""
        self._nodes.listening(node_id, address)
        self._asked.discard(node_id)
        actions: list[Action] = []
        for connection in list(self._connections.values()):
            waiting = connection.responses.waiting
            if node_id in waiting:
                waiting.discard(node_id)
                if not waiting:
                    actions += self._after(connection, connection.resume(now))
        # Opening a listener may let more responses go on any connection: behind all of these.
        return sorted(actions, key=lambda action: isinstance(action, Listen))

    def not_listening(self, node_id: int, reason: str, now: int) -> list[Action]:
        """No listener could be opened for a node: the responses that name it cannot leave."""
        self._asked.discard(node_id)
        actions: list[Action] = []
        for connection in list(self._connections.values()):
            if node_id in connection.responses.waiting:
                why = f"no listener for node {node_id}: {reason}"
                actions += self._after(connection, connection.close("refused", why, now))
        return actions

    def discovered(self, brokers: list[BrokerAddress]) -> list[Action]:
        """A broker was asked for the brokers of its cluster, before any client has: so a client
        that knew us before a restart finds the listener of its broker open again."""
        try:
            return self._listen(self._nodes.learn(brokers))
        except Violation as error:
            return [Log(str(error))]

    def wake(self, now: int) -> list[Action]:
        """Time has passed: close what has been idle for too long."""
        idle_ns = int(self._settings.idle_seconds * 1e9)
        actions: list[Action] = []
        for connection in list(self._connections.values()):
            if now - connection.last_ns >= idle_ns:
                why = f"nothing arrived for {self._settings.idle_seconds:g} s"
                actions += self._after(connection, connection.close("idle", why, now))
        self._next_idle_check = now + _WAKE_NS if self._connections else None
        return actions

    def stop(self, now: int) -> list[Action]:
        """The proxy stops: close every connection."""
        actions: list[Action] = []
        for connection in list(self._connections.values()):
            actions += self._after(connection, connection.close("stopped", "", now))
        return actions

    def _after(self, connection: Connection, actions: list[Action]) -> list[Action]:
        if connection.over:
            self._connections.pop(connection.number, None)
            return actions
        return [*actions, *self._listen(connection.responses.waiting)]

    def _listen(self, node_ids: set[int]) -> list[Action]:
        asked = sorted(node_ids - self._asked)
        self._asked.update(asked)
        actions: list[Action] = []
        for node_id in asked:
            port = self._port(node_id)
            if not port and self._settings.listen_port:
                text = f"node {node_id} is too large for its usual port, it gets any (--node-port)"
                actions.append(Log(text))
            actions.append(Listen(node_id, port))
        return actions

    def _addresses(self, node_id: int | None) -> Sequence[Address]:
        if node_id is not None:
            return (self._nodes.by_id[node_id].broker,)
        bootstrap = self._settings.bootstrap
        return [*bootstrap[self._last_bootstrap :], *bootstrap[: self._last_bootstrap]]

    def _port(self, node_id: int) -> int:
        fixed = self._settings.node_ports.get(node_id)
        if fixed is not None or self._settings.listen_port == 0:
            return fixed or 0
        port = self._settings.listen_port + 1 + node_id
        return port if port <= _PORT_MAX else 0


def _name(node_id: int | None) -> str:
    return "the bootstrap broker" if node_id is None else f"node {node_id}"
