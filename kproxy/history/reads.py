"""Reads: how groups read partitions, as far as it is certain for which group a client reads.

::

    FetchPosition ─▶ what the client asks for next ─┐
    Read ───────────────────────────────────────────┴─▶ Reading ─▶ FetchedRange, ReadAgain
    OffsetsFetched, Bound, OFFSET_OUT_OF_RANGE ──▶ Jump: offsets that were not read

A Fetch names no group: see `Groups.reader`. Positions are those of connections, for the requests of
a fetch session name only what has changed.

Invariants: memory is bounded by the limits below. Behind a gap, nobody has read anything before.
"""

from __future__ import annotations

from typing import NamedTuple

import attrs

from kproxy.exchange.entities import TopicPartition
from kproxy.history.groups import Owner
from kproxy.history.kept import LagSamples
from kproxy.history.ref import Client, Ref
from kproxy.history.rows import Bound, Commit, Deleted, FetchPosition, OffsetsFetched, Read

_READINGS_MAX = 4000
_KEPT_MAX = 20
"""Stretches that are kept of each partition and group, and jumps, and offsets gone back to."""
_LISTED_MAX = 5000


@attrs.define(eq=False)
class FetchedRange:
    """Offsets that a group fetched one after the other, in one generation."""

    generation: int
    member: str
    first: int
    end: int
    """One past the last record."""
    past: int
    """One past the last batch, markers of transactions included: consumers ask for it next."""
    latest: Ref


@attrs.define(eq=False)
class ReadAgain:
    """Offsets that a group had fetched in one generation, and fetched in the next one again."""

    generations: tuple[int, int]
    first: Ref
    """The last Fetch of the earlier generation."""
    second: Ref
    """The first one of the later."""
    start: int
    end: int
    past: int
    member: str
    """Who fetched them first."""
    commit: Commit | None
    """What stood when they were fetched again."""


class Listed(NamedTuple):
    """An offset that a client asked for with a ListOffsets."""

    offset: int
    kind: str
    ref: Ref


@attrs.frozen(eq=False)
class Jump:
    """A group goes on elsewhere than where it was."""

    start: int | None
    """Where it was: the offset that is out of range, or the one that was committed; None if
    nothing was committed."""
    to: int
    refused: Ref | None
    """The Fetch whose offset was out of range; None if it was not refused."""
    told: Ref | None
    """The OffsetFetch that told what was committed, where the client began."""
    listed: Listed | None
    """The ListOffsets that gave it the offset."""
    ref: Ref
    """The Fetch that asks for it."""


@attrs.define(eq=False)
class Reading:
    """How a group reads a partition."""

    owner: Owner
    """Who reads it."""
    position: int | None = None
    """What the client asks for next, as far as it has fetched."""
    stretch: FetchedRange | None = None
    """What was fetched last, in the latest generation in which something was fetched …"""
    earlier: FetchedRange | None = None
    """… and what was fetched last in the one before, as long as that may be fetched again."""
    again: list[ReadAgain] = attrs.Factory(list)
    jumps: list[Jump] = attrs.Factory(list)
    progress: LagSamples = attrs.Factory(LagSamples)
    commit: Commit | None = None
    """The last one that counts."""
    told: tuple[int, Ref] | None = None
    """What an OffsetFetch told to be committed, until the client fetches."""
    refused: tuple[int, Ref] | None = None
    """The offset that was out of range, until the client asks for another."""

    def begin(self, owner: Owner) -> None:
        """Take the assignment of a Fetch: behind another one, the client begins where it was
        committed, or goes on."""
        if owner.client != self.owner.client:
            self.position = self.refused = None
        self.owner = owner

    def ask(self, ref: Ref, offset: int, listed: Listed | None) -> None:
        """Take the offset that a Fetch asks for."""
        told, self.told = self.told, None
        is_listed = listed is not None and listed.offset == offset
        if self.refused is not None:
            start, refused = self.refused
            if start != offset:
                self._jump(Jump(start, offset, refused, None, listed, ref))
                self.refused = None
        elif told is not None and is_listed:
            start = None if told[0] < 0 else max(told[0], self.position or 0)
            if start is None or start < offset:
                self._jump(Jump(start, offset, None, told[1], listed, ref))
        elif self.position is None and is_listed:
            self._jump(Jump(None, offset, None, None, listed, ref))
        self.position = offset

    def _jump(self, jump: Jump) -> None:
        since, listed = jump.refused or jump.told, jump.listed
        if listed is not None and since is not None and listed.ref.time_ns < since.time_ns:
            if jump.refused is None:
                return
            jump = attrs.evolve(jump, listed=None)  # it asked before it had to
        if len(self.jumps) < _KEPT_MAX:
            self.jumps.append(jump)

    def read(self, ref: Ref, row: Read, asked: int) -> None:
        """Take what a Fetch brought: from the offset that it asked for on."""
        past = row.past or asked
        self.position = past
        if row.high_watermark >= 0:
            self.progress.see(ref, past, row.high_watermark)
        if row.end is None or row.first is None or row.end <= asked:  # only markers
            if self.stretch is not None and self.stretch.generation == self.owner.generation:
                self.stretch.past = past
            if self.again and self.again[-1].past == asked:
                self.again[-1].past = past
            return
        first, end, now = max(asked, row.first), row.end, self.stretch
        if now is None or now.generation != self.owner.generation:
            self.earlier = now if now is not None and first < now.end else None
            self.stretch = FetchedRange(
                self.owner.generation, self.owner.member, first, end, past, ref
            )
        elif asked > now.past:  # it seeks
            now.first, now.end, now.past, now.latest = first, end, past, ref
        else:
            now.first, now.end = min(now.first, first), max(now.end, end)
            now.past, now.latest = max(now.past, past), ref
        before = self.earlier
        if before is not None and max(before.first, first) < min(before.end, end):
            self._again(before, ref, asked, past, max(before.first, first), min(before.end, end))

    def _again(
        self, before: FetchedRange, ref: Ref, asked: int, past: int, start: int, end: int
    ) -> None:
        generations = before.generation, self.owner.generation
        last = self.again[-1] if self.again else None
        if last is not None and last.generations == generations:
            if asked <= last.past and last.start <= past:
                last.start, last.end = min(last.start, start), max(last.end, end)
                last.past = max(last.past, past)
                return
        if len(self.again) < _KEPT_MAX:
            self.again.append(
                ReadAgain(
                    generations, before.latest, ref, start, end, past, before.member, self.commit
                )
            )

    def gap(self) -> None:
        """Take a gap: what was found stays."""
        self.position = self.stretch = self.earlier = self.told = self.refused = self.commit = None
        self.progress.close()


