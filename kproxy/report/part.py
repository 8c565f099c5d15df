"""The counts of a report over some exchanges and notes; parts are merged.

    Exchange, Note ─▶ ReportPart ─ merge ─▶ ReportPart ─▶ summary.report_data

Memory grows with the number of APIs, clients, topics, groups and their generations, errors,
connections, producers and files, not with the number of exchanges.

Invariant: the sum of parts does not depend on their order, nor on how exchanges were divided. So
one process, several, and tasks of Spark come to the same report.
"""

from __future__ import annotations

import heapq
from collections import Counter
from typing import Any

import attrs

from kproxy.exchange.counts import Counts, Place
from kproxy.exchange.derived import UNKNOWN
from kproxy.exchange.entries import CONNECTIONS, EVENTS, Note
from kproxy.exchange.exchange import Exchange
from kproxy.exchange.histogram import bucket
from kproxy.recording.notices import notice
from kproxy.report.bodies import ExchangeBodies, GroupEvent
from kproxy.report.commits import CommittedOffsets
from kproxy.report.data import ROWS_MAX, FileSpan
from kproxy.report.numbered import NumberedRecords
from kproxy.report.slots import Slots
from kproxy.units import moment

_SLOTS_MAX = 180
_PHASES_MAX = 24
_BORN_APIS = frozenset({"JoinGroup", "ConsumerGroupHeartbeat"})
_SENTENCES = frozenset({"torn", "damaged", "missing", "copied", "unread"})
"""Notes on the state of a file, which each have a sentence."""


