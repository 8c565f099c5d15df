"""Groups: their members, generations and assignments.

::

    Joined, Assigned, Beat, Left ─▶ Group: Member, Generation
    a client and a partition ─▶ the group for which it reads
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import attrs

from kproxy.exchange.entities import TopicPartition
from kproxy.history.ref import Client, Ref
from kproxy.history.rows import Assigned, Beat, Committed, Joined, Row


class Owner(NamedTuple):
    """The member to which a group assigned a partition last."""

    group: str
    client: Client
    generation: int
    """Generation, or the member's epoch."""
    since_ns: int
    """When it was told."""


@attrs.define(eq=False)
class Groups:
    """The groups of a recording."""

    _of_client: dict[Client, set[str]] = attrs.field(factory=dict[Client, set[str]], init=False)
    _owners: dict[tuple[str, TopicPartition], Owner] = attrs.field(
        factory=dict[tuple[str, TopicPartition], Owner], init=False
    )

    def reader(self, client: Client, where: TopicPartition) -> Owner | None:
        """Return for whom a client reads a partition: the client is in one group only, and the
        group has assigned the partition to it. Else None."""
        groups = self._of_client.get(client, ())
        for group in groups if len(groups) == 1 else ():
            owner = self._owners.get((group, where))
            if owner is not None and owner.client == client:
                return owner
        return None

    def take(self, ref: Ref, row: Row) -> None:
        """Take the next row."""
        take = _TAKES.get(type(row))
        if take is not None and ref.is_answered:
            take(self, ref, row)

    def gap(self) -> None:
        """Take a gap: who is a member is not known behind it."""
        self._of_client.clear()
        self._owners.clear()

    def _heard(self, ref: Ref, row: Joined | Beat | Committed) -> None:
        if not (isinstance(row, Committed) and row.transactional_id):
            self._of_client.setdefault(ref.client, set()).add(row.group)

    def _assigned(self, ref: Ref, row: Assigned) -> None:
        self._of_client.setdefault(ref.client, set()).add(row.group)
        if not row.error:
            for where in row.partitions:
                before = self._owners.get((row.group, where))
                owner = Owner(row.group, ref.client, row.generation, ref.completed_ns)
                if before is None or before[:3] != owner[:3]:
                    self._owners[row.group, where] = owner


_TAKES: dict[type, Callable[[Groups, Ref, Any], None]] = {
    Joined: Groups._heard,
    Beat: Groups._heard,
    Committed: Groups._heard,
    Assigned: Groups._assigned,
}
