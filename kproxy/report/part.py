"""The counts of a report over some exchanges and notes; parts are merged.

    Exchange ─▶ CountedExchange … ─┐
                             Note ─┴▶ ReportPart ─ merge ─▶ ReportPart ─▶ summary.report_data

Exchanges are counted many at a time: most of what is counted of them is the same for many.

Memory grows with the number of APIs, clients, topics, groups and their generations, errors,
connections and files, not with the number of exchanges.

Invariant: the sum of parts does not depend on their order, nor on how exchanges were divided. So
one process, several, and tasks of Spark come to the same report.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Any, NamedTuple

import attrs

from kproxy.exchange.derived import UNKNOWN
from kproxy.exchange.entries import CONNECTIONS, EVENTS, Note
from kproxy.exchange.exchange import Exchange
from kproxy.exchange.histogram import Histogram, bucket
from kproxy.recording.notices import notice
from kproxy.report.bodies import ExchangeBodies, bodies_of
from kproxy.report.data import ROWS_MAX, FileSpan
from kproxy.report.slots import Slots
from kproxy.units import moment

_SLOTS_MAX = 180
_PHASES_MAX = 24
_TOPICS_MAX = 20
"""Topics that are named with an error."""
_BORN_APIS = frozenset({"JoinGroup", "ConsumerGroupHeartbeat"})
_SENTENCES = frozenset({"torn", "damaged", "missing", "copied", "unread"})
"""Notes on the state of a file, which each have a sentence."""

Place = tuple[str, int]
"""A file, and the number of an exchange in it."""


class CountedExchange(NamedTuple):
    """What is counted of an exchange."""

    number: int
    time_ns: int
    connection: int
    client_id: str | None
    node_id: int | None
    api: str | None
    bytes: int
    """Those of the request and the response."""
    served_us: int
    waiting_us: int
    queued_us: int
    proxy_us: int
    unanswered: bool
    open_at_end: bool
    undelivered: bool
    touched: bool
    """True if a fault rule touched it."""
    bodies: ExchangeBodies

    @classmethod
    def of(cls, exchange: Exchange) -> CountedExchange:
        """Return what is counted of an exchange."""
        bodies = bodies_of(exchange)  # first: facts are found without decoding
        return cls(
            exchange.number, exchange.time_ns, exchange.connection, exchange.client_id,
            exchange.node_id, exchange.api,
            (exchange.request_bytes or 0) + (exchange.response_bytes or 0), exchange.served_us,
            exchange.waiting_us, exchange.queued_us, exchange.proxy_us,
            exchange.unanswered is not None, exchange.open_at_end, exchange.undelivered,
            bool(exchange.row.fault_ids), bodies,
        )  # fmt: skip


def _first(*places: Any) -> Any:
    """Return the least of times with places; None if there is none."""
    return min((each for each in places if each is not None), default=None)


@attrs.define(eq=False)
class ApiTally:
    """The counts of one API."""

    count: int = 0
    errors: int = 0
    """Exchanges with errors, without those whose errors are all routine of the protocol …"""
    routine: int = 0
    """… and these."""
    unanswered: int = 0
    open: int = 0
    """Of the unanswered, the requests that may have been answered after the recording ended."""
    silenced: int = 0
    """Of those, the requests that fault rules touched."""
    undelivered: int = 0
    """Responses that came and did not reach their clients, or not whole."""
    waited: int = 0
    queued: int = 0
    queued_us: int = 0
    bytes: int = 0
    broker: Histogram = attrs.field(factory=Histogram)
    proxy: Histogram = attrs.field(factory=Histogram)
    """What kproxy added to exchanges that no fault rule touched."""
    first_unanswered: tuple[int, Place] | None = None
    """The first of the other requests without a response: its time, its place."""
    longest_held: tuple[int, Place] | None = None
    """The longest of these times, in microseconds, and the exchange."""

    def add(self, rows: Sequence[CountedExchange], file: str) -> None:
        """Count exchanges of the API in a file."""
        self.count += len(rows)
        self.errors += sum(1 for row in rows if row.bodies.errors and not row.bodies.routine)
        self.routine += sum(row.bodies.routine for row in rows)
        self.undelivered += sum(row.undelivered for row in rows)
        self.bytes += sum(row.bytes for row in rows)
        self.waited += sum(row.waiting_us > 0 for row in rows)
        queued = [row.queued_us for row in rows if row.queued_us > 0]
        self.queued += len(queued)
        self.queued_us += sum(queued)
        self.broker.merge(Histogram.of(Counter(row.served_us for row in rows)))
        self._add_unanswered([row for row in rows if row.unanswered], file)
        own = [row for row in rows if row.proxy_us != UNKNOWN and not row.touched]
        if own:
            self.proxy.merge(Histogram.of(Counter(row.proxy_us for row in own)))
            held_us, number = min((-row.proxy_us, row.number) for row in own)
            self.hold(-held_us, (file, number))

    def _add_unanswered(self, rows: Sequence[CountedExchange], file: str) -> None:
        self.unanswered += len(rows)
        for row in rows:
            if row.open_at_end:
                self.open += 1
            elif row.touched:
                self.silenced += 1
            else:
                here = row.time_ns // 1000, (file, row.number)
                self.first_unanswered = _first(self.first_unanswered, here)

    def merge(self, other: ApiTally) -> None:
        """Add the counts of another tally."""
        for name in _SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.broker.merge(other.broker)
        self.proxy.merge(other.proxy)
        self.first_unanswered = _first(self.first_unanswered, other.first_unanswered)
        if other.longest_held is not None:
            self.hold(*other.longest_held)

    def hold(self, held_us: int, place: Place) -> None:
        """Take how long kproxy held an exchange."""
        held = self.longest_held
        if held is None or (-held_us, place) < (-held[0], held[1]):
            self.longest_held = held_us, place


_SUMS = (
    "count", "errors", "routine", "unanswered", "open", "silenced", "undelivered", "waited",
    "queued", "queued_us", "bytes",
)  # fmt: skip
"""Counts of an API that are added."""


@attrs.define(eq=False)
class NamedTally:
    """The counts of one API to one topic, or of one client."""

    count: int = 0
    errors: int = 0
    """Exchanges with errors, without those whose errors are all routine of the protocol."""
    broker: Histogram = attrs.field(factory=Histogram)

    def add(self, rows: Sequence[CountedExchange]) -> None:
        """Count exchanges of the API."""
        self.count += len(rows)
        self.errors += sum(1 for row in rows if row.bodies.errors and not row.bodies.routine)
        self.broker.merge(Histogram.of(Counter(row.served_us for row in rows)))

    def merge(self, other: NamedTally) -> None:
        """Add the counts of another tally."""
        self.count += other.count
        self.errors += other.errors
        self.broker.merge(other.broker)


@attrs.define(eq=False)
class ErrorTally:
    """The counts of one error of an API."""

    count: int = 0
    injected: int = 0
    """Those that a fault rule made, in the broker's place or after its answer."""
    routine: int = 0
    """Exchanges whose errors are all routine of the protocol."""
    first: tuple[tuple[bool, int], Place] | None = None
    """The first exchange with it, of those that are not routine if there is one: whether it is
    routine, its time, its place."""
    client_ids: set[str] = attrs.field(factory=set)
    topics: set[str] = attrs.field(factory=set)

    def merge(self, other: ErrorTally) -> None:
        """Add the counts of another tally."""
        self.count += other.count
        self.injected += other.injected
        self.routine += other.routine
        self.first = _first(self.first, other.first)
        self.client_ids |= other.client_ids
        self.topics |= other.topics
        if len(self.topics) > _TOPICS_MAX:
            self.topics = set(sorted(self.topics)[:_TOPICS_MAX])


