"""What members of groups did, as rows of the table `group_events`, and counts of them by group.

rows of an exchange ─▶ GroupEvent … ─▶ GroupTally ─ merge ─▶ GroupTally
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import attrs

from kproxy.exchange import delivered
from kproxy.exchange.exchange import Exchange
from kproxy.exchange.histogram import NEVER_US
from kproxy.exchange.merging import by, by_key
from kproxy.history.events import ExchangeRows
from kproxy.history.rows import Assigned, Beat, CommitRequested, Joined, Left

_APIS = frozenset(
    ("JoinGroup", "SyncGroup", "Heartbeat", "LeaveGroup", "ConsumerGroupHeartbeat",
     "OffsetCommit", "TxnOffsetCommit")
)  # fmt: skip
_BORN_APIS = frozenset({"JoinGroup", "ConsumerGroupHeartbeat"})


class GroupEvent(NamedTuple):
    """What a member of a group did; the columns of the table `group_events`."""

    group: str
    event: str
    client_id: str | None
    member_id: str | None
    generation: int | None
    topic: str | None = None
    partition: int | None = None
    committed: int | None = None
    """None if the broker has not taken it."""
    error: str | None = None


def group_events(exchange: Exchange, taken: ExchangeRows) -> Iterator[GroupEvent]:
    """Yield the events of groups in an exchange, without heartbeats that change nothing, and
    requests that a rule kept from the broker."""
    api = str(exchange.api)
    if api not in _APIS or exchange.request is None or delivered.kept(exchange):
        return
    joins = False
    for row in taken.rows:
        place: tuple[str | None, int | None, int | None] = None, None, None
        generation: int | None = None
        match row:
            case CommitRequested():
                counts = exchange.response is not None and not row.error
                topic, partition = row.where
                generation, place = (
                    row.generation,
                    (topic, partition, row.offset if counts else None),
                )
            case Joined():
                generation, joins = row.generation, True
            case Assigned() if not (joins and api == "ConsumerGroupHeartbeat"):
                generation = row.generation
            case Beat() if row.error:
                generation = row.generation if api == "Heartbeat" else row.given or None
            case Left():
                pass
            case _:
                continue
        known = generation if generation is not None and generation >= 0 else None
        error = row.error or None
        yield GroupEvent(row.group, api, exchange.client_id, row.member, known, *place, error=error)


@attrs.define(eq=False)
class GroupTally:
    """The counts of one group."""

    members: set[str] = attrs.Factory(set)
    client_ids: set[str] = attrs.Factory(set)
    generations: set[int] = attrs.Factory(set)
    born_us: dict[int, int] = attrs.field(factory=dict, metadata=by(by_key(min)))
    """Generation → when its first member joined …"""
    born: dict[int, frozenset[str]] = attrs.Factory(dict)
    """… and its members."""
    joins: int = 0
    leaves: int = 0
    commits: int = 0
    """Requests that committed offsets, whether those came to count or not."""
    errors: int = 0
    """Events with an error, without those whose errors are all routine of the protocol …"""
    routine: int = 0
    """… and these."""
    first_us: int = attrs.field(default=NEVER_US, metadata=by(min))
    last_us: int = attrs.field(default=0, metadata=by(max))

    @property
    def rebalances(self) -> int:
        """Generations that began, without the first."""
        return max(0, len(self.born) - 1)

    def add(self, events: Sequence[GroupEvent], exchange: Exchange) -> None:
        """Count the events of an exchange."""
        time_us = exchange.time_ns // 1000
        self.first_us, self.last_us = min(self.first_us, time_us), max(self.last_us, time_us)
        self.commits += any(each.committed is not None for each in events)
        for each in events:
            self.members |= {each.member_id or ""} - {""}
            self.client_ids |= set() if each.client_id is None else {each.client_id}
            if each.error is not None:
                self.routine += exchange.routine
                self.errors += not exchange.routine
            self.joins += each.event == "JoinGroup"
            self.leaves += each.event == "LeaveGroup"
            if (generation := each.generation) is None:
                continue
            self.generations.add(generation)
            if each.event in _BORN_APIS:
                member = frozenset(() if each.member_id is None else (each.member_id,))
                self.born[generation] = self.born.get(generation, frozenset()) | member
                self.born_us[generation] = min(time_us, self.born_us.get(generation, time_us))
