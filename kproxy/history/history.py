"""The history of one recording: a fold of its exchanges, ends of connections and gaps, in order.

::

    item ─▶ rows ─▶ transactions ─▶ Commit ┐
     │        ├──▶ groups ◀───────────────┤ ◀─ ConnectionEnd
     │        ├──▶ logs · reads ◀─────────┘
     │        └──▶ standing · cluster · clients · brokers · connections ◀─ ConnectionEnd
     └───────────▶ duplicates

Invariants: what is kept does not grow with the number of exchanges; each follower changes only its
own state.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from kproxy.exchange.endings import ConnectionEnd
from kproxy.history.brokers import Brokers
from kproxy.history.clients import Clients
from kproxy.history.cluster import ClusterMetadata
from kproxy.history.connections import Connections
from kproxy.history.duplicates import Duplicates
from kproxy.history.events import Taken, events
from kproxy.history.groups import Groups
from kproxy.history.items import Gap, Item
from kproxy.history.logs import Logs
from kproxy.history.reads import Reads
from kproxy.history.ref import Ref
from kproxy.history.rows import Deleted, FetchPosition, OffsetsFetched, Read, Row
from kproxy.history.standing import Standing
from kproxy.history.transactions import Transactions

_OF_READERS = FetchPosition, Read, OffsetsFetched
"""Rows that are about a partition that a client may read for a group."""


@attrs.define(eq=False)
class History:
    """What happened, as far as exchanges show it."""

    transactions: Transactions = attrs.Factory(Transactions)
    groups: Groups = attrs.Factory(Groups)
    logs: Logs = attrs.Factory(Logs)
    reads: Reads = attrs.Factory(Reads)
    standing: Standing = attrs.Factory(Standing)
    cluster: ClusterMetadata = attrs.Factory(ClusterMetadata)
    brokers: Brokers = attrs.Factory(Brokers)
    clients: Clients = attrs.Factory(Clients)
    connections: Connections = attrs.Factory(Connections)
    duplicates: Duplicates = attrs.Factory(Duplicates)

    def add(self, item: Item) -> Taken | None:
        """Take the next exchange, end of a connection or gap, in order of completion; return what
        is taken of an exchange."""
        self.duplicates.add(item)
        if isinstance(item, Gap):
            self.transactions.gap()
            self.groups.gap(item.time_ns)
            self.logs.gap()
            self.reads.gap()
            self.standing.gap()
            self.cluster.close(item.time_ns)
            self.clients.gap()
            self.brokers.gap(item.time_ns)
        elif isinstance(item, ConnectionEnd):
            self.groups.end(item)
            self.reads.end(item.connection)
            self.standing.end(item.connection)
            self.connections.end(item)
            self.clients.end(item)
        else:
            return self.take(Ref.of(item), events(item))
        return None

    def take(self, ref: Ref, rows: Sequence[Row]) -> Taken:
        """Take an exchange and its rows."""
        self.connections.see(ref)
        self.groups.see(ref)
        self.brokers.take(ref, is_throttled=self.clients.take(ref, rows))
        taken = self.transactions.take(ref, rows)
        for row in taken:
            self.groups.take(ref, row)
            owner = None
            if isinstance(row, _OF_READERS):
                owner = self.groups.reader(ref.client, row.where)
            reader = "" if owner is None else owner.group
            self.logs.take(ref, row, reader)
            self.reads.take(ref, row, owner)
            if isinstance(row, Read):
                self.duplicates.read(ref, row, reader)
                asked = self.reads.position(ref.connection, row.where)
                if owner is not None and asked is not None:
                    self.groups.read(ref, row, owner, asked[0])
            self.cluster.take(ref, row)
            self.connections.take(ref, row)
            if isinstance(row, Deleted) and row.group is None and row.topic is not None:
                self.reads.forget(row.topic)
                self.standing.forget(row.topic)
        if ref.api == "Fetch":
            self.standing.fetched(ref, rows, self.groups, self.transactions)
        return Taken(ref, taken)

    def close(self, time_ns: int) -> None:
        """Close what is open: what is seen from now on, of this time and later, stands by itself
        (`Extents.close`)."""
        self.groups.close(time_ns)
        self.logs.close(time_ns)
        self.cluster.close(time_ns)
