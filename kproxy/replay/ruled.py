"""A replaying broker with rules: the proxy's own connections in front of it, in memory.

::

                 ┌─ Dial, Send, Eof, Close ──▶┐
    clients ═ Cluster, with rules          ReplayBroker
                 └◀───────────── Send, Close ─┘

So rules are decided and carried out as in a proxy between clients and brokers, and what passes is
recorded as there. It satisfies `proxy.machine.Machine`; the listeners are those of the broker.

Invariants: what one of them does is an event of the other, at the same time, behind all that was
done before. What the broker sends while the proxy does not want it, or the client does not take
what was sent before, waits here and counts as not taken, so that the broker sends no more: when it
is read, the broker is told to go on. A broker that closes a connection sends nothing more: what
waits goes to the proxy, and the client's side ends behind it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator

import attrs

from kproxy.exchange.entities import TopicNames
from kproxy.exchange.entries import ChunkTimes, Side
from kproxy.proxy.actions import (
    Action,
    Address,
    Close,
    Dial,
    Eof,
    Listen,
    Pause,
    RecordEntries,
    Resume,
    Send,
)
from kproxy.proxy.cluster import Cluster
from kproxy.proxy.machine import Accepted, ClientSideOnly, Machine, OpenConnection
from kproxy.proxy.settings import Settings
from kproxy.proxy.verdicts import Decider
from kproxy.replay.broker import ReplayBroker
from kproxy.wire.protocol.plain import uuid_text

_CLIENT, _BROKER = Side.CLIENT, Side.BROKER
_IN_MEMORY = ("replay", 0)
"""The address of the broker, which nobody dials."""
_NEVER_SECONDS = 1e9
"""The broker ends idle connections, and knows those that wait for it."""
_NODES_MAX = 1 << 31
"""The listeners are the broker's, however many there are."""


@attrs.define(eq=False)
class _RuledConnection:
    """A connection, between the proxy and the broker."""

    client: Accepted
    unread: deque[Send] = attrs.field(factory=deque[Send])
    """What the broker has sent and the proxy has not read."""
    read: bool = True
    """The proxy wants to read from the broker."""
    sent: deque[tuple[int, ChunkTimes]] = attrs.field(factory=deque[tuple[int, ChunkTimes]])
    """What may not have left yet: in which event it was sent to the client, and when it leaves."""
    closed: bool = False
    """The broker has closed it."""
    pausing: set[str] = attrs.field(factory=set[str])
    """Who does not read from the client."""


