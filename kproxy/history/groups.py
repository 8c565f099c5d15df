"""Groups: their members, generations and assignments, how far they are, their coordinators.

::

    Joined, Assigned, Beat, Left, CommitRequested ─▶ Group: Member, Generation
    a client and a partition ─▶ the member that reads it
    Read ─▶ what was brought to that member ─▶ Group: GroupPosition ◀─ Commit, OffsetsFetched
    Coordinator ─▶ which broker coordinates

A Fetch names no group. It is that of a group if its client, by host and client id, is in one group
only, and the group has assigned the partition to it. Where that is not certain nothing is taken.

Invariant: at most `_GROUPS_MAX` groups are followed; `dropped` counts what others did.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import attrs

from kproxy.exchange.endings import ConnectionEnd
from kproxy.exchange.entities import TopicPartition
from kproxy.history.group import Group
from kproxy.history.kept import Extents, one_of
from kproxy.history.members import Member
from kproxy.history.ref import Client, Ref
from kproxy.history.rows import (
    Assigned,
    Beat,
    Commit,
    CommitRequested,
    Coordinator,
    Deleted,
    Joined,
    Left,
    OffsetsFetched,
    Read,
)
from kproxy.history.standstills import Brought

_GROUPS_MAX = 2000


class Owner(NamedTuple):
    """The member to which a group assigned a partition last."""

    group: str
    member: str
    client: Client
    generation: int
    """Generation, or the member's epoch."""
    since_ns: int
    """When it was told."""


