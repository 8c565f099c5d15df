"""What clients did, as exchanges show it: records produced and consumed, groups, transactions.

::

    Exchange … ─▶ Behaviour ─┬─ topics: who produced which records, who consumed
                             ├─ groups: what they subscribed to, how far they committed
                             └─ transactions, and how they ended

It has the records, which a `History` leaves out, or gives each to `on_record` and keeps spans of
their offsets only; `replay.facts` says what of it is the same in another run. Requests that were
refused have changed nothing, and are not in it. What a transaction holds counts
as it ended: an aborted one has committed no offsets, nor has one that was open when a part of the
recording is missing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence

import attrs

from kproxy.exchange import delivered
from kproxy.exchange.entities import TopicPartition
from kproxy.exchange.exchange import Exchange
from kproxy.exchange.merging import Spans, contains, joined
from kproxy.exchange.topic_records import TopicRecord, Unreadable
from kproxy.history.events import events
from kproxy.history.items import Gap, Item
from kproxy.history.ref import Ref
from kproxy.history.rows import TRIED, Appended, Beat, Commit, Counted, Deleted, Joined, Row
from kproxy.history.transactions import ABORTED, COMMITTED, Transaction, Transactions

_KINDS = {"JoinGroup": "classic", "ConsumerGroupHeartbeat": "consumer"}
"""The kinds of groups, by the APIs with which members join."""

_IDS_MAX = 1_000_000
"""A comparison needs each transaction."""
Log = tuple[int, int]
"""How often the topic was deleted before, and partition."""


@attrs.frozen(eq=False)
class Produced:
    """A record that a broker took."""

    client: str
    record: TopicRecord
    transaction: Transaction | None
    acknowledged_ns: int = 0
    """When the broker said so; 0 if it did not."""

    @property
    def end(self) -> str:
        """How its transaction ended; one that is in none is committed."""
        return self.transaction.end if self.transaction else COMMITTED


@attrs.define(eq=False)
class TopicUse:
    """What clients did with a topic."""

    partition_counts: dict[int, int] = attrs.Factory(dict)
    """By how often it was deleted before, the most that it had."""
    produced: list[Produced] = attrs.Factory(list)
    """Records in the order in which brokers took them."""
    fetched: list[tuple[Log, TopicRecord]] = attrs.Factory(list)
    """Records that consumers got, each once."""
    written: dict[Log, list[tuple[int, int, Transaction | None]]] = attrs.Factory(dict)
    """Spans of the offsets that brokers gave to produced records, each in one transaction or none,
    in the order in which they were given."""
    read: dict[Log, Spans] = attrs.Factory(dict)
    """Offsets of the records that consumers got."""
    sample: TopicRecord | None = None
    """One of its records: one without a key, if there is any."""
    isolation: set[tuple[str, bool]] = attrs.Factory(set)
    """Consumers that got records, and whether they read only committed ones."""
    deletions: int = 0
    """How often it was deleted: offsets begin again."""

    @property
    def consumers(self) -> set[str]:
        """Those that got records."""
        return {client for client, _ in self.isolation}

    @property
    def partition_count(self) -> int:
        """How many it has had in the end; 0 if the exchanges do not show it."""
        return next(reversed(self.partition_counts.values()), 0)

    def take(self, record: TopicRecord) -> Log:
        """Take a record of the topic; return its log."""
        if self.sample is None or (record.key is None and self.sample.key is not None):
            self.sample = record
        return self.deletions, record.partition

    def write(self, record: TopicRecord, transaction: Transaction | None) -> None:
        """Take a record that a broker took."""
        log, at = self.take(record), record.offset
        if at is None:
            return
        spans = self.written.setdefault(log, [])
        start = at
        if spans and spans[-1][1] == at and spans[-1][2] is transaction:
            start, *_ = spans.pop()
        spans.append((start, at + 1, transaction))

    def fetch(self, record: TopicRecord) -> Log | None:
        """Take a record that a consumer got; return its log, None if one had got it before."""
        log, at = self.take(record), record.offset or 0
        spans = self.read.setdefault(log, [])
        if spans and spans[-1][1] == at:  # as most do
            spans[-1] = spans[-1][0], at + 1
            return log
        if contains(spans, at):
            return None
        joined(spans, [(at, at + 1)])
        return log

    def found_before(self) -> list[TopicRecord]:
        """Return the kept records that consumers got, and that nobody has produced."""
        written = {
            log: joined([], [span[:2] for span in spans]) for log, spans in self.written.items()
        }
        return [
            record
            for log, record in self.fetched
            if not contains(written.get(log, []), record.offset or 0)
        ]

    def known_offsets(self) -> dict[int, Spans]:
        """Return the offsets of known records by partition, without those of aborted transactions
        and of before the topic was deleted."""
        found: dict[int, Spans] = {}
        for (deletions, partition), spans in self.written.items():
            kept = [span[:2] for span in spans if not (span[2] and span[2].end == ABORTED)]
            if deletions == self.deletions:
                joined(found.setdefault(partition, []), kept)
        for (deletions, partition), spans in self.read.items():
            if deletions == self.deletions:
                joined(found.setdefault(partition, []), spans)
        return {partition: spans for partition, spans in found.items() if spans}


@attrs.define(eq=False)
class GroupUse:
    """What clients did with a group."""

    kind: str = "classic"
    clients: set[str] = attrs.Factory(set)
    topics: set[str] = attrs.Factory(set)
    """Topics that its members subscribed to."""
    committed: dict[TopicPartition, int] = attrs.Factory(dict)
    """The last committed offset of each."""
    moved_ns: int = 0
    """When an OffsetCommit last came that changed one of them; 0 if none did."""


@attrs.define(eq=False)
class Behaviour:
    """Collects what exchanges show."""

    on_record: Callable[[str, TopicRecord | Unreadable], None] | None = None
    """Called with each record that a broker took, or that consumers got, or what cannot be read of
    them, and the client; None: the topics keep what can."""
    topics: dict[str, TopicUse] = attrs.Factory(lambda: defaultdict(TopicUse))
    groups: dict[str, GroupUse] = attrs.Factory(dict)
    transactions: dict[str, list[Transaction]] = attrs.Factory(dict)
    """Transactions by transactional id, in order."""
    _unread: dict[TopicPartition, int] = attrs.field(factory=dict, init=False)
    """The highest offset that consumers got and that could not be read; -1: of unknown offset."""
    _followed: Transactions = attrs.field(factory=lambda: Transactions(_IDS_MAX), init=False)

    def add(self, item: Item) -> None:
        """Take the next item of a recording, in order of completion."""
        if isinstance(item, Gap):
            self._followed.gap()
        elif isinstance(item, Exchange) and item.api != "Heartbeat" and item.request is not None:
            self._take(item)  # a Heartbeat says nothing of what is collected here

    def _take(self, exchange: Exchange) -> None:
        if exchange.api == "Fetch":
            self._fetch(exchange)
            return
        ref = Ref.of(exchange)
        rows = self._followed.take(ref, events(exchange))
        for name in {getattr(each, "transactional_id", "") for each in rows} - {""}:
            found = self._followed.ids[name]
            known = self.transactions.setdefault(name, [])
            open_now = () if found.open is None else (found.open,)
            known += [each for each in (*found.recent, *open_now) if each not in known[-9:]]
        for row in rows:
            match row:
                case Commit(certain=True):
                    group = self._group(row.group)
                    if (
                        exchange.api == "OffsetCommit"
                        and group.committed.get(row.where) != row.offset
                    ):
                        group.moved_ns = exchange.request_received_ns
                    group.committed[row.where] = row.offset
                case Deleted():
                    self._delete(row)
                case Counted(is_new=False):
                    topic = self.topic(row.topic)
                    most = max(topic.partition_counts.get(topic.deletions, 0), row.partitions)
                    topic.partition_counts[topic.deletions] = most
                case Joined() | Beat() if ref.is_answered and not row.error:
                    self._member(exchange, row.group)
                case _:
                    pass
        self._produce(ref, exchange, rows)

    def topic(self, name: str) -> TopicUse:
        """Return the use of a topic, added if new."""
        return self.topics[name]

    def _group(self, name: str) -> GroupUse:
        return self.groups.setdefault(name, GroupUse())

    def _delete(self, row: Deleted) -> None:
        if row.group is None and row.topic is not None:
            self.topic(row.topic).deletions += 1
        for name, each in self.groups.items():
            each.committed = {
                where: offset
                for where, offset in each.committed.items()
                if not row.covers(name, where)
            }

    def _member(self, exchange: Exchange, name: str) -> None:
        """Take a request of a member; most heartbeats do not say to what it subscribes."""
        request, kind = exchange.request, _KINDS.get(exchange.api)
        if kind is None:
            return
        group = self._group(name)
        group.kind = kind
        group.clients.add(exchange.client_id or "")
        topics = getattr(request, "subscribed_topic_names", None)
        group.topics.update(exchange.topics if kind == "classic" else topics or ())
        if regex := getattr(request, "subscribed_topic_regex", None):
            group.topics.add(f"all like {regex}")

    def _produce(self, ref: Ref, exchange: Exchange, rows: Sequence[Row]) -> None:
        taken = {
            row.where
            for row in rows
            if isinstance(row, Appended) and row.outcome != TRIED and not row.is_again
        }
        name = getattr(exchange.request, "transactional_id", None)
        transaction = self._followed.ids[name].at(ref, None) if taken and name else None
        for record in delivered.records_in(exchange, taken):
            topic, client = self.topic(record.topic), exchange.client_id or ""
            topic.write(record, transaction)
            if self.on_record is None:
                at_ns = exchange.response_received_ns if ref.is_answered else 0
                topic.produced.append(Produced(client, record, transaction, at_ns))
            else:
                self.on_record(client, record)
        self._unreadable(exchange, taken)

    def _unreadable(self, exchange: Exchange, taken: Collection[TopicPartition] = ()) -> None:
        """Take what cannot be read: what a broker took, and what consumers got once."""
        if self.on_record is None or not exchange.facts.records:
            return
        for each in exchange.records.unreadable:
            where = TopicPartition(each.topic, each.partition)
            if each.produced:
                is_new = where in taken
            else:
                offset = -1 if each.offset is None else each.offset
                is_new = offset > self._unread.get(where, -2)
                self._unread[where] = max(offset, self._unread.get(where, -2))
            if is_new:
                self.on_record(exchange.client_id or "", each)

    def _fetch(self, exchange: Exchange) -> None:
        client = exchange.client_id or ""
        reads = client, bool(getattr(exchange.request, "isolation_level", 0))
        for record in delivered.consumed_by(exchange):
            topic = self.topic(record.topic)
            topic.isolation.add(reads)
            if (log := topic.fetch(record)) is None:
                continue
            if self.on_record is None:
                topic.fetched.append((log, record))
            else:
                self.on_record(client, record)
        self._unreadable(exchange)
