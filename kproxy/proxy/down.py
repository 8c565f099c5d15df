"""The nodes that are down, and the probes that find out that one is up again.

::

    a dial is refused ─▶ Refuse ─▶ Probe ─ no answer ─▶ Probe … ─ an answer ─▶ Listen ─▶ it is up
                                     └── 200 ms apart, after 10 s a second ──┘

    each second: is the bootstrap, or a node that no client uses, due? ─▶ Probe ─▶ `reachable`
                                                                         (with TLS and login)

A broker that is down refuses its clients, which then wait or try another one; they react
differently to a broker that takes their connections and ends them. So the listener of a node
refuses for as long as its broker does. The bootstrap listener stays open: people wait for it.

The latter with `Settings.probes` alone, for the metrics and /readyz: a new broker is due within a
second, then every ten. The bootstrap is due every two (ten, if a probe logs in), also while clients
use it: /readyz says whether more can come, and a connection that was opened long ago does not show
that. So is a node that is down. A client that does not log in by kproxy reaches a broker at which
kproxy's own login fails: that one stays down until a probe has logged in.

The beginning and the end of each outage are noted in the recording.

Invariants: one probe of a node that refuses is under way at most, and of all others `_PROBES_MAX`;
without `Settings.probes`, nothing is due while no node refuses; a node that is forgotten is
forgotten here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

import attrs

from kproxy.exchange import notes
from kproxy.proxy import diagnosis
from kproxy.proxy.actions import Action, Address, Listen, Log, Probe, RecordEntries, Refuse
from kproxy.proxy.nodes import Node, Nodes

_PROBE_INTERVAL_NS = 200_000_000
_FREQUENT_PROBES_NS = 10_000_000_000
"""A node that is down for longer than this is probed less often."""
_LATER_PROBE_INTERVAL_NS = 1_000_000_000
_ROUND_NS = 1_000_000_000
"""The interval at which it is found out which of the brokers that do not refuse are due."""
_UNUSED_INTERVAL_NS, _BOOTSTRAP_INTERVAL_NS = 10_000_000_000, 2_000_000_000
_LOGIN_INTERVAL_NS = 30_000_000_000
"""The time between logins that fail: many in a row may lock the account."""
_PROBES_MAX = 16
"""Probes of brokers that do not refuse, at once."""


@attrs.define(eq=False)
class _Refusing:
    """The listener of a node refuses."""

    since_ns: int
    probe_ns: int | None
    """The time of the next probe; None: a probe, or a Listen, is under way."""
    listen_requested: bool = False
    """A Listen is under way: the broker answers."""


@attrs.define(eq=False)
class _Outage:
    """A broker is down, which has been noted."""

    since_ns: int
    reason: str
    ended: int = 0
    """The connections that ended because of it."""
    login_failed: bool = False
    is_logged: bool = True


@attrs.define(eq=False)
class _Reach:
    """What is known of one broker."""

    is_tried: bool = False
    """Whether it answers is known: it does unless there is an `outage`."""
    outage: _Outage | None = None
    due_ns: int = 0
    """The time of the next probe of one that does not refuse and is not used."""
    is_probed: bool = False
    """A probe of one that does not refuse is under way …"""
    is_outdated: bool = False
    """… and says nothing of what kproxy has now."""


@attrs.define(eq=False)
class Down:
    """Decides which listeners refuse, and for how long."""

    _nodes: Nodes
    _bootstrap: Callable[[], Sequence[Address]]
    _used: Callable[[], Collection[int | None]]
    """Returns the node ids (None: bootstrap) of brokers to which a connection leads."""
    _next_round_ns: int | None
    """The time at which those that do not refuse are probed next; None: they never are."""
    _logs_in: bool = False
    """A probe logs in."""
    _brokers: dict[int | None, _Reach] = attrs.field(factory=dict, init=False)
    """By node id (None: bootstrap): those that were reached, or not, or are about to be probed."""
    _refusing: dict[int | None, _Refusing] = attrs.field(factory=dict, init=False)
    """By node id, apart: they are looked through at each wake."""

    @property
    def reachable(self) -> dict[int | None, bool]:
        """Node id (None: bootstrap) → True if the last attempt to reach it succeeded."""
        tried = ((node_id, each) for node_id, each in self._brokers.items() if each.is_tried)
        return {node_id: each.outage is None for node_id, each in tried}

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
        if self._is_forgotten(node_id):
            text = f"{_node_text(node_id)} is unknown, a connection to it ends: {reason}"
            return [Log(text, "warning")]
        broker = self._brokers.setdefault(node_id, _Reach())
        actions: list[Action] = []
        if refused and node_id is not None and node_id not in self._refusing:
            self._refusing[node_id] = _Refusing(now, now + _PROBE_INTERVAL_NS)
            broker.is_probed = False
            actions.append(Refuse(node_id))
        if (outage := broker.outage) is None:
            actions += _begin_outage(node_id, broker, outage := _Outage(now, reason))
        outage.ended += 1
        if outage.ended == 1:
            outage.is_logged = True
            if node_id is not None and "advertised.listeners" not in reason:
                reason += f" (the address is from {diagnosis.address_source(node_id)})"
            what = "are refused" if node_id in self._refusing else "end"
            text = f"{_node_text(node_id)} is down, connections to it {what}: {reason}"
            actions.append(Log(text, "warning"))
        return actions

    def answered(self, node_id: int | None, now: int, logged_in: bool = False) -> list[Action]:
        """Note that the broker of a node took a connection, on which kproxy has `logged_in`."""
        if self._is_forgotten(node_id):
            return []
        broker, node = self._brokers.setdefault(node_id, _Reach()), self._node(node_id)
        broker.is_probed = False  # what is under way may find out less
        refusing, outage = self._refusing.get(node_id), broker.outage
        if node_id is None or refusing is None or node is None or node.listening is None:
            hides = outage is not None and outage.login_failed and not logged_in
            return [] if hides else _mark_up(node_id, broker, now)
        if refusing.listen_requested:
            return []
        refusing.probe_ns, refusing.listen_requested = None, True
        return [Listen(node_id, node.listening[1])]

    def listening(self, node_id: int, now: int) -> list[Action]:
        """Note that the listener of a node is open."""
        if self._refusing.pop(node_id, None) is None:
            return []
        return _mark_up(node_id, self._brokers[node_id], now)

    def not_listening(self, node_id: int, now: int) -> None:
        """Probe again later: the listener of a node that is up could not be opened."""
        if self._is_forgotten(node_id):  # it never had one
            self.forget([node_id])
        elif refusing := self._refusing.get(node_id):
            refusing.listen_requested = False
            refusing.probe_ns = now + _probe_interval_ns(refusing, now)

    def probe(self, now: int) -> list[Action]:
        """Probe the brokers that are due."""
        actions = [
            self._probe(node_id, refusing)
            for node_id, refusing in self._refusing.items()
            if (refusing.probe_ns or now + 1) <= now
        ]
        if self._next_round_ns is not None and self._next_round_ns <= now:
            self._next_round_ns = now + _ROUND_NS
            actions += self._probe_others(now)
        return actions

    def _probe_others(self, now: int) -> list[Action]:
        """Probe brokers that do not refuse and are due, those first that are due for longest."""
        others: dict[int | None, Sequence[Address]] = {None: self._bootstrap()}
        others |= {node_id: (node.broker,) for node_id, node in self._nodes.by_id.items()}
        used, due = self._used(), list[int | None]()
        for node_id in others:
            broker = self._brokers.setdefault(node_id, _Reach())
            is_up = not broker.outage and node_id in used
            if node_id is not None and (is_up or node_id in self._refusing):
                broker.due_ns = 0
            elif not broker.is_probed and broker.due_ns <= now:
                due.append(node_id)
        due.sort(key=lambda node_id: self._brokers[node_id].due_ns)
        under_way = sum(each.is_probed for each in self._brokers.values())
        chosen = due[: max(0, _PROBES_MAX - under_way)]
        for node_id in chosen:
            broker = self._brokers[node_id]
            broker.is_probed, broker.is_outdated = True, False
            is_often = node_id is None and not self._logs_in
            broker.due_ns = now + (_BOOTSTRAP_INTERVAL_NS if is_often else _UNUSED_INTERVAL_NS)
        return [Probe(node_id, others[node_id], secured=True) for node_id in chosen]

    def probed(
        self,
        node_id: int | None,
        addresses: Sequence[Address],
        failure: str,
        login_failed: bool,
        now: int,
    ) -> list[Action]:
        """Take the result of a probe."""
        node, broker = self._node(node_id), self._brokers.get(node_id)
        has_moved = node is not None and addresses != (node.broker,)
        refusing = self._refusing.get(node_id)
        if refusing is None:
            if broker is None or not broker.is_probed:  # a connection has shown more meanwhile
                return []
            broker.is_probed = False
            if has_moved or broker.is_outdated:
                broker.due_ns = 0
                return []
            if login_failed:
                broker.due_ns = now + _LOGIN_INTERVAL_NS
            if failure:
                found = _Outage(now, failure, login_failed=login_failed)
                return _mark_down(node_id, broker, found)
            return _mark_up(node_id, broker, now)
        if refusing.probe_ns is not None or refusing.listen_requested:
            return []
        if has_moved:
            return [self._probe(node_id, refusing)]
        if not failure:
            return self.answered(node_id, now)
        refusing.probe_ns = now + _probe_interval_ns(refusing, now)
        return []

    def probe_anew(self, now: int) -> None:
        """Probe all that are not used at once: kproxy has other credentials, or trusts others."""
        for broker in self._brokers.values():
            broker.due_ns, broker.is_outdated = 0, True
        if self._next_round_ns is not None:
            self._next_round_ns = now

    def forget(self, node_ids: Iterable[int]) -> None:
        """Forget nodes that have lost their listener."""
        for node_id in node_ids:
            self._brokers.pop(node_id, None)
            self._refusing.pop(node_id, None)

    def stop(self) -> None:
        """Probe no broker any more."""
        self._refusing.clear()
        self._next_round_ns = None

    def _node(self, node_id: int | None) -> Node | None:
        return None if node_id is None else self._nodes.by_id.get(node_id)

    def _is_forgotten(self, node_id: int | None) -> bool:
        return node_id is not None and node_id not in self._nodes.by_id

    def _probe(self, node_id: int | None, refusing: _Refusing) -> Action:
        assert node_id is not None, "the bootstrap listener never refuses"
        refusing.probe_ns = None
        return Probe(node_id, (self._nodes.by_id[node_id].broker,), secured=False)


def _begin_outage(node_id: int | None, broker: _Reach, outage: _Outage) -> list[Action]:
    broker.outage, broker.is_tried = outage, True
    return [RecordEntries([notes.outage(node_id, outage.reason, outage.since_ns)])]


def _mark_down(node_id: int | None, broker: _Reach, found: _Outage) -> list[Action]:
    # Until it has been up, discovery logs that.
    found.is_logged = node_id is not None or broker.is_tried
    if (outage := broker.outage) is not None:
        outage.login_failed = found.login_failed
        return []
    actions = _begin_outage(node_id, broker, found)
    if found.is_logged:
        actions.append(Log(f"{_node_text(node_id)} is down: {found.reason}", "warning"))
    return actions


def _mark_up(node_id: int | None, broker: _Reach, now: int) -> list[Action]:
    outage, broker.outage, broker.is_tried = broker.outage, None, True
    if outage is None:
        return []
    meanwhile = f"; {outage.ended} connections have ended meanwhile" if outage.ended else ""
    note = notes.outage(node_id, outage.reason, outage.since_ns, now)
    text = f"{_node_text(node_id)} answers again{meanwhile}"
    return [RecordEntries([note]), *([Log(text)] if outage.is_logged else [])]


def _probe_interval_ns(refusing: _Refusing, now: int) -> int:
    frequent = now - refusing.since_ns < _FREQUENT_PROBES_NS
    return _PROBE_INTERVAL_NS if frequent else _LATER_PROBE_INTERVAL_NS


def _node_text(node_id: int | None) -> str:
    return "the bootstrap broker" if node_id is None else f"node {node_id}"