@attrs.define(eq=False)
class Groups:
    """The groups of a recording."""

    coordinators: dict[tuple[bool, str], Extents[int]] = attrs.Factory(dict)
    """True and a group, or False and a transactional id → the broker that is its coordinator."""
    dropped: int = 0
    _by_name: dict[str, Group] = attrs.field(factory=dict, init=False)
    _on: dict[int, set[str]] = attrs.field(factory=dict, init=False)
    """Connection → the groups of its requests."""
    _readers: dict[Client, dict[tuple[str, str], Member]] = attrs.field(factory=dict, init=False)
    """Client → its members, by group and id."""
    _waiting: dict[int, set[Client]] = attrs.field(factory=dict, init=False)
    """Connection → the clients that wait on it for the response to a Fetch that a rule keeps."""
    _of_client: dict[Client, set[str]] = attrs.field(factory=dict, init=False)
    _owners: dict[tuple[str, TopicPartition], Owner] = attrs.field(factory=dict, init=False)

    def __iter__(self) -> Iterator[Group]:
        return iter(self._by_name.values())

    def get(self, name: str) -> Group | None:
        """Return the group with a name."""
        return self._by_name.get(name)

    def reader(self, client: Client, where: TopicPartition) -> Owner | None:
        """Return for whom a client reads a partition: the client is in one group only, and the
        group has assigned the partition to it. Else None."""
        groups = self._of_client.get(client, ())
        for group in groups if len(groups) == 1 else ():
            owner = self._owners.get((group, where))
            if owner is not None and owner.client == client:
                return owner
        return None

    def may_read(self, client: Client, where: TopicPartition) -> Iterator[str]:
        """Yield the groups that have assigned a partition to a member of a client: it may be in
        several."""
        for group, member in self._readers.get(client, ()):
            owner = self._owners.get((group, where))
            if owner is not None and owner.member == member:
                yield group

    def see(self, ref: Ref) -> None:
        """Take the next exchange, before its rows."""
        readers = self._readers.get(ref.client) if ref.api == "Fetch" else None
        for (group, _), member in readers.items() if readers else ():
            self._by_name[group].fetches(member, ref)
        if readers and ref.fate.undelivered:
            self._waiting.setdefault(ref.connection, set()).add(ref.client)

    def read(self, ref: Ref, row: Read, owner: Owner, asked: int) -> None:
        """Take what a Fetch brought to the member that reads the partition, and the offset that it
        asked for."""
        if row.past is None or row.past <= asked:
            return
        if ref.fate.may_be_lost or ref.fate.is_changed:
            return  # the client got something else
        first = end = asked
        if row.first is not None and row.end is not None and row.end > asked:
            first, end = max(asked, row.first), row.end
        group = self._by_name[owner.group]
        if (member := group.members.get(owner.member)) is not None:
            group.bring(member, row.where, Brought(first, end, asked, row.past, ref))

    def end(self, end: ConnectionEnd) -> None:
        """Take the end of a connection."""
        for group in self._on.pop(end.connection, ()):
            ended = self._by_name[group].end(end)
            if ended is not None:
                self._forget(group, ended)
        for client in self._waiting.pop(end.connection, ()):
            for member in self._readers.get(client, {}).values():
                if member.fetches_on == end.connection:
                    member.fetches_on = None

    def gap(self, time_ns: int) -> None:
        """Take a gap: who is a member is not known behind it."""
        for table in (self._of_client, self._owners, self._readers):
            table.clear()
        for group in self._by_name.values():
            group.gap()
        self.close(time_ns)

    def close(self, time_ns: int) -> None:
        """Have what is told from a time on stand by itself."""
        for each in self.coordinators.values():
            each.close(time_ns)

    def _group(self, ref: Ref, name: str) -> Group | None:
        """Return a group, added if new; None if there are too many."""
        found = self._by_name.get(name)
        if found is None and len(self._by_name) >= _GROUPS_MAX:
            self.dropped += 1
            return None
        self._on.setdefault(ref.connection, set()).add(name)
        return found or self._by_name.setdefault(name, Group(name))

    def heard(self, ref: Ref, row: Joined | Assigned | Beat | Left | CommitRequested) -> None:
        """Take what a member asked for."""
        group = self._group(ref, row.group)
        if group is None:
            return
        _TELLS[type(row)](group, ref, row)
        if not ref.is_answered or (isinstance(row, CommitRequested) and row.transactional_id):
            return
        if not isinstance(row, Left):
            self._of_client.setdefault(ref.client, set()).add(row.group)
        member = group.members.get(row.member)
        if member is not None and not row.error:
            self._place(ref, row, member)

    def _place(
        self, ref: Ref, row: Joined | Assigned | Beat | Left | CommitRequested, member: Member
    ) -> None:
        if isinstance(row, Left):
            self._forget(row.group, member)
            return
        self._readers.setdefault(ref.client, {})[row.group, member.id] = member
        if isinstance(row, Assigned):
            owner = Owner(row.group, member.id, ref.client, row.generation, ref.completed_ns)
            for where in row.partitions:
                before = self._owners.get((row.group, where))
                if before is None or before[:4] != owner[:4]:
                    self._owners[row.group, where] = owner

    def _forget(self, group: str, member: Member) -> None:
        """Forget a member that has left or ended; not while a quiet time of it is told, for a Fetch
        that it sent before may still come."""
        if member.quiet is None:
            self._readers.get(member.ref.client, {}).pop((group, member.id), None)

    def commit(self, ref: Ref, row: Commit) -> None:
        """Take an offset that counts from now on."""
        if (group := self._group(ref, row.group)) is not None:
            group.commit(ref, row)

    def offsets_fetched(self, ref: Ref, row: OffsetsFetched) -> None:
        """Take how far a group had committed."""
        group = self._by_name.get(row.group)
        # Whoever only looks at the offsets of a group is no member of it.
        if group is not None and group.members and not row.error and not ref.fate.made:
            group.at(row.where).told(row.offset, ref)

    def deleted(self, ref: Ref, row: Deleted) -> None:
        """Take a deletion."""
        for group in self._by_name.values():
            for where in [*group.positions] if row.group in (None, group.name) else ():
                if row.covers(group.name, where):
                    del group.positions[where]

    def coordinator(self, ref: Ref, row: Coordinator) -> None:
        """Take who is a coordinator."""
        key = row.is_group, row.key
        one_of(self.coordinators, key, 2 * _GROUPS_MAX, Extents[int]).see(row.node, ref)


_TELLS: dict[type, Callable[[Group, Ref, Any], None]] = {
    Joined: Group.joined,
    Assigned: Group.assigned,
    Beat: Group.beat,
    Left: Group.leave,
    CommitRequested: Group.committed,
}
"""Row of a member → what it changes in its group."""
