"""Logs: topics and their partitions, what was written to them and fetched, where each log begins
and ends, and how far groups have committed.

::

    Counted, Deleted ──────▶ TopicState: numbers of partitions, creations, deletions
    Appended, FetchPosition, Read ─▶ ClientUse: what a client did with a topic ─▶ PartitionUse
    Appended, Read, Bound ─▶ LogState: start, end, markers of transactions
    Commit, Deleted ───────▶ CommittedOffset

A batch that an idempotent producer sends again is no new write: the broker knows it by its numbers.

Invariants: memory is bounded by the limits below; `dropped` counts what came after them. A topic
that was deleted has no logs of before. Behind a gap, what was the end of a log, or committed, is
not known until it is shown again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import attrs

from kproxy.exchange.entities import TopicPartition
from kproxy.history.kept import Extent, Extents, LagSamples, one_of
from kproxy.history.ref import Client, Ref
from kproxy.history.rows import (
    A_TIME,
    EARLIEST,
    SENT,
    TRIED,
    WROTE,
    Aborted,
    Appended,
    Bound,
    Commit,
    Counted,
    Deleted,
    FetchPosition,
    Read,
    Unknown,
)

FETCHED = "fetched"
"""What a client did with a topic, beside the outcomes of writes."""
_TOPICS_MAX = 2000
_LOGS_MAX = 4000
_CLIENTS_MAX = 1000
"""Clients of a topic; the others are counted together."""
_USES_MAX = 6000
"""Clients of all topics that are counted apart."""
_OFFSETS_MAX = 5000
_CHANGES_MAX = _MOVES_MAX = 20
_SOON_NS = 30_000_000_000
"""Time in which a client commits on that has sent old commits again."""
_OTHERS: Client = ("", "other clients")


@attrs.define(eq=False)
class PartitionUse:
    """What one client wrote to a partition, or fetched of it."""

    requests: int = 0
    """Those that carried batches."""
    records: int = 0
    size_bytes: int = 0
    aborted: int = 0
    """Records of transactions that are known to be aborted."""
    latest: Ref | None = None
    refused: Counter[str] = attrs.Factory(Counter)
    """Errors of writes since the broker took one of this client last."""


@attrs.define(eq=False)
class ClientUse:
    """What one client did with a topic: wrote to it, tried to, or fetched it."""

    first: Ref
    last: Ref
    """The latest to begin."""
    is_one: bool = True
    """False if several clients are counted together."""
    requests: int = 0
    first_records: Ref | None = None
    last_records: Ref | None = None
    """Of the requests that carried records."""
    partitions: dict[int, PartitionUse] = attrs.Factory(dict)
    """Those of which batches were carried."""
    asked: dict[int, tuple[int, int]] = attrs.Factory(dict)
    """Partition → the offset that was asked for last, and when."""
    groups: set[str] = attrs.Factory(set)
    """The groups for which it certainly fetched."""
    _counted: Ref | None = attrs.field(default=None, init=False)

    @property
    def records(self) -> int:
        """The records of all partitions."""
        return sum(each.records for each in self.partitions.values())

    @property
    def size_bytes(self) -> int:
        """The bytes of the batches of all partitions."""
        return sum(each.size_bytes for each in self.partitions.values())

    @property
    def aborted(self) -> int:
        """The records of transactions that are known to be aborted."""
        return sum(each.aborted for each in self.partitions.values())

    def count(self, ref: Ref) -> None:
        """Count a request, once for all of its rows."""
        if self._counted is not ref:
            self._counted = ref
            self.requests += 1
            if ref.time_ns > self.last.time_ns:
                self.last = ref

    def carry(self, ref: Ref, partition: int, records: int, size_bytes: int) -> PartitionUse:
        """Count batches of a partition."""
        use = self.partitions.get(partition)
        if use is None:
            use = self.partitions[partition] = PartitionUse()
        use.requests += 1
        use.records += records
        use.size_bytes += size_bytes
        use.latest = ref
        if records:
            self.first_records = self.first_records or ref
            if self.last_records is None or ref.time_ns > self.last_records.time_ns:
                self.last_records = ref
        return use


class Change(NamedTuple):
    """A topic was created, deleted, or got more partitions."""

    ref: Ref
    was: int
    """The number of partitions before; 0 if it was not known, or there was no such topic."""
    now: int
    """The number since; 0 if it is not known, or the topic was deleted."""
    what: str
    """`CREATED`, `DELETED` or `COUNTED`."""


CREATED, DELETED, COUNTED = "created", "deleted", "counted"


@attrs.define(eq=False)
class TopicState:
    """A topic."""

    name: str
    counts: Extents[int] = attrs.Factory(lambda: Extents[int](_CHANGES_MAX))
    """Its numbers of partitions; 0 from its deletion on."""
    changes: list[Change] = attrs.Factory(list)
    """At most `_CHANGES_MAX` …"""
    changes_more: int = 0
    """… and the number of others."""
    uses: dict[tuple[Client, str], ClientUse] = attrs.Factory(dict)
    """Client, and what it did (`WROTE`, `SENT`, `TRIED`, `FETCHED`)."""
    told: Extents[int] = attrs.Factory(Extents[int])
    """Its numbers of partitions, as brokers tell them of a topic that is there."""
    used: Ref | None = None
    """The first exchange that names it and has no error."""
    deletions: int = 0
    unknown: dict[Client, Extent[str]] = attrs.Factory(dict)
    """Who asked for it, and was told that there is no such topic."""
    largest: tuple[int, Ref] | None = None
    """The bytes of the largest batches that a broker took for a partition."""

    is_counted: bool = False
    """True if an exchange behind the last gap shows its number of partitions."""

    @property
    def partitions(self) -> int:
        """The number of its partitions; 0 if it is not known."""
        return self.counted if self.is_counted else 0

    @property
    def counted(self) -> int:
        """The number of its partitions that was shown last."""
        latest = self.counts.latest
        return 0 if latest is None else latest.value

    def did(self, *what: str) -> Iterator[tuple[Client, ClientUse]]:
        """Yield the clients that did this, each with how."""
        return ((client, use) for (client, did), use in self.uses.items() if did in what)

    def written(self) -> dict[int, PartitionUse]:
        """Return what all clients wrote to each partition."""
        found: dict[int, PartitionUse] = {}
        for _, use in self.did(WROTE, SENT):
            for partition, each in use.partitions.items():
                total = found.setdefault(partition, PartitionUse())
                total.requests += each.requests
                total.records += each.records
                total.size_bytes += each.size_bytes
                refs = [ref for ref in (total.latest, each.latest) if ref is not None]
                total.latest = max(refs, key=lambda ref: ref.number, default=None)
        return found

    def name_in(self, ref: Ref) -> None:
        """Take an exchange that names it."""
        if self.used is None and ref.is_answered and not ref.errors:
            self.used = ref

    def change(self, ref: Ref, now: int, what: str) -> None:
        """Take a change."""
        if len(self.changes) < _CHANGES_MAX:
            self.changes.append(Change(ref, self.counted, now, what))
        else:
            self.changes_more += 1
        self.count(ref, now)

    def count(self, ref: Ref, now: int) -> None:
        """Take the number of its partitions."""
        self.counts.see(now, ref)
        self.is_counted = True


@attrs.define(eq=False)
class LogState:
    """The log of a partition."""

    where: TopicPartition
    starts: Extents[int] = attrs.Factory(lambda: Extents[int](4))
    ends: Extents[int] = attrs.Factory(lambda: Extents[int](2))
    """The largest offset that was shown to end it."""
    markers: tuple[int, int] = (0, 0)
    """Markers of transactions with no record between them, the latest that were fetched: the first,
    and one past the last."""
    has_markers: bool = False
    is_shown: bool = False
    """True if an exchange behind the last gap shows its end."""

    @property
    def start(self) -> int:
        """Where it begins; 0 if that is not known."""
        latest = self.starts.latest
        return 0 if latest is None else latest.value

    @property
    def end(self) -> int:
        """Where it ends; 0 if that is not known."""
        latest = self.ends.latest
        return latest.value if latest is not None and self.is_shown else 0

    @property
    def records_end(self) -> int:
        """Where it ends without the markers after its last record."""
        first, past = self.markers
        return first if past and past == self.end else self.end

    @property
    def noun(self) -> str:
        """What its offsets count: records, or also markers of transactions."""
        return "offset" if self.has_markers else "record"

    def reach(self, end: int, ref: Ref) -> None:
        """Take an offset that ended it."""
        if end >= self.end or not self.is_shown:
            self.ends.see(end, ref)
            self.is_shown = True

    def mark(self, markers: tuple[tuple[int, int], ...]) -> None:
        """Take markers among batches that were fetched."""
        for offset, last_offset in markers:
            self.has_markers = True
            first, past = self.markers
            if offset >= past:
                begins = first if offset == past and past else offset
                self.markers = begins, last_offset + 1

    def gap(self) -> None:
        """Take a gap."""
        self.is_shown = False
        self.markers = 0, 0


@attrs.define(eq=False)
class CommittedOffset:
    """How far a group has committed a partition."""

    group: str
    where: TopicPartition
    commit: Commit
    """The last one that counts."""
    times: int = 0
    moved: list[tuple[Commit, Commit]] = attrs.field(factory=list)
    """Commits and what set them back; or ahead, where not a member did, but members commit."""
    is_read_again: bool = False
    """True if who set it back asked for records of before, too."""
    deleted_by: Ref | None = None
    is_latest: bool = True
    """False if a gap came after it."""
    progress: LagSamples = attrs.Factory(LagSamples)

    def ask(self, client: Client, offset: int, time_ns: int) -> None:
        """Take the offset that a client asks for."""
        self.is_read_again |= any(
            now.by.client == client and offset < before.offset and time_ns > before.by.time_ns
            for before, now in self.moved
        )

    def catch_up(self, row: Commit) -> None:
        """Take a commit: clients send old ones again when they connect anew, and commit on soon
        without asking for these records. That moved nothing."""
        if not self.is_read_again:
            self.moved = [
                (before, now)
                for before, now in self.moved
                if not (
                    now.offset < before.offset <= row.offset
                    and row.member == now.member == before.member
                    and row.by.client == now.by.client == before.by.client
                    and row.by.time_ns - now.by.time_ns <= _SOON_NS
                )
            ]

    @property
    def is_certain(self) -> bool:
        """True if it is certainly what the group has committed."""
        return self.commit.certain and self.is_latest and self.deleted_by is None


@attrs.define(eq=False)
class Logs:
    """The topics and logs of a recording."""

    topics: dict[str, TopicState] = attrs.Factory(dict)
    logs: dict[TopicPartition, LogState] = attrs.Factory(dict)
    committed: dict[tuple[str, TopicPartition], CommittedOffset] = attrs.Factory(dict)
    """Group and partition → how far it has committed, also where that was deleted."""
    dropped: int = 0
    """Rows of topics, partitions and groups beyond the limits."""
    _uses: int = attrs.field(default=0, init=False)
    _moved: dict[TopicPartition, list[CommittedOffset]] = attrs.field(factory=dict, init=False)
    """What groups have committed, where something has moved it."""

    def gap(self, time_ns: int) -> None:
        """Take a gap: what follows may not join on to what was before."""
        for topic in self.topics.values():
            topic.is_counted = False
            for _, use in topic.did(TRIED):  # it may have been taken meanwhile
                for each in use.partitions.values():
                    each.refused.clear()
        for log in self.logs.values():
            log.gap()
        self.close(time_ns)
        for each in self.committed.values():
            each.is_latest = False
            each.progress.close()

    def close(self, time_ns: int) -> None:
        """Have what is told from a time on stand by itself (`Extents.close`)."""
        for topic in self.topics.values():
            topic.told.close(time_ns)
        for log in self.logs.values():
            for each in (log.starts, log.ends):
                each.close(time_ns)

    def topic(self, name: str) -> TopicState:
        """Return a topic, added if new; of too many, one that is thrown away."""
        found = one_of(self.topics, name, _TOPICS_MAX, lambda: TopicState(name))
        self.dropped += name not in self.topics
        return found

    def log(self, where: TopicPartition) -> LogState:
        """Return a log, added if new; of too many, one that is thrown away."""
        found = one_of(self.logs, where, _LOGS_MAX, lambda: LogState(where))
        self.dropped += where not in self.logs
        return found

    # ---- topics

    def counted(self, ref: Ref, row: Counted) -> None:
        """Take a number of partitions."""
        topic = self.topic(row.topic)
        if not row.is_new:
            topic.told.see(row.partitions, ref)
        if row.is_new:
            topic.change(ref, row.partitions or topic.counted, CREATED)
        elif topic.counted in (0, row.partitions):
            topic.count(ref, row.partitions)
        else:
            topic.change(ref, row.partitions, COUNTED)

    def unknown(self, ref: Ref, row: Unknown) -> None:
        """Take that a broker knows no such topic, unless it is just being created."""
        made_by_rule = "UNKNOWN_TOPIC_OR_PARTITION" not in ref.broker_errors  # by a fault rule
        if not (ref.routine or made_by_rule):
            unknown = self.topic(row.topic).unknown
            found = one_of(
                unknown, ref.client, _CLIENTS_MAX, lambda: Extent(row.topic, ref, ref, 0)
            )
            found.last = ref
            found.times += 1

    def deleted(self, ref: Ref, row: Deleted) -> None:
        """Take a deletion."""
        for each in self.committed.values():
            if row.covers(each.group, each.where):
                each.deleted_by = each.deleted_by or ref
        if row.deleted_topic is not None:
            topic = self.topic(row.deleted_topic)
            topic.change(ref, 0, DELETED)
            topic.deletions += 1
            for where in [each for each in self.logs if each.topic == topic.name]:
                del self.logs[where]

    # ---- what clients write and fetch

    def _use(self, ref: Ref, topic: TopicState, did: str) -> ClientUse:
        use = topic.uses.get((ref.client, did))
        if use is None:
            is_one = len(topic.uses) < _CLIENTS_MAX and self._uses < _USES_MAX
            key = ref.client if is_one else _OTHERS, did
            use = topic.uses.get(key)
            if use is None:
                self._uses += topic.name in self.topics
                use = topic.uses[key] = ClientUse(ref, ref, is_one)
        use.count(ref)
        topic.name_in(ref)
        return use

    def appended(self, ref: Ref, row: Appended) -> None:
        """Take a write."""
        topic = self.topic(row.where.topic)
        use = self._use(ref, topic, row.outcome)
        if not row.is_again:
            carried = use.carry(ref, row.where.partition, row.records, row.size_bytes)
            if row.outcome == TRIED and row.error:
                carried.refused[row.error] += 1
        log = self.log(row.where)
        if row.log_end is not None:
            log.reach(row.log_end, ref)
        if row.outcome == WROTE:
            tried = topic.uses.get((ref.client, TRIED))
            if tried is not None and row.where.partition in tried.partitions:
                tried.partitions[row.where.partition].refused.clear()
            if topic.largest is None or row.size_bytes > topic.largest[0]:
                topic.largest = row.size_bytes, ref

    def fetch_position(self, ref: Ref, row: FetchPosition) -> None:
        """Take from where on a client fetches."""
        use = self._use(ref, self.topic(row.where.topic), FETCHED)
        use.asked[row.where.partition] = row.offset, ref.time_ns
        for each in self._moved.get(row.where, ()):
            each.ask(ref.client, row.offset, ref.time_ns)

    def read(self, ref: Ref, row: Read, group: str) -> None:
        """Take what a Fetch brought, and the group for which the client certainly reads it."""
        use = self._use(ref, self.topic(row.where.topic), FETCHED)
        if group and row.records:
            use.groups.add(group)
        if row.error or ref.fate.injected:
            return
        log = self.log(row.where)
        log.mark(row.markers)
        if row.log_end is not None:
            log.reach(row.log_end, ref)
        if row.log_start >= 0:
            log.starts.see(row.log_start, ref)
        if row.size_bytes and not ref.fate.may_be_lost | ref.fate.is_changed:
            carried = use.carry(ref, row.where.partition, row.records, row.size_bytes)
            carried.aborted += row.aborted

    def bound(self, ref: Ref, row: Bound) -> None:
        """Take an end of a log."""
        if row.kind == A_TIME:
            return
        self.topic(row.where.topic).name_in(ref)
        if ref.fate.injected:
            return
        log = self.log(row.where)
        if row.kind == EARLIEST:
            log.starts.see(row.offset, ref)
        elif row.log_end is not None:
            log.reach(row.log_end, ref)

    # ---- transactions and commits

    def aborted(self, ref: Ref, row: Aborted) -> None:
        """Take that records are those of an aborted transaction."""
        topic = self.topics.get(row.where.topic)
        for client in (row.client, _OTHERS):
            use = None if topic is None else topic.uses.get((client, WROTE))
            if use is not None and row.where.partition in use.partitions:
                use.partitions[row.where.partition].aborted += row.records
                return

    def commit(self, ref: Ref, row: Commit) -> None:
        """Take an offset that counts from now on."""
        key = row.group, row.where
        found = self.committed.get(key)
        if found is None:
            if len(self.committed) >= _OFFSETS_MAX:
                self.dropped += 1
                return
            found = self.committed[key] = CommittedOffset(row.group, row.where, row)
        elif found.is_certain and row.certain and len(found.moved) < _MOVES_MAX:
            by_other = bool(found.commit.member) and not row.member and row.by.api == "OffsetCommit"
            if row.offset < found.commit.offset or (by_other and row.offset > found.commit.offset):
                found.moved.append((found.commit, row))
                if found not in (moved := self._moved.setdefault(row.where, [])):
                    moved.append(found)
                use = self.topic(row.where.topic).uses.get((row.by.client, FETCHED))
                if use is not None and row.where.partition in use.asked:
                    found.ask(row.by.client, *use.asked[row.where.partition])
        if found.moved:
            found.catch_up(row)
        found.commit, found.deleted_by, found.is_latest = row, None, True
        found.times += 1
        log = self.logs.get(row.where)
        if row.certain and log is not None and log.is_shown:
            found.progress.see(row.by, row.offset, log.end)
