"""The nodes that are down, and the probes that find out that one is up again.

::

    a dial is refused ─▶ Refuse ─▶ Probe ─ no answer ─▶ Probe … ─ an answer ─▶ Listen ─▶ it is up
                                     └── 200 ms apart, after 10 s a second ──┘

A broker that is down refuses its clients, which then wait or try another one; they react
differently to a broker that takes their connections and ends them. So the listener of a node
refuses for as long as its broker does. The bootstrap listener stays open: people wait for it.

Invariants: one probe of a node is under way at most; nothing is due while no node refuses; a node
that is forgotten is forgotten here.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from kproxy.levels import warning
from kproxy.proxy import diagnosis
from kproxy.proxy.actions import Action, Address, Listen, Log, Probe, Refuse
from kproxy.proxy.nodes import Node, Nodes

_PROBE_INTERVAL_NS = 200_000_000
_FREQUENT_PROBES_NS = 10_000_000_000
"""A node that is down for longer than this is probed less often."""
_LATER_PROBE_INTERVAL_NS = 1_000_000_000


@attrs.define(eq=False)
class _Refusing:
    """A node whose listener refuses."""

    since_ns: int
    probe_ns: int | None
    """The time of the next probe; None: a probe, or a Listen, is under way."""
    listen_requested: bool = False
    """A Listen is under way: the broker answers."""


@attrs.define(eq=False)
class Down:
    """Decides which listeners refuse, and for how long."""

    _nodes: Nodes
    _ended_connections: dict[int | None, int | None] = attrs.field(factory=dict, init=False)
    """Node id (None: bootstrap) → the connections that ended because it is down; None: it
    answers."""
    _refusing: dict[int, _Refusing] = attrs.field(factory=dict, init=False)

    @property
    def reachable(self) -> dict[int | None, bool]:
        """Node id (None: bootstrap) → True if the last attempt to reach it succeeded."""
        return {node_id: ended is None for node_id, ended in self._ended_connections.items()}

    @property
    def next_probe_ns(self) -> int | None:
        """The time of the next `probe`; None while there is nothing to probe."""
        if not self._refusing:
            return None
        due = (each.probe_ns for each in self._refusing.values())
        return min((each for each in due if each is not None), default=None)

    def not_dialled(
        self, node_id: int | None, reason: str, refused: bool, now: int
    ) -> list[Action]:
        """Note that no broker could be reached for a client, whose connection ends."""
        node = self._node(node_id)
        if node_id is not None and node is None:  # it has been forgotten just now
            text = f"{_node_text(node_id)} is unknown, a connection to it ends: {reason}"
            return [Log(warning(text))]
        ended = self._ended_connections[node_id] = (self._ended_connections.get(node_id) or 0) + 1
        actions: list[Action] = []
        if refused and node_id is not None and node_id not in self._refusing:
            self._refusing[node_id] = _Refusing(now, now + _PROBE_INTERVAL_NS)
            actions.append(Refuse(node_id))
        if ended == 1:
            if node_id is not None and "advertised.listeners" not in reason:
                reason += f" (the address is from {diagnosis.address_source(node_id)})"
            what = "are refused" if actions else "end"
            text = f"{_node_text(node_id)} is down, connections to it {what}: {reason}"
            actions.append(Log(warning(text)))
        return actions

    def answered(self, node_id: int | None) -> list[Action]:
        """Note that the broker of a node took a connection."""
        refusing = None if node_id is None else self._refusing.get(node_id)
        node = self._node(node_id)
        if node_id is None or refusing is None or node is None or node.listening is None:
            return self._mark_up(node_id)
        if refusing.listen_requested:
            return []
        refusing.probe_ns, refusing.listen_requested = None, True
        return [Listen(node_id, node.listening[1])]

    def listening(self, node_id: int) -> list[Action]:
        """Note that the listener of a node is open."""
        return [] if self._refusing.pop(node_id, None) is None else self._mark_up(node_id)

    def not_listening(self, node_id: int, now: int) -> None:
        """Probe again later: the listener of a node that is up could not be opened."""
        refusing = self._refusing.get(node_id)
        if refusing is not None:
            refusing.listen_requested = False
            refusing.probe_ns = now + _probe_interval_ns(refusing, now)

    def probe(self, now: int) -> list[Action]:
        """Probe the brokers that are due."""
        due = [
            node_id
            for node_id, each in self._refusing.items()
            if each.probe_ns is not None and each.probe_ns <= now
        ]
        return [action for node_id in due for action in self._probe(node_id)]

    def probed(self, node_id: int, address: Address, answers: bool, now: int) -> list[Action]:
        """Take the result of a probe."""
        refusing, node = self._refusing.get(node_id), self._node(node_id)
        if (
            refusing is None
            or node is None
            or refusing.probe_ns is not None
            or refusing.listen_requested
        ):
            return []
        if address != node.broker:  # it has moved meanwhile
            return self._probe(node_id)
        if answers:
            return self.answered(node_id)
        refusing.probe_ns = now + _probe_interval_ns(refusing, now)
        return []

    def looked_at(self, node_id: int | None, answers: bool) -> list[Action]:
        """Take the result of a look at a broker that no client uses."""
        if node_id in self._refusing or (node_id is not None and self._node(node_id) is None):
            return []  # it is probed, or it has been forgotten
        if answers:
            return self._mark_up(node_id)
        was_up = self.reachable.get(node_id, node_id is not None)
        self._ended_connections[node_id] = self._ended_connections.get(node_id) or 0
        return [Log(f"{_node_text(node_id)} takes no connections")] if was_up else []

    def forget(self, node_ids: Iterable[int]) -> None:
        """Forget nodes that have lost their listener."""
        for node_id in node_ids:
            self._ended_connections.pop(node_id, None)
            self._refusing.pop(node_id, None)

    def stop(self) -> None:
        """Probe no broker any more."""
        self._refusing.clear()

    def _node(self, node_id: int | None) -> Node | None:
        return None if node_id is None else self._nodes.by_id.get(node_id)

    def _probe(self, node_id: int) -> list[Action]:
        self._refusing[node_id].probe_ns = None
        return [Probe(node_id, self._nodes.by_id[node_id].broker)]

    def _mark_up(self, node_id: int | None) -> list[Action]:
        ended = self._ended_connections.get(node_id)
        self._ended_connections[node_id] = None
        if ended is None:
            return []
        text = f"{_node_text(node_id)} answers again; {ended} connections have ended meanwhile"
        return [Log(text)]


def _probe_interval_ns(refusing: _Refusing, now: int) -> int:
    frequent = now - refusing.since_ns < _FREQUENT_PROBES_NS
    return _PROBE_INTERVAL_NS if frequent else _LATER_PROBE_INTERVAL_NS


def _node_text(node_id: int | None) -> str:
    return "the bootstrap broker" if node_id is None else f"node {node_id}"
