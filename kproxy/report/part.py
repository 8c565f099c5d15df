"""The counts of a report over some exchanges and notes; parts are merged.

    Exchange, Note ─▶ ReportPart ─ merge ─▶ ReportPart ─ summary.report_data ─▶ ReportData

Memory grows with the number of APIs, clients, topics, groups, errors and connections, not with the
length of the recordings.

Invariant: the sum of parts does not depend on their order, nor on how exchanges were divided. So
one process, several, and tasks of Spark come to the same report.
"""

from __future__ import annotations

import heapq
from collections import Counter
from typing import Any

import attrs

from kproxy.exchange.derived import UNKNOWN
from kproxy.exchange.endings import integer, text
from kproxy.exchange.entries import CONNECTIONS, EVENTS, Note
from kproxy.exchange.exchange import Exchange
from kproxy.exchange.histogram import Histogram, bucket
from kproxy.recording.notices import notice
from kproxy.report import bodies
from kproxy.report.data import ROWS_MAX, FileSpan
from kproxy.report.slots import Key, Slots
from kproxy.why.failures import made_by_rule

_SLOTS_MAX = 180
_PHASES_MAX = 24
_TOPICS_MAX = 20
"""Topics that are named with an error."""
CLUSTER_ID_APIS = frozenset({"Metadata", "DescribeCluster"})
_BORN_APIS = frozenset({"JoinGroup", "ConsumerGroupHeartbeat"})
_SENTENCES = frozenset({"torn", "damaged", "missing", "copied"})
"""Notes on the state of a file, which each have a sentence."""

Place = tuple[str, int]
"""A file, and the number of an exchange in it."""


def _first(*places: Any) -> Any:
    """Return the least of times with places; None if there is none."""
    return min((each for each in places if each is not None), default=None)


