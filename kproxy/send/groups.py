"""The members of classic groups, while these form again.

::

    JoinGroup is taken ─▶ joins ─ answered when no member is still to come ─▶ joined ─▶ SyncGroup

Which members are in a generation is a matter of moments: where `group.initial.rebalance.delay.ms`
is 0, one that comes first may be alone in it, and whoever leads may be another one than before. So
who waits for another member holds up nobody; and whoever leads gives each member what it had.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

import attrs

from kproxy.wire.protocol.codes import ILLEGAL_GENERATION, REBALANCE_IN_PROGRESS

Client = TypeVar("Client", bound=Hashable)
JOINS_AGAIN = frozenset((ILLEGAL_GENERATION, REBALANCE_IN_PROGRESS))
"""Errors behind which a member joins again."""


@attrs.define(eq=False)
class SentGroups(Generic[Client]):
    """The groups of a conversation, by their names as they are sent."""

    _members: defaultdict[str, set[Client]] = attrs.field(factory=lambda: defaultdict(set))
    """Who is in a generation, and does not join."""
    _waiting: dict[Client, tuple[str, int, int]] = attrs.field(factory=dict)
    """The group, the request that waits, and from when on it holds up nobody; 0: it is a JoinGroup,
    which holds nobody up while the group has members that do not join."""
    assigned: dict[str, bytes] = attrs.field(factory=dict)
    """By members' ids: what they had in the generation that comes."""

    def joins(self, group: str, client: Client, member_id: str, ticket: int) -> None:
        """A client joins, with this id ("": none yet) and this request."""
        self.assigned.pop(member_id, None)
        self._members[group].discard(client)
        self._waiting[client] = group, ticket, 0

    def syncs(self, group: str, client: Client, ticket: int, until_ns: int) -> None:
        """A client wants its assignment: if it does not have it by then, others have to come."""
        self._waiting[client] = group, ticket, until_ns

    def synced(self, client: Client) -> None:
        """It has its answer, or will have none."""
        self._waiting.pop(client, None)

    def joined(self, client: Client, is_member: bool) -> None:
        """It has its answer, or will have none."""
        group, _, _ = self._waiting.pop(client, ("", 0, 0))
        if group and is_member:
            self._members[group].add(client)

    def leaves(self, client: Client, member_ids: Iterable[str]) -> None:
        """A client is no member any more."""
        for each in member_ids:
            self.assigned.pop(each, None)
        self._waiting.pop(client, None)
        for members in self._members.values():
            members.discard(client)

    def waiting(self, now_ns: int) -> dict[Client, int]:
        """Return who waits for another member, and the request."""
        return {
            client: ticket
            for client, (group, ticket, until_ns) in self._waiting.items()
            if (now_ns >= until_ns if until_ns else self._members[group])
        }
