"""Groups: their members, generations and assignments.

::

    Joined, Assigned, Beat, Left ─▶ Group: Member, Generation
    a client and a partition ─▶ the group for which it reads
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from kproxy.exchange.entities import TopicPartition
from kproxy.history.ref import Client, Ref
from kproxy.history.rows import Assigned, Beat, Committed, Joined, Row


@attrs.define(eq=False)
class Groups:
    """The groups of a recording."""

    _of_client: dict[Client, set[str]] = attrs.field(factory=dict[Client, set[str]], init=False)
    _owners: dict[tuple[str, TopicPartition], Client] = attrs.field(
        factory=dict[tuple[str, TopicPartition], Client], init=False
    )
    """Group and partition → the client to which the group assigned it last."""

    def reader(self, client: Client, where: TopicPartition) -> str:
        """Return the group for which a client reads a partition: the client is in this group only,
        and the group has assigned the partition to it. Else ""."""
        groups = self._of_client.get(client, ())
        for group in groups if len(groups) == 1 else ():
            if self._owners.get((group, where)) == client:
                return group
        return ""

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
            self._owners |= {(row.group, where): ref.client for where in row.partitions}


_TAKES: dict[type, Callable[[Groups, Ref, Any], None]] = {
    Joined: Groups._heard,
    Beat: Groups._heard,
    Committed: Groups._heard,
    Assigned: Groups._assigned,
}