@attrs.define(eq=False)
class ApiTally:
    """The counts of one API."""

    count: int = 0
    errors: int = 0
    routine: int = 0
    """Of those, the exchanges whose errors are all routine of the protocol."""
    unanswered: int = 0
    open: int = 0
    """Of those, the requests that may have been answered after the recording ended."""
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
    histogram: Counter[int] = attrs.field(factory=Counter)

    def merge(self, other: NamedTally) -> None:
        """Add the counts of another tally."""
        self.count += other.count
        self.errors += other.errors
        self.histogram.update(other.histogram)


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
    stalls: int = 0
    stall_seconds: float = 0.0
    lost: dict[str, tuple[int, int]] = attrs.field(factory=dict)
    """Reason → frames and bytes that are not in the recordings."""
    sentences: set[tuple[int, str]] = attrs.field(factory=set)
    """Times and sentences on the state of files."""

    # ---- exchanges

    def add(self, exchange: Exchange, recording: str, file: str) -> None:
        """Count an exchange of a file."""
        time_us, number = exchange.time_ns // 1000, exchange.number
        place = file, number
        span = self.files.get(file)
        if span is None or not span.covers(time_us, number):
            one = FileSpan(file, recording, time_us, time_us, number, number)
            self.files[file] = one if span is None else span.joined(one)
        self.connections.add((recording, exchange.connection))
        if exchange.client_id is not None:
            self.clients.add(exchange.client_id)
        served_us = exchange.served_us
        at = None if served_us == UNKNOWN else bucket(served_us)
        self._add_to_api(exchange, served_us, place)
        self._add_names(exchange, time_us, at)
        slot = self.slots.at(time_us)
        slot["api", exchange.api] += 1
        if at is not None:
            slot["bucket", at] += 1
            self._add_slow(exchange, served_us, place)
        for error in exchange.errors:
            slot["error", error] += 1
            self._add_error(error, exchange, time_us, place)
        if exchange.facts.records:
            self._add_traffic(exchange, slot)
        self._add_cluster(exchange, recording)
        self._add_group(exchange, recording, time_us)

    def _add_traffic(self, exchange: Exchange, slot: Counter[Key]) -> None:
        traffic: Counter[tuple[Any, ...]] = Counter()
        bodies.count_traffic(exchange, 0, traffic)
        for (topic, _, _, produced, what), n in traffic.items():
            direction = "produced" if produced else "consumed"
            if what == bodies.RECORDS:
                self.records[direction] += n
            elif what == bodies.BYTES:
                slot[direction, topic] += n

    def _add_to_api(self, exchange: Exchange, served_us: int, place: Place) -> None:
        tally = self.apis.get(exchange.api)
        if tally is None:
            tally = self.apis[exchange.api] = ApiTally()
        tally.count += 1
        if exchange.errors:
            tally.errors += 1
            tally.routine += exchange.routine
        if exchange.unanswered is not None:
            tally.unanswered += 1
            if exchange.open_at_end:
                tally.open += 1
            elif exchange.row.fault_ids:
                tally.silenced += 1
            else:
                here = exchange.time_ns // 1000, place
                tally.first_unanswered = _first(tally.first_unanswered, here)
        tally.undelivered += exchange.undelivered
        tally.waited += exchange.waiting_us > 0
        if exchange.queued_us > 0:
            tally.queued += 1
            tally.queued_us += exchange.queued_us
        tally.bytes += (exchange.request_bytes or 0) + (exchange.response_bytes or 0)
        if served_us != UNKNOWN:
            tally.broker.add(served_us)
        held_us = exchange.proxy_us
        if held_us != UNKNOWN and not exchange.row.fault_ids:
            tally.proxy.add(held_us)
            tally.hold(held_us, place)

    def _add_names(self, exchange: Exchange, time_us: int, at: int | None) -> None:
        api, failed, topics = exchange.api, bool(exchange.errors), exchange.topics
        keys = [("client", api, exchange.client_id), *(("topic", api, name) for name in topics)]
        for key in keys:
            tally = self.named.get(key)
            if tally is None:
                tally = self.named[key] = NamedTally()
            tally.count += 1
            tally.errors += failed
            if at is not None:
                tally.histogram[at] += 1
        if topics:
            phase = self.phases.at(time_us)
            for topic in topics:
                phase[api, topic, None] += 1
                if at is not None:
                    phase[api, topic, at] += 1

    def _add_slow(self, exchange: Exchange, served_us: int, place: Place) -> None:
        if len(self.slowest) >= ROWS_MAX and -served_us > self.slowest[-1][0]:
            return
        row = {
            "number": exchange.number, "file": place[0], "time": exchange.time,
            "api": exchange.api, "client_id": exchange.client_id, "node_id": exchange.node_id,
            "topics": exchange.topics, "service_ms": exchange.service_ms,
            "waiting_ms": exchange.waiting_ms, "queued_ms": exchange.queued_ms,
        }  # fmt: skip
        self.slowest.append((-served_us, exchange.time_ns, place, row))
        self._keep_slowest()

    def _keep_slowest(self) -> None:
        self.slowest = heapq.nsmallest(ROWS_MAX, self.slowest, key=lambda each: each[:3])

    def _add_error(self, error: str, exchange: Exchange, time_us: int, place: Place) -> None:
        tally = self.errors.get((error, exchange.api))
        if tally is None:
            tally = self.errors[error, exchange.api] = ErrorTally()
        clients = set() if exchange.client_id is None else {exchange.client_id}
        injected, routine = made_by_rule(exchange, error), exchange.routine
        first = (routine, time_us), place
        topics = set(exchange.topics)
        tally.merge(ErrorTally(1, int(injected), int(routine), first, clients, topics))

    def _add_cluster(self, exchange: Exchange, recording: str) -> None:
        if exchange.api in CLUSTER_ID_APIS:
            found = getattr(exchange.response, "cluster_id", None)
            if found:
                self.cluster_ids.setdefault(recording, set()).add(found)
        for topic, partition, offset in bodies.ends_of(exchange):
            key = recording, topic, partition
            self.log_ends[key] = max(offset, self.log_ends.get(key, 0))

    def _add_group(self, exchange: Exchange, recording: str, time_us: int) -> None:
        commits = False
        for row in bodies.group_events(exchange):
            name, event, client_id, member, generation, topic, partition, offset, error = row
            group = self.groups.get((recording, name))
            if group is None:
                group = self.groups[recording, name] = GroupTally()
            group.members |= {member} - {"", None}
            group.client_ids |= {client_id} - {None}
            group.errors += error is not None and not exchange.routine
            if generation is not None:
                group.generations.add(generation)
                if event in _BORN_APIS:
                    joined = frozenset({member} - {None})
                    group.bear(generation, time_us, joined)
            if topic is not None:
                group.commits += not commits
                commits = True
                if error is None:
                    commit, where = (time_us, exchange.number, offset), (topic, partition)
                    group.committed[where] = max(commit, group.committed.get(where, commit))

    # ---- notes

    def add_note(self, note: Note) -> None:
        """Count a note."""
        body = note.body
        event = body.get("event")
        if note.channel == CONNECTIONS:
            if event == "closed":
                self.ended_by[text(body.get("first")) or text(body.get("side")) or "proxy"] += 1
            return
        if note.channel != EVENTS:
            return
        if event == "stood_still":
            self.stalls += 1
            seconds = body.get("seconds")
            if isinstance(seconds, int | float):
                self.stall_seconds = max(self.stall_seconds, float(seconds))
        elif event == "lost":
            reason = text(body.get("reason")) or "?"
            frames, size = (integer(body.get(name)) or 0 for name in ("frames", "bytes"))
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
        self.stalls += other.stalls
        self.stall_seconds = max(self.stall_seconds, other.stall_seconds)
        self.slowest += other.slowest
        self._keep_slowest()


_TALLIES = {"apis": ApiTally, "named": NamedTally, "errors": ErrorTally, "groups": GroupTally}
"""Attributes of a part that are tallies by key, and what an empty one is."""
