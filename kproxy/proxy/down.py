"""The nodes that are down, and the probes that find out that one is up again.

::

    a dial is refused ─▶ Refuse ─▶ Probe ─ no answer ─▶ Probe … ─ an answer ─▶ Listen ─▶ it is up
                                     └── 200 ms apart, after 10 s a second ──┘

    each second: is the bootstrap, or a node that no client uses, due? ─▶ Probe ─▶ `reachable`

A broker that is down refuses its clients, which then wait or try another one; they react
differently to a broker that takes their connections and ends them. So the listener of a node
refuses for as long as its broker does. The bootstrap listener stays open: people wait for it.

The latter with `Settings.probes` alone, for the metrics and /readyz: a new broker is due within a
second, then every ten. The bootstrap is due every two, also while clients use it: /readyz says
whether more can come, and a connection that was opened long ago does not show that.

Invariants: one probe of a node that refuses is under way at most, and of all others `_PROBES_MAX`;
without `Settings.probes`, nothing is due while no node refuses; a node that is forgotten is
forgotten here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

import attrs

from kproxy.levels import warning
from kproxy.proxy import diagnosis
from kproxy.proxy.actions import Action, Address, Listen, Log, Probe, Refuse
from kproxy.proxy.nodes import Node, Nodes

_PROBE_INTERVAL_NS = 200_000_000
_FREQUENT_PROBES_NS = 10_000_000_000
"""A node that is down for longer than this is probed less often."""
_LATER_PROBE_INTERVAL_NS = 1_000_000_000
_ROUND_NS = 1_000_000_000
"""The interval at which it is found out which of the brokers that do not refuse are due."""
_UNUSED_INTERVAL_NS, _BOOTSTRAP_INTERVAL_NS = 10_000_000_000, 2_000_000_000
_PROBES_MAX = 16
"""Probes of brokers that do not refuse, at once."""


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
    _bootstrap: Callable[[], Sequence[Address]]
    _used: Callable[[], Collection[int | None]]
    """Returns the node ids (None: bootstrap) of brokers to which a connection leads."""
    _next_round_ns: int | None
    """The time at which those that do not refuse are probed next; None: they never are."""
    _due_ns: dict[int | None, int] = attrs.field(factory=dict, init=False)
    """Node id → the time of its next probe, once there was one; not of nodes that are used."""
    _probing: set[int | None] = attrs.field(factory=set, init=False)
    """The nodes that do not refuse and of which a probe is under way."""
    _ended_connections: dict[int | None, int | None] = attrs.field(factory=dict, init=False)
    """Node id (None: bootstrap) → the connections that ended because it is down, which has been
    logged; None: it answers."""
    _refusing: dict[int, _Refusing] = attrs.field(factory=dict, init=False)

    @property
    def reachable(self) -> dict[int | None, bool]:
        """Node id (None: bootstrap) → True if the last attempt to reach it succeeded."""
        return {node_id: ended is None for node_id, ended in self._ended_connections.items()}

    @property
    def next_probe_ns(self) -> int | None:
        """The time of the next `probe`; None while there is nothing to probe."""
        if not self._refusing:
            return self._next_round_ns
        due = (self._next_round_ns, *(each.probe_ns for each in self._refusing.values()))
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
            self._probing.discard(node_id)
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
        self._probing.discard(node_id)  # what is under way may find out less
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
        actions = [action for node_id in due for action in self._probe(node_id)]
        if self._next_round_ns is not None and self._next_round_ns <= now:
            self._next_round_ns = now + _ROUND_NS
            actions += self._probe_others(now)
        return actions

    def _probe_others(self, now: int) -> list[Action]:
        """Probe brokers that do not refuse and are due, those first that are due for longest."""
        known = {node_id: (node.broker,) for node_id, node in self._nodes.by_id.items()}
        left_out = {*self._used(), *self._refusing} - {None}
        others = {None: self._bootstrap()} | known
        self._due_ns = {each: due for each, due in self._due_ns.items() if each not in left_out}
        due = [
            node_id
            for node_id in others.keys() - left_out - self._probing
            if self._due_ns.get(node_id, 0) <= now
        ]
        due.sort(key=lambda node_id: self._due_ns.get(node_id, 0))
        chosen = due[: max(0, _PROBES_MAX - len(self._probing))]
        for node_id in chosen:
            self._probing.add(node_id)
            interval_ns = _BOOTSTRAP_INTERVAL_NS if node_id is None else _UNUSED_INTERVAL_NS
            self._due_ns[node_id] = now + interval_ns
        return [Probe(node_id, others[node_id]) for node_id in chosen]

    def probed(
        self, node_id: int | None, addresses: Sequence[Address], answers: bool, now: int
    ) -> list[Action]:
        """Take the result of a probe."""
        node = self._node(node_id)
        has_moved = node is not None and addresses != (node.broker,)
        if node_id is None or node_id not in self._refusing:
            if node_id not in self._probing:  # a connection has shown more meanwhile
                return []
            self._probing.discard(node_id)
            if has_moved:
                self._due_ns.pop(node_id, None)
                return []
            return self._mark_up(node_id) if answers else self._mark_down(node_id)
        refusing = self._refusing[node_id]
        if refusing.probe_ns is not None or refusing.listen_requested:
            return []
        if has_moved:
            return self._probe(node_id)
        if answers:
            return self.answered(node_id)
        refusing.probe_ns = now + _probe_interval_ns(refusing, now)
        return []

    def forget(self, node_ids: Iterable[int]) -> None:
        """Forget nodes that have lost their listener."""
        for node_id in node_ids:
            self._ended_connections.pop(node_id, None)
            self._refusing.pop(node_id, None)
            self._probing.discard(node_id)
            self._due_ns.pop(node_id, None)

    def stop(self) -> None:
        """Probe no broker any more."""
        self._refusing.clear()
        self._next_round_ns = None

    def _node(self, node_id: int | None) -> Node | None:
        return None if node_id is None else self._nodes.by_id.get(node_id)

    def _probe(self, node_id: int) -> list[Action]:
        self._refusing[node_id].probe_ns = None
        return [Probe(node_id, (self._nodes.by_id[node_id].broker,))]

    def _mark_down(self, node_id: int | None) -> list[Action]:
        if node_id is None and None not in self._ended_connections:
            return []  # it has not been up yet
        is_new = self._ended_connections.get(node_id) is None
        self._ended_connections[node_id] = self._ended_connections.get(node_id) or 0
        return [Log(warning(f"{_node_text(node_id)} takes no connections"))] if is_new else []

    def _mark_up(self, node_id: int | None) -> list[Action]:
        ended = self._ended_connections.get(node_id)
        self._ended_connections[node_id] = None
        if ended is None:
            return []
        meanwhile = f"; {ended} connections have ended meanwhile" if ended else ""
        return [Log(f"{_node_text(node_id)} answers again{meanwhile}")]


def _probe_interval_ns(refusing: _Refusing, now: int) -> int:
    frequent = now - refusing.since_ns < _FREQUENT_PROBES_NS
    return _PROBE_INTERVAL_NS if frequent else _LATER_PROBE_INTERVAL_NS


def _node_text(node_id: int | None) -> str:
    return "the bootstrap broker" if node_id is None else f"node {node_id}"
