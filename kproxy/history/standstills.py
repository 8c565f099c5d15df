"""How far a group is in a partition, and how often it comes back to the same offset.

::

    Commit, OffsetsFetched ─▶ the next offset ◀─ Brought: a Fetch that has it
                                    └◀─ the end of a member: a life that ended there

Invariants: only what was fetched and committed is told, never what an app did with it; memory is
bounded for each partition.
"""

from __future__ import annotations

from typing import NamedTuple

import attrs

from kproxy.exchange.entities import TopicPartition
from kproxy.history.ref import Ref

LEFT, ENDED, REMOVED = "left", "ended without leaving", "did not poll, or fell silent"
"""How a member ended: with a LeaveGroup, with its connection, or because of a timeout."""

STANDS_MIN = 3
"""So often the same offset must be fetched, or members must have ended there."""
SOON_NS = 10_000_000_000
"""What ended within this time after something ended soon after it."""
_BROUGHT_KEPT = 8
_LIVES_KEPT = 100
_STANDSTILLS_KEPT = 10


class Brought(NamedTuple):
    """Offsets that one Fetch brought of a partition."""

    first: int
    end: int
    """One past the last; `first` if there were only markers of transactions."""
    asked: int
    """The offset that it asked for."""
    past: int
    """One past its last batch, markers included: what consumers ask for next."""
    ref: Ref


class Covered(NamedTuple):
    """Records that the latest commit of a member covers, and none before it did."""

    where: TopicPartition
    first: int
    offset: int
    brought: Brought
    """What brought the last of the records."""
    commit: Ref


class Life(NamedTuple):
    """A member that ended after it had fetched what comes next."""

    member: str
    fetched: Ref
    how: str
    ended_ns: int


@attrs.define(eq=False)
class Standstill:
    """The next offset of a group, while it stays the same."""

    offset: int
    committed: Ref | None
    """What committed it, or told that it is committed; None if nothing is committed."""
    record: int | None = None
    """The offset of the first record from there on; None if none was fetched."""
    end: int = 0
    """One past the last record that came with it."""
    first: Ref | None = None
    """The first Fetch that brought it …"""
    last: Ref | None = None
    """… and the last …"""
    times: int = 0
    """… of how many."""
    times_in_a_row: int = 0
    """The most by one member in one generation."""
    lives: list[Life] = attrs.Factory(list)
    until: Ref | None = None
    """What committed more."""
    _row: tuple[str, int, int] = attrs.field(default=("", 0, 0), init=False)
    """The member that fetched it last, its generation, and how often it did in that."""
    _fetched: Ref | None = attrs.field(default=None, init=False)

    @property
    def is_found(self) -> bool:
        """True if it is more than chance."""
        return self.is_of_lives or self.is_fetched_again

    @property
    def is_fetched_again(self) -> bool:
        """True if a member fetched it again and again."""
        return self.committed is not None and self.times_in_a_row >= STANDS_MIN

    @property
    def is_of_lives(self) -> bool:
        """True if members ended there again and again. A member that leaves says that only soon
        after it fetched, and so does one of a group that commits nothing: it may read all again
        each time. What is both says nothing."""
        proofs = 0
        for each in self.lives:
            signs = (self.committed is not None) + (each.how != LEFT)
            is_soon = each.ended_ns - each.fetched.completed_ns <= SOON_NS
            proofs += signs == 2 or (signs == 1 and is_soon)
        return proofs >= STANDS_MIN

    def fetch(self, brought: Brought, member: str, generation: int) -> None:
        """Take a Fetch that brought it."""
        self.record = max(brought.first, self.offset)
        self.end = max(self.end, brought.end)
        self.first, self.last = self.first or brought.ref, brought.ref
        self.times += 1
        in_a_row = self._row[2] if self._row[:2] == (member, generation) else 0
        self._row, self._fetched = (member, generation, in_a_row + 1), brought.ref
        self.times_in_a_row = max(self.times_in_a_row, in_a_row + 1)

    def end_life(self, member: str, how: str, time_ns: int) -> None:
        """Take the end of a member."""
        if self._fetched is not None and self._row[0] == member and len(self.lives) < _LIVES_KEPT:
            self.lives.append(Life(member, self._fetched, how, time_ns))
            self._fetched = None

    def go_on(self, member: str) -> None:
        """Take back the end of a member that goes on, on another connection."""
        if self.lives and self.lives[-1].member == member:
            self.lives.pop()