@attrs.define(eq=False)
class GroupTally:
    """The counts of one group."""

    members: set[str] = attrs.field(factory=set)
    client_ids: set[str] = attrs.field(factory=set)
    generations: set[int] = attrs.field(factory=set)
    born: dict[int, tuple[int, frozenset[str]]] = attrs.field(factory=dict)
    """Generation → when its first member joined, and its members."""
    commits: int = 0
    errors: int = 0
    committed: dict[tuple[str, int], tuple[int, int, int]] = attrs.field(factory=dict)
    """Topic and partition → time and exchange of the last commit, and its offset."""

    def merge(self, other: GroupTally) -> None:
        """Add the counts of another tally."""
        self.members |= other.members
        self.client_ids |= other.client_ids
        self.generations |= other.generations
        self.commits += other.commits
        self.errors += other.errors
        for generation, (time_us, members) in other.born.items():
            self.bear(generation, time_us, members)
        for where, commit in other.committed.items():
            self.committed[where] = max(commit, self.committed.get(where, commit))

    def bear(self, generation: int, time_us: int, members: frozenset[str]) -> None:
        """Take members that joined a generation."""
        before_us, before = self.born.get(generation, (time_us, members))
        self.born[generation] = min(time_us, before_us), before | members


@attrs.define(eq=False)
class ReportPart:
    """Counts of exchanges and notes."""

    slots: Slots = attrs.field(factory=lambda: Slots(_SLOTS_MAX))
    """Keys: bucket and its number, api, error; produced and consumed (bytes) and topic."""
    phases: Slots = attrs.field(factory=lambda: Slots(_PHASES_MAX))
    """Keys: API, topic, bucket of the broker's time; None as the bucket counts them all."""
    files: dict[str, FileSpan] = attrs.field(factory=dict)
    apis: dict[str | None, ApiTally] = attrs.field(factory=dict)
    named: dict[tuple[str, str | None, str | None], NamedTally] = attrs.field(factory=dict)
    """"topic" or "client", API, name of the topic or client → counts."""
    errors: dict[tuple[str, str | None], ErrorTally] = attrs.field(factory=dict)
    groups: dict[tuple[str, str], GroupTally] = attrs.field(factory=dict)
    """Recording and group → counts."""
    log_ends: dict[tuple[str, str, int], int] = attrs.field(factory=dict)
    """Recording, topic and partition → the largest end of the log."""
    cluster_ids: dict[str, set[str]] = attrs.field(factory=dict)
    """Recording → ids of clusters that it shows."""
    clients: set[str] = attrs.field(factory=set)
    connections: set[tuple[str, int]] = attrs.field(factory=set)
    records: Counter[str] = attrs.field(factory=Counter)
    """Records that were "produced" and "consumed"."""
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

    # ---- exchanges

    def add(self, rows: Sequence[CountedExchange], recording: str, file: str) -> None:
        """Count exchanges of a file."""
        if not rows:
            return
        times_us, numbers = [row.time_ns // 1000 for row in rows], [row.number for row in rows]
        span = FileSpan(file, recording, min(times_us), max(times_us), min(numbers), max(numbers))
        self.files[file] = span.joined(self.files.get(file, span))
        self.connections |= {(recording, row.connection) for row in rows}
        self.clients |= {row.client_id for row in rows if row.client_id is not None}
        buckets = [None if row.served_us == UNKNOWN else bucket(row.served_us) for row in rows]
        by_api: dict[str | None, list[CountedExchange]] = {}
        for row in rows:
            by_api.setdefault(row.api, []).append(row)
        for api, some in by_api.items():
            self.apis.setdefault(api, ApiTally()).add(some, file)
        self._add_names(rows, buckets)
        self._add_over_time(rows, buckets)
        self._add_slowest(rows, file)
        for row in rows:
            self._add_bodies(row, recording, file)

    def _add_names(self, rows: Sequence[CountedExchange], buckets: Sequence[int | None]) -> None:
        width_us = self.phases.width_ms * 1000
        by_name: dict[tuple[str, str | None, str | None], list[CountedExchange]] = {}
        topics: Counter[tuple[str | None, str, int | None, int]] = Counter()
        for row, at in zip(rows, buckets, strict=True):
            by_name.setdefault(("client", row.api, row.client_id), []).append(row)
            for topic in row.bodies.topics:
                by_name.setdefault(("topic", row.api, topic), []).append(row)
                topics[row.api, topic, at, row.time_ns // 1000 // width_us] += 1
        for name, some in by_name.items():
            self.named.setdefault(name, NamedTally()).add(some)
        for (api, topic, at, slot), count in topics.items():
            phase = self.phases.at(slot * width_us)
            phase[api, topic, None] += count
            if at is not None:
                phase[api, topic, at] += count

    def _add_over_time(
        self, rows: Sequence[CountedExchange], buckets: Sequence[int | None]
    ) -> None:
        width_us = self.slots.width_ms * 1000
        slots = [row.time_ns // 1000 // width_us for row in rows]
        counts: Counter[tuple[Any, ...]] = Counter()
        counts.update(zip(slots, repeat("api"), (row.api for row in rows), strict=False))
        counts.update(
            (slot, "bucket", at) for slot, at in zip(slots, buckets, strict=True) if at is not None
        )
        for slot, row in zip(slots, rows, strict=True):
            for error, _ in row.bodies.errors:
                counts[slot, "error", error] += 1
            for where, produced, records, size in row.bodies.traffic:
                direction = "produced" if produced else "consumed"
                self.records[direction] += records
                counts[slot, direction, where.topic] += size
        for (slot, *key), count in counts.items():
            self.slots.at(slot * width_us)[tuple(key)] += count

    def _add_slowest(self, rows: Iterable[CountedExchange], file: str) -> None:
        least_us = -self.slowest[-1][0] if len(self.slowest) >= ROWS_MAX else 0
        for row in rows:
            if row.served_us == UNKNOWN or row.served_us < least_us:
                continue
            shown = {
                "number": row.number, "file": file, "time": moment(row.time_ns), "api": row.api,
                "client_id": row.client_id, "node_id": row.node_id, "topics": row.bodies.topics,
                "service_ms": row.served_us / 1000, "waiting_ms": row.waiting_us / 1000,
                "queued_ms": row.queued_us / 1000,
            }  # fmt: skip
            self.slowest.append((-row.served_us, row.time_ns, (file, row.number), shown))
        self._keep_slowest()

    def _keep_slowest(self) -> None:
        self.slowest = heapq.nsmallest(ROWS_MAX, self.slowest, key=lambda each: each[:3])

    def _add_bodies(self, row: CountedExchange, recording: str, file: str) -> None:
        bodies = row.bodies
        for error, by_rule in bodies.errors:
            self._add_error(error, by_rule, row, (file, row.number))
        if bodies.cluster_id is not None:
            self.cluster_ids.setdefault(recording, set()).add(bodies.cluster_id)
        for topic, partition, offset in bodies.log_ends:
            key = recording, topic, partition
            self.log_ends[key] = max(offset, self.log_ends.get(key, 0))
        if bodies.group_events:
            self._add_group(row, recording)

    def _add_error(self, error: str, by_rule: bool, row: CountedExchange, place: Place) -> None:
        tally = self.errors.setdefault((error, row.api), ErrorTally())
        clients = set() if row.client_id is None else {row.client_id}
        routine = row.bodies.routine
        first = (routine, row.time_ns // 1000), place
        topics = set(row.bodies.topics)
        tally.merge(ErrorTally(1, int(by_rule), int(routine), first, clients, topics))

    def _add_group(self, row: CountedExchange, recording: str) -> None:
        commits, time_us = False, row.time_ns // 1000
        for said in row.bodies.group_events:
            group = self.groups.setdefault((recording, said.group), GroupTally())
            member = {said.member_id} if said.member_id is not None else set[str]()
            group.members |= member - {""}
            group.client_ids |= set() if said.client_id is None else {said.client_id}
            group.errors += said.error is not None and not row.bodies.routine
            if said.generation is not None:
                group.generations.add(said.generation)
                if said.event in _BORN_APIS:
                    group.bear(said.generation, time_us, frozenset(member))
            if said.commit is not None:
                group.commits += not commits
                commits = True
                if said.error is None:
                    where, offset = said.commit
                    commit = time_us, row.number, offset
                    group.committed[where] = max(commit, group.committed.get(where, commit))

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
        for name, empty in _TALLIES.items():
            tallies = getattr(self, name)
            for key, tally in getattr(other, name).items():
                if key not in tallies:
                    tallies[key] = empty()
                tallies[key].merge(tally)
        for file, span in other.files.items():
            before = self.files.get(file)
            self.files[file] = span if before is None else span.joined(before)
        for key, offset in other.log_ends.items():
            self.log_ends[key] = max(offset, self.log_ends.get(key, 0))
        for recording, found in other.cluster_ids.items():
            self.cluster_ids.setdefault(recording, set()).update(found)
        for reason, (frames, size) in other.lost.items():
            before = self.lost.get(reason, (0, 0))
            self.lost[reason] = before[0] + frames, before[1] + size
        self.clients |= other.clients
        self.connections |= other.connections
        self.records.update(other.records)
        self.ended_by.update(other.ended_by)
        self.sentences |= other.sentences
        self.faults += other.faults
        self.stalls += other.stalls
        self.longest_stall_seconds = max(self.longest_stall_seconds, other.longest_stall_seconds)
        self.slowest += other.slowest
        self._keep_slowest()


_TALLIES = {"apis": ApiTally, "named": NamedTally, "errors": ErrorTally, "groups": GroupTally}
"""Attributes of a part that are tallies by key, and what an empty one is."""
