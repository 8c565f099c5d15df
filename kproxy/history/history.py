"""The history of one recording: a fold of its exchanges, ends of connections and gaps, in order.

::

    item ─▶ rows ─▶ transactions ─▶ rows, Commit, Aborted ─┬─▶ groups ─▶ who reads a partition
     │        │                                            └─▶ logs · reads · cluster · clients
     │        └─▶ standing                                          · connections
     └─▶ duplicates · brokers

Which follower takes which rows is in one table, `History._takers`.

Invariants: what is kept does not grow with the number of exchanges; each follower changes only its
own state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs

from kproxy.exchange.endings import ConnectionEnd
from kproxy.history import rows as r
from kproxy.history.brokers import Brokers, Stall
from kproxy.history.clients import Clients
from kproxy.history.cluster import ClusterMetadata
from kproxy.history.connections import Connections
from kproxy.history.duplicates import Duplicates
from kproxy.history.events import ExchangeRows, events
from kproxy.history.groups import Groups
from kproxy.history.items import Gap, Item
from kproxy.history.logs import Logs
from kproxy.history.noted import Noted, are_most_of
from kproxy.history.reads import Reads
from kproxy.history.ref import Ref
from kproxy.history.standing import Standing
from kproxy.history.transactions import Transactions

_Take = Callable[[Ref, Any], None]


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
    noted: Noted = attrs.Factory(Noted)
    duplicates: Duplicates = attrs.Factory(Duplicates)
    _takers: dict[type, tuple[_Take, ...]] = attrs.field(init=False)
    """Row → who takes it; what transactions do with rows comes before."""

    def __attrs_post_init__(self) -> None:
        groups, logs, clients = self.groups, self.logs, self.clients
        cluster, connections = self.cluster, self.connections
        self._takers = {
            r.Joined: (groups.heard,),
            r.Assigned: (groups.heard,),
            r.Beat: (groups.heard,),
            r.Left: (groups.heard,),
            r.CommitRequested: (groups.heard,),
            r.Commit: (groups.commit, logs.commit, self.reads.commit),
            r.OffsetsFetched: (self._offsets_fetched,),
            r.Coordinator: (groups.coordinator,),
            r.Initialized: (clients.initialized,),
            r.Aborted: (logs.aborted,),
            r.Appended: (logs.appended, clients.appended),
            r.FetchPosition: (self._fetch_position,),
            r.Read: (self._read,),
            r.Bound: (logs.bound, self.reads.bound),
            r.Deleted: (groups.deleted, logs.deleted, self.reads.deleted, self.standing.deleted),
            r.Counted: (logs.counted,),
            r.Unknown: (logs.unknown,),
            r.Led: (cluster.led,),
            r.ClusterDescribed: (cluster.described,),
            r.InSession: (cluster.in_session,),
            r.Throttled: (clients.throttled,),
            r.Denied: (connections.denied,),
            r.Versions: (connections.versions,),
            r.Handshake: (connections.handshake,),
            r.Authenticated: (connections.authenticated,),
        }

    def add(self, item: Item) -> ExchangeRows | None:
        """Take the next exchange, end of a connection or gap, in order of completion; return what
        is taken of an exchange."""
        self.duplicates.add(item)
        if isinstance(item, Gap):
            self.transactions.gap()
            self.groups.gap(item.time_ns)
            self.logs.gap(item.time_ns)
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

    def take(self, ref: Ref, rows: Sequence[r.Row]) -> ExchangeRows:
        """Take an exchange and its rows."""
        self.connections.see(ref)
        self.groups.see(ref)
        self.brokers.take(ref, is_throttled=self.clients.take(ref))
        taken = self.transactions.take(ref, rows)
        for row in taken:
            for take in self._takers.get(type(row), ()):
                take(ref, row)
        if ref.api == "Fetch":
            self.standing.fetched(ref, rows, self.groups, self.transactions)
        return ExchangeRows(ref, taken)

    def broker_stalls(self) -> dict[int, list[Stall]]:
        """Return the stalls of each broker that had any, without those of kproxy itself."""
        own = self.noted.stalls
        found = {
            node_id: [each for each in stalls if not are_most_of(own, each.from_ns, each.until_ns)]
            for node_id, stalls in self.brokers.stalls().items()
        }
        return {node_id: stalls for node_id, stalls in found.items() if stalls}

    def close(self, time_ns: int) -> None:
        """Close what is open: what is seen from now on, of this time and later, stands by itself
        (`Extents.close`)."""
        self.groups.close(time_ns)
        self.logs.close(time_ns)
        self.cluster.close(time_ns)

    # ---- rows about a partition that a client may read for a group

    def _offsets_fetched(self, ref: Ref, row: r.OffsetsFetched) -> None:
        self.groups.offsets_fetched(ref, row)
        self.reads.offsets_fetched(ref, row, self.groups.reader(ref.client, row.where))

    def _fetch_position(self, ref: Ref, row: r.FetchPosition) -> None:
        self.logs.fetch_position(ref, row)
        self.reads.fetch_position(ref, row, self.groups.reader(ref.client, row.where))

    def _read(self, ref: Ref, row: r.Read) -> None:
        owner = self.groups.reader(ref.client, row.where)
        group = "" if owner is None else owner.group
        self.logs.read(ref, row, group)
        self.duplicates.read(ref, row, group)
        if (asked := self.reads.position(ref.connection, row.where)) is not None:
            if owner is not None:
                self.reads.read(ref, row, owner, asked[0])
                self.groups.read(ref, row, owner, asked[0])
