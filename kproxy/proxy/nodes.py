"""The brokers of the cluster: node id → where the broker is, and where we listen for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import attrs

from kproxy.proxy.actions import Address
from kproxy.proxy.framer import Violation
from kproxy.proxy.rewrite import BrokerAddress


@attrs.define(eq=False)
class Node:
    """One broker."""

    broker: Address
    listening: Address | None = None


@attrs.define(eq=False)
class Nodes:
    """What is known of all brokers, learnt from the addresses in responses."""

    nodes_max: int
    """The most brokers that get a listener."""
    by_id: dict[int, Node] = attrs.field(factory=dict, init=False)
    generation: int = attrs.field(default=0, init=False)
    """Counts changes, so that what was worked out for an earlier state can be told from it."""

    def learn(self, found: Iterable[BrokerAddress]) -> set[int]:
        """Take addresses that a broker sent; return the node ids that have no listener yet.

        Raises:
            Violation: there are more brokers than may have a listener.
        """
        missing = set()
        for address in found:
            if not address.usable:
                continue
            broker = (address.host, address.port)
            node = self.by_id.get(address.node_id)
            if node is None:
                if len(self.by_id) >= self.nodes_max:
                    raise Violation(f"the broker names over {self.nodes_max} brokers")
                node = self.by_id[address.node_id] = Node(broker)
                self.generation += 1
            elif node.broker != broker:
                node.broker = broker
                self.generation += 1
            if node.listening is None:
                missing.add(address.node_id)
        return missing

    def without_listener(self, node_ids: Iterable[int]) -> set[int]:
        """Return those of the nodes whose listeners are not open yet."""
        return {node_id for node_id in node_ids if self.by_id[node_id].listening is None}

    def listening(self, node_id: int, address: Address) -> None:
        """The listener of a node is open."""
        self.by_id[node_id].listening = address
        self.generation += 1

    def advertised(self, host: str) -> AdvertisedAddresses:
        """Our addresses for a client that reaches us at `host`."""
        return AdvertisedAddresses(self.by_id, host)


class AdvertisedAddresses(Mapping[int, Address]):
    """node id → the address that a client shall use, for the nodes that have a listener."""

    def __init__(self, by_id: dict[int, Node], host: str) -> None:
        self._by_id = by_id
        self._host = host

    def __getitem__(self, node_id: int) -> Address:
        listening = self._by_id[node_id].listening
        if listening is None:
            raise KeyError(node_id)
        return self._host, listening[1]

    def __iter__(self) -> Iterator[int]:
        return (node_id for node_id, node in self._by_id.items() if node.listening)

    def __len__(self) -> int:
        return sum(1 for _ in self)
