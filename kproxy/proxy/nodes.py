"""The brokers of the cluster: node id → the broker's address, and that of our listener for it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import attrs

from kproxy.proxy.actions import Address
from kproxy.proxy.framer import Violation
from kproxy.proxy.rewrite import BrokerAddress

FORGOTTEN_AFTER_NS = 3_600_000_000_000
"""A node that no response has named for so long may lose its listener: an hour."""
_PORT_MAX = 65_535


def listener_port(node_id: int, listen_port: int, node_ports: Mapping[int, int]) -> int:
    """Return the port of a node's listener: the user's, or the one that follows from the bootstrap
    listener's; 0 for any."""
    fixed = node_ports.get(node_id)
    if fixed is not None or not listen_port:
        return fixed or 0
    port = listen_port + 1 + node_id
    return port if port <= _PORT_MAX else 0


@attrs.define(eq=False)
class Node:
    """One broker that has, or is about to get, a listener."""

    broker: Address
    named_ns: int
    """The time at which a response last named it; 0: none has, its address is a guess."""
    listening: Address | None = None


@attrs.define(eq=False)
class Nodes:
    """The brokers that the addresses in responses have named."""

    nodes_max: int
    """The most brokers that have a listener."""
    by_id: dict[int, Node] = attrs.field(factory=dict, init=False)
    generation: int = attrs.field(default=0, init=False)
    """Counts changes: a result that was worked out for another generation is outdated."""

    def brokers(self) -> dict[int, Address]:
        """Return the brokers' own addresses by node id."""
        return {node_id: node.broker for node_id, node in self.by_id.items()}

    @property
    def named(self) -> dict[int, tuple[Address, int]]:
        """Node id → the address of each broker that a response has named, and when one last did."""
        nodes = self.by_id.items()
        return {node_id: (node.broker, node.named_ns) for node_id, node in nodes if node.named_ns}

    def learn(self, found: Iterable[BrokerAddress], now: int) -> dict[int, Address]:
        """Take addresses that a broker sent; return the brokers that have no listener yet."""
        missing: dict[int, Address] = {}
        for address in found:
            if not address.usable:
                continue
            broker = (address.host, address.port)
            node = self.by_id.get(address.node_id)
            if node is not None:
                node.named_ns = now
                if node.broker != broker:
                    node.broker = broker
                    self.generation += 1
            if node is None or node.listening is None:
                missing[address.node_id] = broker
        return missing

    def add(
        self, brokers: Mapping[int, Address], in_use: Collection[int], now: int
    ) -> tuple[list[int], list[int]]:
        """Make room for brokers, all of them or none.

        Nodes that are not `in_use` and that no response has named for an hour make way, the oldest
        first; before them those that none has named at all. Returns the node ids that are new and
        those that made way.

        Raises:
            Violation: there are more brokers than may have a listener.
        """
        new = [node_id for node_id in brokers if node_id not in self.by_id]
        excess = len(self.by_id) + len(new) - self.nodes_max
        removed: list[int] = []
        if excess > 0:
            forgotten = [
                (node.named_ns, node_id)
                for node_id, node in self.by_id.items()
                if (not node.named_ns or now - node.named_ns >= FORGOTTEN_AFTER_NS)
                and node_id not in in_use
                and node_id not in brokers
                and node.listening is not None
            ]
            removed = [node_id for _, node_id in sorted(forgotten)[:excess]]
            if len(removed) < excess:
                raise Violation(f"the broker names over {self.nodes_max} brokers")
        for node_id in removed:
            del self.by_id[node_id]
        for node_id in new:
            self.by_id[node_id] = Node(brokers[node_id], now)
        if new:
            self.generation += 1
        return new, removed

    def without_listener(self, brokers: Mapping[int, Address]) -> dict[int, Address]:
        """Return those of the brokers whose listeners are not open yet."""
        return {
            node_id: broker
            for node_id, broker in brokers.items()
            if (node := self.by_id.get(node_id)) is None or node.listening is None
        }

    def listening(self, node_id: int, address: Address) -> None:
        """Note that the listener of a node is open."""
        self.by_id[node_id].listening = address
        self.generation += 1

    def forget(self, node_id: int) -> None:
        """Forget a node for which no listener could be opened."""
        node = self.by_id.get(node_id)
        if node is not None and node.listening is None:
            del self.by_id[node_id]

    def advertised(self, node_id: int, host: str) -> Address:
        """Return our address of a node that has a listener, for a client that reaches us at a
        host."""
        listening = self.by_id[node_id].listening
        assert listening is not None, "a response that names it waits for its listener"
        return host, listening[1]