@attrs.define(eq=False)
class GroupTally:
    """The counts of one group."""

    members: set[str] = attrs.field(factory=set)
    client_ids: set[str] = attrs.field(factory=set)
    generations: set[int] = attrs.field(factory=set)
    born: dict[int, tuple[int, frozenset[str]]] = attrs.field(factory=dict)
    """Generation → when its first member joined, and its members."""
    joins: int = 0
    leaves: int = 0
    commits: int = 0
    """Requests that committed offsets, whether those came to count or not."""
    errors: int = 0
    """Events with an error, without those whose errors are all routine of the protocol …"""
    routine: int = 0
    """… and these."""
    first_us: int | None = None
    last_us: int | None = None

    def add(self, event: GroupEvent, exchange: Exchange, time_us: int) -> None:
        """Take what a member did in an exchange."""
        member = {event.member_id} if event.member_id is not None else set[str]()
        self.members |= member - {""}
        self.client_ids |= set() if event.client_id is None else {event.client_id}
        if event.error is not None:
            self.routine += exchange.routine
            self.errors += not exchange.routine
        self.joins += event.event == "JoinGroup"
        self.leaves += event.event == "LeaveGroup"
        self.first_us, self.last_us = _span(self, time_us, time_us)
        if event.generation is not None:
            self.generations.add(event.generation)
            if event.event in _BORN_APIS:
                self.bear(event.generation, time_us, frozenset(member))

    def merge(self, other: GroupTally) -> None:
        """Add the counts of another tally."""
        self.members |= other.members
        self.client_ids |= other.client_ids
        self.generations |= other.generations
        for name in ("joins", "leaves", "commits", "errors", "routine"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        if other.first_us is not None and other.last_us is not None:
            self.first_us, self.last_us = _span(self, other.first_us, other.last_us)
        for generation, (time_us, members) in other.born.items():
            self.bear(generation, time_us, members)

    def bear(self, generation: int, time_us: int, members: frozenset[str]) -> None:
        """Take members that joined a generation."""
        before_us, before = self.born.get(generation, (time_us, members))
        self.born[generation] = min(time_us, before_us), before | members


def _span(group: GroupTally, first_us: int, last_us: int) -> tuple[int, int]:
    """Return the time of a group's events together with others."""
    if group.first_us is None or group.last_us is None:
        return first_us, last_us
    return min(group.first_us, first_us), max(group.last_us, last_us)


@attrs.define(eq=False)
class ReportPart:
    """Counts of exchanges and notes."""

    slots: Slots = attrs.field(factory=lambda: Slots(_SLOTS_MAX))
    """Keys: bucket and its number, api, error; produced and consumed (bytes) and topic."""
    phases: Slots = attrs.field(factory=lambda: Slots(_PHASES_MAX))
    """Keys: API, topic, bucket of the broker's time; None as the bucket counts them all."""
    files: dict[str, FileSpan] = attrs.field(factory=dict)
    counts: Counts = attrs.field(factory=Counts)
    groups: dict[tuple[str, str], GroupTally] = attrs.field(factory=dict)
    """Recording and group → counts."""
    commits: dict[str, CommittedOffsets] = attrs.field(factory=dict)
    """Recording → how far its groups have committed."""
    cluster_ids: dict[str, set[str]] = attrs.field(factory=dict)
    """Recording → ids of clusters that it shows."""
    connections: set[tuple[str, int]] = attrs.field(factory=set)
    records: Counter[str] = attrs.field(factory=Counter)
    """Records that were "produced", without those of `numbered`, and "consumed"."""
    numbered: NumberedRecords = attrs.field(factory=NumberedRecords)
    """Records that idempotent producers wrote."""
    slowest: list[tuple[Any, ...]] = attrs.field(factory=list)
    """The negative time that the broker took, time and place of the exchange, and its row."""
    ended_by: Counter[str] = attrs.field(factory=Counter)
    faults: int = 0
    """Faults that fired."""
    stalls: int = 0
    longest_stall_seconds: float = 0.0
    lost: dict[str, tuple[int, int]] = attrs.field(factory=dict)
    """Reason → frames and bytes that are not in the recordings."""
    sentences: set[tuple[int, str]] = attrs.field(factory=set)
    """Times and sentences on the state of files."""

    @property
    def produced(self) -> int:
        """The number of records that were written, each once."""
        return self.records["produced"] + self.numbered.count

    # ---- exchanges

    def add(self, exchange: Exchange, bodies: ExchangeBodies, recording: str, file: str) -> None:
        """Count an exchange of a file, and what its bodies say."""
        number, time_us = exchange.number, exchange.time_ns // 1000
        span = FileSpan(file, recording, time_us, time_us, number, number)
        self.files[file] = span.joined(self.files.get(file, span))
        self.connections.add((recording, exchange.connection))
        self.counts.add(exchange, (file, number))
        self._add_over_time(exchange, bodies, recording, time_us)
        self._add_slowest(exchange, (file, number))
        if bodies.cluster_id is not None:
            self.cluster_ids.setdefault(recording, set()).add(bodies.cluster_id)
        offsets = self.commits.setdefault(recording, CommittedOffsets())
        offsets.take(bodies.ref, bodies.rows)
        commits = False
        for event in bodies.group_events:
            group = self.groups.setdefault((recording, event.group), GroupTally())
            group.add(event, exchange, time_us)
            # A request commits several offsets, and is counted once.
            group.commits += event.commit is not None and not commits
            commits = commits or event.commit is not None

    def _add_over_time(
        self, exchange: Exchange, bodies: ExchangeBodies, recording: str, time_us: int
    ) -> None:
        api, counts = exchange.api, self.slots.at(time_us)
        counts["api", api] += 1
        at = None if exchange.served_us == UNKNOWN else bucket(exchange.served_us)
        if at is not None:
            counts["bucket", at] += 1
        for error in exchange.errors:
            counts["error", error] += 1
        for each in bodies.traffic:
            direction = "produced" if each.produced else "consumed"
            counts[direction, each.where.topic] += each.bytes
            if each.numbers is None:
                self.records[direction] += each.records
            else:
                producer_id, epoch, sequence = each.numbers
                key = recording, each.where.topic, each.where.partition, producer_id, epoch
                self.numbered.add(key, sequence, sequence + each.records)
        for topic in exchange.topics:
            phase = self.phases.at(time_us)
            for each in {at, None}:
                phase[api, topic, each] += 1

    def _add_slowest(self, exchange: Exchange, place: Place) -> None:
        served_us = exchange.served_us
        least_us = -self.slowest[-1][0] if len(self.slowest) >= ROWS_MAX else 0
        if served_us == UNKNOWN or served_us < least_us:
            return
        shown = {
            "number": exchange.number, "file": place[0], "time": moment(exchange.time_ns),
            "api": exchange.api, "client_id": exchange.client_id, "node_id": exchange.node_id,
            "topics": exchange.topics, "service_ms": served_us / 1000,
            "waiting_ms": exchange.waiting_us / 1000, "queued_ms": exchange.queued_us / 1000,
        }  # fmt: skip
        self.slowest.append((-served_us, exchange.time_ns, place, shown))
        self._keep_slowest()

    def _keep_slowest(self) -> None:
        self.slowest = heapq.nsmallest(ROWS_MAX, self.slowest, key=lambda each: each[:3])

    # ---- notes

    def add_note(self, note: Note) -> None:
        """Count a note."""
        body = note.body
        event = body.get("event")
        if note.channel == CONNECTIONS:
            if event == "closed":
                self.ended_by[body.get("first") or body.get("side") or "proxy"] += 1
            return
        if note.channel != EVENTS:
            return
        if event == "fault":
            self.faults += 1
        elif event == "stood_still":
            self.stalls += 1
            self.longest_stall_seconds = max(self.longest_stall_seconds, body.get("seconds") or 0.0)
        elif event == "lost":
            reason = body.get("reason") or "?"
            frames, size = (body.get(name) or 0 for name in ("frames", "bytes"))
            before = self.lost.get(reason, (0, 0))
            self.lost[reason] = before[0] + frames, before[1] + size
        elif event in _SENTENCES and (sentence := notice(note)) is not None:
            self.sentences.add((note.time_ns, sentence))

    # ---- sums

    def merge(self, other: ReportPart) -> None:
        """Add the counts of another part, which may change."""
        self.slots.merge(other.slots)
        self.phases.merge(other.phases)
        self.counts.merge(other.counts)
        for key, group in other.groups.items():
            self.groups.setdefault(key, GroupTally()).merge(group)
        for file, span in other.files.items():
            before = self.files.get(file)
            self.files[file] = span if before is None else span.joined(before)
        for recording, commits in other.commits.items():
            self.commits.setdefault(recording, CommittedOffsets()).merge(commits)
        for recording, found in other.cluster_ids.items():
            self.cluster_ids.setdefault(recording, set()).update(found)
        for reason, (frames, size) in other.lost.items():
            before = self.lost.get(reason, (0, 0))
            self.lost[reason] = before[0] + frames, before[1] + size
        self.connections |= other.connections
        self.records.update(other.records)
        self.numbered.merge(other.numbered)
        self.ended_by.update(other.ended_by)
        self.sentences |= other.sentences
        self.faults += other.faults
        self.stalls += other.stalls
        self.longest_stall_seconds = max(self.longest_stall_seconds, other.longest_stall_seconds)
        self.slowest += other.slowest
        self._keep_slowest()