@attrs.define(eq=False)
class GroupPosition:
    """How far a group is in a partition."""

    stands: Standstill | None = None
    stood: list[Standstill] = attrs.Factory(list)
    """Earlier ones that are more than chance."""
    _is_uncommitted: bool = attrs.field(default=False, init=False)
    """True if the group was told that nothing is committed, and has not fetched since."""
    _member: str = attrs.field(default="", init=False)
    """Who fetched last."""
    _generation: int = attrs.field(default=-1, init=False)
    _first: int = attrs.field(default=0, init=False)
    """The first offset that was fetched in this generation."""
    _past: int = attrs.field(default=0, init=False)
    """Whoever asks for more than that, seeks."""
    _brought: tuple[Brought, ...] = attrs.field(default=(), init=False)
    """The latest, without those that brought only markers."""

    def bring(self, brought: Brought, member: str, generation: int) -> None:
        """Take what a Fetch of a member brought."""
        if brought.first == brought.end:  # only markers: it will go on behind them
            self._past = brought.past if generation == self._generation else self._past
            return
        self._brought = (*self._brought[1 - _BROUGHT_KEPT :], brought)
        self._member = member
        if generation != self._generation or brought.asked > self._past:
            self._generation, self._first, self._past = generation, brought.first, brought.past
        self._first = min(self._first, brought.first)
        self._past = max(self._past, brought.past)
        if self._is_uncommitted:
            self._is_uncommitted = False
            if self.stands is None or self.stands.offset != brought.asked:
                self._stand(Standstill(brought.asked, None), None)
        stands = self.stands
        if stands is not None and brought.asked <= stands.offset < brought.end:
            stands.fetch(brought, member, generation)

    def told(self, offset: int, ref: Ref) -> None:
        """Take what a coordinator tells of the committed offset."""
        if offset < 0:
            self._is_uncommitted = self.stands is None or self.stands.committed is None
        elif self.stands is None or self.stands.offset != offset:
            self._stand(Standstill(offset, ref), None)

    def commit(self, where: TopicPartition, offset: int, ref: Ref) -> Covered | None:
        """Take a commit; return what it newly covers of what was fetched."""
        stands = self.stands
        first = self._first
        if stands is not None and stands.committed is not None:
            first = max(first, stands.offset)
        if stands is None or stands.offset != offset:
            self._stand(Standstill(offset, ref), ref)
            self._fetched_before()
        elif stands.committed is None:
            stands.committed = ref
        for each in self._brought:
            own = each.ref.client == ref.client and each.ref.completed_ns <= ref.time_ns
            if own and first < offset and each.first < offset <= each.end:
                return Covered(where, first, offset, each, ref)
        return None

    def _fetched_before(self) -> None:
        """Count an earlier Fetch that has brought what comes next, too."""
        for each in self._brought:
            if self.stands is not None and each.first <= self.stands.offset < each.end:
                self.stands.fetch(each, self._member, self._generation)
                return

    def forget(self) -> None:
        """Forget how far the group is: a gap, or an uncertain commit, came."""
        self._stand(None, None)
        self._generation = -1
        self._brought = ()

    def _stand(self, now: Standstill | None, until: Ref | None) -> None:
        before = self.stands
        if before is not None and before.is_found and len(self.stood) < _STANDSTILLS_KEPT:
            before.until = until
            self.stood.append(before)
        self.stands, self._is_uncommitted = now, False
