"""The members of classic groups, while these form again.

::

    JoinGroup ─ asked ─▶ waits for all members to join ─ answered ─▶ a member
    SyncGroup ─ asked ─▶ waits for whoever leads ─────── answered

Which members are in a generation is a matter of moments: where `group.initial.rebalance.delay.ms`
is 0, one that comes first may be alone in it, and whoever leads may be another one than before. So
who waits for another member holds up nobody; and whoever leads gives each member what it had.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import attrs

from kproxy.send.calls import LEAVE_GROUP, SYNC_GROUP, SentCall, SentClient
from kproxy.send.order import JOIN_GROUP, gives_an_id
from kproxy.send.sender import PASSES_NS
from kproxy.wire.protocol.codes import ILLEGAL_GENERATION, REBALANCE_IN_PROGRESS

JOINS_AGAIN = frozenset((ILLEGAL_GENERATION, REBALANCE_IN_PROGRESS))
"""Errors behind which a member joins again."""
SYNC_WAIT_NS = 100_000_000
"""Behind that, an assignment waits for others."""


@attrs.define(eq=False)
class SentMember:
    """A client in a group."""

    id: str
    joined: SentCall
    """Its last JoinGroup …"""
    synced: SentCall | None
    """… and its last SyncGroup."""
    leads: frozenset[str]
    """The members of a generation of which it is the leader."""
    assignment: bytes | None = None
    """What it had in the generation that comes."""
    joins: bool = False
    """It joins again."""
    behind_ns: int = 0
    """Since when it is refused, for others went on; 0: it is not."""


@attrs.define(eq=False)
class SentGroups:
    """The groups of a conversation, by their names as they are sent."""

    _members: defaultdict[str, dict[SentClient, SentMember]] = attrs.field(
        factory=lambda: defaultdict(dict)
    )
    _joining: dict[SentClient, tuple[str, int]] = attrs.field(factory=dict)
    """The group, and the request that waits."""
    _syncing: dict[SentClient, tuple[int, int]] = attrs.field(factory=dict)
    """The request, and from when on it waits for others."""

    def member(self, call: SentCall) -> SentMember | None:
        """Return whose request this is."""
        return self._members[getattr(call.request, "group_id", "")].get(call.client)

    def asked(self, call: SentCall, ticket: int, now_ns: int) -> None:
        """This is asked now; what is behind `ticket` waits for it."""
        key, client, member = call.exchange.api_key, call.client, self.member(call)
        if key == JOIN_GROUP and not gives_an_id(call.exchange):
            self._joining[client] = call.request.group_id, ticket
            if member is not None:
                member.joins, member.assignment = True, None
        elif key == SYNC_GROUP:
            self._syncing[client] = ticket, now_ns + SYNC_WAIT_NS
            if member is not None:
                member.synced = call

    def answered(self, call: SentCall, new: Any) -> None:
        """It has this answer; None: it will have none."""
        key, client = call.exchange.api_key, call.client
        is_well = new is not None and not getattr(new, "error_code", 0)
        if key == JOIN_GROUP:
            self._joining.pop(client, None)
            before = self._members[call.request.group_id].pop(client, None)
            if is_well:
                leads = frozenset(each.member_id for each in new.members)  # the leader is told
                member = SentMember(new.member_id, call, None, leads)
                if before is not None:
                    member.synced, member.behind_ns = before.synced, before.behind_ns
                self._members[call.request.group_id][client] = member
        elif key == SYNC_GROUP:
            self._syncing.pop(client, None)
        elif key == LEAVE_GROUP and is_well:
            self._members[call.request.group_id].pop(client, None)

    def may_join_again(self, call: SentCall, now_ns: int) -> bool:
        """Return whether it may help a member that is refused to join again."""
        member = self.member(call)
        if member is None:
            return False
        member.behind_ns = member.behind_ns or now_ns
        return now_ns - member.behind_ns < PASSES_NS

    def went_well(self, call: SentCall) -> None:
        """A request of a member is not refused for that."""
        if (member := self.member(call)) is not None and call.exchange.api_key != JOIN_GROUP:
            member.behind_ns = 0

    def ended(self, client: SentClient) -> None:
        """A client is gone."""
        for members in self._members.values():
            members.pop(client, None)

    def assignments(self, group: str) -> dict[str, bytes]:
        """Return what members had in the generation that comes, as far as that is known."""
        found = self._members[group].values()
        return {each.id: each.assignment for each in found if each.assignment is not None}

    def waiting(self, now_ns: int) -> dict[SentClient, int]:
        """Return who waits for another member, and the request."""
        joining = {
            client: ticket
            for client, (group, ticket) in self._joining.items()
            if not all(each.joins for each in self._members[group].values())
        }
        return joining | {
            client: ticket for client, (ticket, at_ns) in self._syncing.items() if now_ns >= at_ns
        }
