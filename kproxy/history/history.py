"""The history of one recording: a fold of its exchanges, ends of connections and gaps, in order.

::

    item ─▶ rows ─▶ transactions ─▶ Commit ┐
     │        └──▶ groups ◀───────────────┤
     │        ├──▶ logs ◀─────────────────┘
     │        └──▶ cluster · clients · brokers · connections ◀─ ConnectionEnd
     └───────────▶ duplicates

Invariants: what is kept does not grow with the number of exchanges; each follower changes only its
own state.
"""

from __future__ import annotations

import attrs

from kproxy.exchange.endings import ConnectionEnd
from kproxy.history.brokers import Brokers
from kproxy.history.clients import Clients
from kproxy.history.cluster import Cluster
from kproxy.history.connections import Connections
from kproxy.history.duplicates import Duplicates
from kproxy.history.events import events
from kproxy.history.groups import Groups
from kproxy.history.items import Gap, Item
from kproxy.history.logs import Logs
from kproxy.history.ref import Ref
from kproxy.history.rows import Read, Row
from kproxy.history.transactions import Transactions


@attrs.define(eq=False)
class History:
    """What happened, as far as exchanges show it."""

    transactions: Transactions = attrs.field(factory=Transactions, init=False)
    groups: Groups = attrs.field(factory=Groups, init=False)
    logs: Logs = attrs.field(factory=Logs, init=False)
    cluster: Cluster = attrs.field(factory=Cluster, init=False)
    brokers: Brokers = attrs.field(factory=Brokers, init=False)
    clients: Clients = attrs.field(factory=Clients, init=False)
    connections: Connections = attrs.field(factory=Connections, init=False)
    duplicates: Duplicates = attrs.field(factory=Duplicates, init=False)

    def add(self, item: Item) -> None:
        """Take the next exchange, end of a connection or gap, in order of completion."""
        self.duplicates.add(item)
        if isinstance(item, Gap):
            self.transactions.gap()
            self.groups.gap()
            self.logs.gap()
            self.cluster.close(item.time_ns)
            self.clients.gap()
            self.brokers.gap(item.time_ns)
        elif isinstance(item, ConnectionEnd):
            self.connections.end(item)
            self.clients.end(item)
        else:
            self.take(Ref.of(item), events(item))

    def take(self, ref: Ref, rows: list[Row]) -> None:
        """Take an exchange and its rows."""
        self.connections.see(ref)
        self.brokers.take(ref, is_throttled=self.clients.take(ref, rows))
        for row in rows:
            counted = [*self.transactions.take(ref, row)]
            for each in (row, *counted):
                self.groups.take(ref, each)
                reader = self.groups.reader(ref.client, row.where) if type(row) is Read else ""
                self.logs.take(ref, each, reader)
                if type(each) is Read:
                    self.duplicates.read(ref, each, reader)
            self.cluster.take(ref, row)
            self.connections.take(ref, row)

    def close(self, time_ns: int) -> None:
        """Close what is open: what is seen from now on, of this time and later, stands by itself
        (`Extents.close`)."""
        self.cluster.close(time_ns)