@attrs.define(eq=False)
class Reads:
    """How the groups of a recording read."""

    readings: dict[tuple[str, TopicPartition], Reading] = attrs.Factory(dict)
    """Group and partition → how it is read."""
    dropped: int = 0
    """Fetches of groups and partitions beyond the limit."""
    _positions: dict[int, dict[TopicPartition, tuple[int, Ref]]] = attrs.field(
        factory=dict, init=False
    )
    """Connection → partition → the offset that its Fetch requests named last, and when."""
    _listed: dict[tuple[Client, TopicPartition], Listed] = attrs.field(factory=dict, init=False)
    """The latest offsets that clients asked for."""

    def position(self, connection: int, where: TopicPartition) -> tuple[int, Ref] | None:
        """Return the offset that a connection asks for, and the Fetch that named it; None if it
        asks for none of this partition."""
        return self._positions.get(connection, {}).get(where)

    def end(self, connection: int) -> None:
        """Take the end of a connection."""
        self._positions.pop(connection, None)

    def gap(self) -> None:
        """Take a gap."""
        self._positions.clear()
        self._listed.clear()
        for each in self.readings.values():
            each.gap()

    def deleted(self, ref: Ref, row: Deleted) -> None:
        """Take a deletion: the offsets of a topic begin anew."""
        if (topic := row.deleted_topic) is None:
            return
        for (_, where), each in self.readings.items():
            if where.topic == topic:
                each.gap()
        for positions in self._positions.values():
            for where in [each for each in positions if each.topic == topic]:
                del positions[where]

    def _reading(self, ref: Ref, where: TopicPartition, owner: Owner | None) -> Reading | None:
        """Return how the group of a Fetch reads a partition; None if that is not certain."""
        if owner is None or ref.time_ns < owner.since_ns:
            return None  # it was sent for an earlier assignment
        key = owner.group, where
        found = self.readings.get(key)
        if found is None and len(self.readings) < _READINGS_MAX:
            found = self.readings[key] = Reading(owner)
        if found is None:
            self.dropped += 1
        else:
            found.begin(owner)
        return found

    def offsets_fetched(self, ref: Ref, row: OffsetsFetched, owner: Owner | None) -> None:
        """Take how far a group had committed; `owner` is for whom the client certainly reads."""
        reading = self._reading(ref, row.where, owner)
        if reading is not None and reading.owner.group == row.group and not row.error:
            reading.told = row.offset, ref

    def fetch_position(self, ref: Ref, row: FetchPosition, owner: Owner | None) -> None:
        """Take from where on a client fetches, for that owner."""
        self._positions.setdefault(ref.connection, {})[row.where] = row.offset, ref
        reading = self._reading(ref, row.where, owner)
        if reading is not None:
            reading.ask(ref, row.offset, self._listed.get((ref.client, row.where)))

    def read(self, ref: Ref, row: Read, owner: Owner, asked: int) -> None:
        """Take what a Fetch brought to an owner, from the offset on that it asked for."""
        reading = self._reading(ref, row.where, owner)
        if reading is None:
            return
        if row.error == "OFFSET_OUT_OF_RANGE":
            reading.refused = asked, ref
        elif not (row.error or ref.fate.injected or ref.fate.may_be_lost or ref.fate.is_changed):
            if row.past is not None and row.past > asked:
                reading.read(ref, row, asked)

    def commit(self, ref: Ref, row: Commit) -> None:
        """Take an offset that counts from now on."""
        reading = self.readings.get((row.group, row.where))
        if reading is not None:
            reading.commit = row

    def bound(self, ref: Ref, row: Bound) -> None:
        """Take an offset that a client was told."""
        if ref.api != "ListOffsets":
            return
        key = ref.client, row.where
        self._listed.pop(key, None)
        self._listed[key] = Listed(row.offset, row.kind, ref)
        if len(self._listed) > _LISTED_MAX:
            del self._listed[next(iter(self._listed))]
