"""The members and generations of a group, as its story follows them: values, changed by the story
alone."""

from __future__ import annotations

import attrs

from kproxy.exchange.exchange import Exchange

NO_PARTITIONS = "nothing"


@attrs.define(eq=False)
class StoryMember:
    """A member of the group, as its own requests show it."""

    id: str
    client: str
    session_ms: int = 0
    rebalance_ms: int = 0
    """Rebalance timeout; consumers send their max.poll.interval.ms."""
    last_accepted: Exchange | None = None
    """Its last request that the coordinator accepted, or answered with a rebalance."""
    last_commit: Exchange | None = None
    told_to_join: Exchange | None = None
    """The first answer that told it to join again, since it last did."""
    told_by_rule: Exchange | None = None
    """The first exchange since it last joined of which a fault rule made an error: its client joins
    again, though the coordinator did not ask it to."""
    kept: list[Exchange] = attrs.field(factory=list[Exchange])
    """Its requests that a fault rule kept from the broker. Copies share it: such a request is
    complete when its connection ends."""
    left: Exchange | None = None
    reason: str = ""
    instance: str = ""
    """The group.instance.id of a static member, which keeps it when it joins again."""
    joined: Exchange | None = None
    """The request with which it joined first."""
    owns: str = NO_PARTITIONS
    """KIP-848: the partitions in its last report."""
    assigned: tuple[int, str] = (0, NO_PARTITIONS)
    """KIP-848: epoch and partitions of its last assignment."""
    reported_silence: Exchange | None = None
    """KIP-848: its last request before the silence that was reported last."""


@attrs.define(eq=False)
class Generation:
    """One generation of a classic group."""

    number: int
    joins: dict[str, Exchange] = attrs.field(factory=dict[str, Exchange])
    """Member id → its JoinGroup."""
    members: set[str] = attrs.field(factory=set[str])
    """The members on the coordinator's list, and those whose JoinGroup is recorded."""
    has_member_list: bool = False
    """True if the coordinator's list of members is recorded."""
    synced: dict[str, Exchange] = attrs.field(factory=dict[str, Exchange])
    earlier: dict[str, StoryMember] = attrs.field(factory=dict[str, StoryMember])
    """Copies of all members known before this generation, as they were then."""