class RuledBroker(ClientSideOnly):
    """A replaying broker behind rules. Feed it events; perform, in order, the actions."""

    def __init__(self, broker: ReplayBroker, rules: Decider) -> None:
        state = broker.state
        names = TopicNames(schemas=state.loaded.schemas)
        for topic_id, name in state.cluster.names.items():
            names.note({"topic_id": uuid_text(topic_id), "topic": name})
        settings = Settings(
            [_IN_MEMORY],
            advertised_host=state.settings.advertised_host,
            idle_seconds=_NEVER_SECONDS,
            nodes_max=_NODES_MAX,
            request_bytes_max=state.settings.request_bytes_max,
            hang_up_hints=False,
            held_bytes_max=state.settings.held_bytes_max,
        )
        self._broker = broker
        self._proxy = Cluster(settings, rules, names)
        self._connections: dict[int, _RuledConnection] = {}
        self._event = 1
        """Counts events."""

    # ---- events

    @property
    def next_wake(self) -> int | None:
        """The time of the next `wake`."""
        due = self._proxy.next_wake, self._broker.next_wake
        return min((each for each in due if each is not None), default=None)

    def start(self, now: int) -> list[Action]:
        """Open the listeners of the recording's brokers."""
        return self._broker.start(now)

    def accepted(self, client: Accepted, now: int) -> list[Action]:
        """Take a client's connection."""
        self._connections[client.number] = _RuledConnection(client)
        return self._perform(now, self._proxy.accepted(client, now))

    def receive(self, number: int, side: Side, data: bytes, now: int) -> list[Action]:
        """Take bytes from a client."""
        return self._perform(now, self._proxy.receive(number, side, data, now))

    def all_sent(self, number: int, side: Side, now: int) -> list[Action]:
        """Go on: a client has taken what was sent to it."""
        connection = self._connections.get(number)
        return [] if connection is None else self._run(self._read(connection, now), now)

    def closed(self, number: int, side: Side, how: str, reason: str, now: int) -> list[Action]:
        """Take the end of a client's connection."""
        return self._perform(now, self._proxy.closed(number, side, how, reason, now))

    def listening(self, node_id: int, address: Address, now: int) -> list[Action]:
        """Note the address of a broker's listener that is open now, also for rules."""
        opened = self._broker.listening(node_id, address, now)
        return self._perform(now, self._proxy.restored({node_id: address}), opened)

    def not_listening(self, node_id: int, reason: str, now: int) -> list[Action]:
        """Log a broker whose listener could not be opened."""
        return self._perform(now, (), self._broker.not_listening(node_id, reason, now))

    def wake(self, now: int) -> list[Action]:
        """Do what is due."""
        proxy = self._proxy.wake(now) if _is_due(self._proxy, now) else ()
        broker = self._broker.wake(now) if _is_due(self._broker, now) else ()
        return self._perform(now, proxy, broker)

    def stop(self, now: int) -> list[Action]:
        """Close every connection; report the records that were not committed."""
        return self._perform(now, self._proxy.stop(now), self._broker.stop(now))

    # ---- for an operator

    @property
    def connections(self) -> Iterator[OpenConnection]:
        """The open connections, the oldest first."""
        return (attrs.evolve(each, broker_address=None) for each in self._proxy.connections)

    def end(self, number: int, now: int) -> list[Action]:
        """End a connection for the operator; do nothing if it is not open."""
        return self._perform(now, self._proxy.end(number, now))

    # ---- between the two

    def _perform(
        self, now: int, of_proxy: Iterable[Action], of_broker: Iterable[Action] = ()
    ) -> list[Action]:
        """Give each of them what the other does; return what concerns the clients."""
        by_broker = _by(self._take_from_broker, of_broker)
        return self._run([*_by(self._take_from_proxy, of_proxy), *by_broker], now)

    def _run(self, due: _Due, now: int) -> list[Action]:
        waiting, outward = deque(due), list[Action]()
        while waiting:
            take, action = waiting.popleft()
            waiting += take(action, now, outward)
        self._event += 1
        return outward

    def _read(self, connection: _RuledConnection, now: int) -> _Due:
        """Have the proxy read what waits, and the broker send more."""
        number = connection.client.number
        unread, connection.unread = connection.unread, deque()
        found = [then for each in unread for then in self._take_from_broker(each, now, [])]
        more = self._broker.all_sent(number, _CLIENT, now)
        return [*found, *_by(self._take_from_broker, more)]

    def _pass(self, sent: Send, now: int) -> list[Action]:
        """Give the proxy what the broker has sent."""
        for times in sent.timed:
            times.sent_ns = now
        return self._proxy.receive(sent.connection, _BROKER, b"".join(sent.pieces), now)

    def _take_from_proxy(self, action: Action, now: int, outward: list[Action]) -> _Due:
        """Take what the proxy does."""
        proxy, broker = self._proxy, self._broker
        if isinstance(action, Listen):
            node_id = action.node_id  # without a listener, the broker names where it was reached
            address = broker.state.listening.get(node_id) or proxy.named[node_id][0]
            return _by(self._take_from_proxy, proxy.listening(node_id, address, now))
        connection = self._connections.get(getattr(action, "connection", 0))
        if connection is None:
            outward.append(action)
            return []
        number = connection.client.number
        if isinstance(action, Dial):
            taken = _by(self._take_from_broker, broker.accepted(connection.client, now))
            return [*taken, *_by(self._take_from_proxy, proxy.dialled(number, _IN_MEMORY, now))]
        if isinstance(action, Close):
            del self._connections[number]
            outward.append(action)
            return _by(self._take_from_broker, broker.closed(number, _CLIENT, "closed", "", now))
        if isinstance(action, Eof) and action.side is _CLIENT:  # the broker has closed both sides
            ended = proxy.closed(number, _CLIENT, "stopped", "", now)
            return _by(self._take_from_proxy, ended)
        if not isinstance(action, Send | Eof | Pause | Resume) or action.side is _CLIENT:
            self._tell_client(connection, action, "proxy", outward)
            return []
        if isinstance(action, Send) and action.entries:
            outward.append(RecordEntries([*action.entries]))
        if isinstance(action, Pause | Resume):
            connection.read = isinstance(action, Resume)
            return self._read(connection, now) if connection.read else []
        if connection.closed:  # it resets whoever sends to it
            gone = proxy.closed(number, _BROKER, "reset", "", now)
            return _by(self._take_from_proxy, gone)
        if isinstance(action, Eof):
            return _by(self._take_from_broker, broker.closed(number, _CLIENT, "eof", "", now))
        for times in action.timed:
            times.sent_ns = now
        data = b"".join(action.pieces)
        return _by(self._take_from_broker, broker.receive(number, _CLIENT, data, now))

    def _take_from_broker(self, action: Action, now: int, outward: list[Action]) -> _Due:
        """Take what the broker does."""
        number = getattr(action, "connection", 0)
        connection = self._connections.get(number)
        if not number:
            outward.append(action)
        elif connection is None:
            pass  # the proxy has closed it
        elif not isinstance(action, Send | Close):
            self._tell_client(connection, action, "broker", outward)
        elif isinstance(action, Close):
            connection.closed = True
            how = "reset" if action.abrupt else "eof"
            rest = [then for each in connection.unread for then in self._pass(each, now)]
            connection.unread.clear()
            ended = self._proxy.closed(number, _BROKER, how, "", now)
            return _by(self._take_from_proxy, [*rest, *ended])
        elif not connection.read or connection.unread or self._is_blocked(connection):
            connection.unread.append(action)
        else:
            return _by(self._take_from_proxy, self._pass(action, now))
        return []

    def _is_blocked(self, connection: _RuledConnection) -> bool:
        """Return whether the client has not taken what was sent to it in an earlier event."""
        _drop_left(connection.sent)
        return bool(connection.sent) and connection.sent[0][0] != self._event

    def _tell_client(
        self, connection: _RuledConnection, action: Action, who: str, outward: list[Action]
    ) -> None:
        """Do something on the client's side; it is read from while both want that."""
        pausing = connection.pausing
        paused = bool(pausing)
        if isinstance(action, Send):
            _drop_left(connection.sent)
            connection.sent.append((self._event, times := ChunkTimes(0)))
            action.timed = [*action.timed, times]
        elif isinstance(action, Pause):
            pausing.add(who)
        elif isinstance(action, Resume):
            pausing.discard(who)
        if not isinstance(action, Pause | Resume) or bool(pausing) is not paused:
            outward.append(action)


_Take = Callable[[Action, int, list[Action]], "_Due"]
_Due = Iterable[tuple[_Take, Action]]
"""Actions, and who takes them."""


def _by(take: _Take, actions: Iterable[Action]) -> _Due:
    return [(take, action) for action in actions]


def _drop_left(sent: deque[tuple[int, ChunkTimes]]) -> None:
    """Drop what has left, which is what was sent first."""
    while sent and sent[0][1].sent_ns:
        sent.popleft()


def _is_due(machine: Machine, now: int) -> bool:
    return machine.next_wake is not None and machine.next_wake <= now
