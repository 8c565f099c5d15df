"""The members and generations of a group, and what happened to them: values, which `group` alone
changes.

Invariant: memory is bounded by the limits below; what is dropped is counted.
"""

from __future__ import annotations

from typing import NamedTuple

import attrs

from kproxy.exchange.entities import TopicPartition
from kproxy.history.ref import Ref

Places = tuple[TopicPartition, ...]


class Given(NamedTuple):
    """What a member was given to read."""

    ref: Ref
    generation: int
    """Generation, or the member's epoch."""
    partitions: Places
    undecoded: str = ""
    """Why the assignment could not be read; "" if it was."""


class Load(NamedTuple):
    """What a member had to read, beside the others of its group."""

    member: Ref
    """The first exchange that is about it."""
    given: Given
    topics: tuple[str, ...]
    """What it subscribes to."""


@attrs.frozen
class Quiet:
    """A time in which a member sent heartbeats and no Fetch."""

    from_ns: int
    until_ns: int
    given: Given


@attrs.define(eq=False)
class Member:
    """A member of a group, as its own requests show it."""

    id: str
    ref: Ref
    """The first exchange that is about it."""
    place: str
    """The first id that its group.instance.id had: it stays when a static member gets a new id."""
    instance: str = ""
    """The group.instance.id of a static member."""
    topics: tuple[str, ...] = ()
    session_ms: int = 0
    rebalance_ms: int = 0
    """Rebalance timeout; consumers send their max.poll.interval.ms."""
    joined: Ref | None = None
    """The request with which it joined first."""
    accepted: Ref | None = None
    """Its last request that the coordinator accepted, or answered with a rebalance."""
    commit: Ref | None = None
    """Its last OffsetCommit that was accepted."""
    brought: Ref | None = None
    """The last Fetch that brought records to it."""
    told_to_join: Ref | None = None
    """The first answer that told it to join again, since it last did."""
    told_by_rule: Ref | None = None
    """The first exchange since it last joined of which a fault rule made an error: its client joins
    again, though the coordinator did not ask it to."""
    kept: list[Ref] = attrs.Factory(list)
    """Its requests that a fault rule kept from the broker. Copies share it: such a request is
    complete when its connection ends."""
    left: Ref | None = None
    left_by_itself: bool = False
    """True if it left with a request of its own connection."""
    reason: str = ""
    """Why it left, as it says."""
    ended: Ref | None = None
    """Its last request before its client ended the connection, without leaving."""
    epoch: tuple[Ref, int] | None = None
    """KIP-848: the last epoch that it was given."""
    owns: Places = ()
    """KIP-848: the partitions in its last report."""
    given: Given | None = None
    is_settled: bool = False
    """True if it has had that for long enough not to be in the midst of a rebalance."""
    reported_silence: Ref | None = None
    """KIP-848: its last request before the silence that was reported last."""
    quiet_from_ns: int = 0
    """When it was given what it has, or its client fetched last; 0 if that is not known."""
    fetches_on: int | None = None
    """The connection on which its client waits for the response to a Fetch that a rule keeps."""
    quiet: Quiet | None = None
    """The first time without a Fetch that is longer than `rebalance_ms`."""


class Join(NamedTuple):
    """A JoinGroup that was accepted."""

    ref: Ref
    member: str
    reason: str
    topics: tuple[str, ...] = ()
    owned: Places = ()


@attrs.define(eq=False)
class Generation:
    """One generation of a classic group."""

    number: int
    earlier: dict[str, Member]
    """Copies of the members of the generation before, as they were when this one began."""
    joins: dict[str, Join] = attrs.Factory(dict)
    """Place of a member → its JoinGroup."""
    members: dict[str, str] = attrs.Factory(dict)
    """The members on the coordinator's list, and those whose JoinGroup is recorded: place → id."""
    has_member_list: bool = False
    """True if the coordinator's list of members is recorded."""
    synced: dict[str, tuple[str, Given]] = attrs.Factory(dict)
    """Place of a member → its id, and what it was given."""


def gave_up(before: Generation, now: Generation) -> tuple[Join, Places] | None:
    """Return who joined again to give up partitions that it had, and was not given again: in
    cooperative groups a generation more follows then (KIP-429)."""
    for place, join in sorted(now.joins.items(), key=lambda each: each[1].ref.time_ns):
        earlier, (_, given) = before.joins.get(place), before.synced.get(place, ("", None))
        if earlier is not None and given is not None and not given.undecoded:
            revoked = {*earlier.owned} - {*given.partitions}
            if revoked and revoked.isdisjoint(join.owned):
                return join, tuple(sorted(revoked))
    return None


@attrs.define(eq=False)
class Happening:
    """Something that a member did, or that was done to it: a sentence of the group's story."""

    kind: str
    """A key of the table of sentences."""
    ref: Ref
    member: Member | None
    """Whom it is about, as it was before this."""
    other: Member | None = None
    """Another one, as it was: who had the group.instance.id; who took it."""
    given: Places = ()
    """Partitions, or those that it owns."""
    number: int = 0
    """The epoch."""
    silent: tuple[Member, ...] = ()
    """KIP-848: members from whom nothing is heard, as they were."""
    again: Ref | None = None
    """The JoinGroup on the same connection after a member left."""
    is_quiet: bool = False
    """True if the group did not rebalance because of it."""
