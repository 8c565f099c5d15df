"""What clients did, as exchanges show it: records produced and consumed, groups, transactions.

::

    Exchange … ─▶ Behaviour ─┬─ topics: who produced which records, who consumed
                             ├─ groups: what they subscribed to, how far they committed
                             └─ transactions, and how they ended

It has the records, which a `History` leaves out; `replay.facts` says what of it is the same in
another run. Requests that were refused have changed nothing, and are not in it. What a transaction
holds counts as it ended: an aborted one has committed no offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import attrs

from kproxy.exchange import delivered
from kproxy.exchange.deletions import Gone, covers, deletions
from kproxy.exchange.delivered import may_have_reached
from kproxy.exchange.exchange import Exchange
from kproxy.exchange.topic_records import TopicRecord

OPEN, COMMIT, ABORT, UNKNOWN = "open", "commit", "abort", "unknown"
"""The ends of transactions; OPEN is that of one that was neither committed nor aborted, UNKNOWN of
one that an EndTxn without an answer was to commit."""

_KINDS = {"JoinGroup": "classic", "ConsumerGroupHeartbeat": "consumer"}
"""The kinds of groups, by the APIs with which members join."""

Place = tuple[int, int, int]
"""How often the topic was deleted before, partition, and offset."""


@attrs.define(eq=False)
class Transaction:
    """A transaction, and how it ended."""

    end: str = OPEN
    """COMMIT, ABORT, OPEN, or UNKNOWN."""
    offsets: dict[str, dict[tuple[str, int], int]] = attrs.Factory(dict)
    """Offsets that are part of it, by group, and by topic and partition."""


@attrs.frozen(eq=False)
class Produced:
    """A record that a broker took."""

    client: str
    record: TopicRecord
    transaction: Transaction | None

    @property
    def end(self) -> str:
        """How its transaction ended; one that is in none is committed."""
        return self.transaction.end if self.transaction else COMMIT


@attrs.define(eq=False)
class TopicUse:
    """What clients did with a topic."""

    partition_count: int = 0
    """0 if the exchanges do not show it."""
    produced: list[Produced] = attrs.Factory(list[Produced])
    """In the order in which brokers took them."""
    placed: dict[Place, Produced] = attrs.Factory(dict[Place, Produced])
    """The produced records whose offsets are known."""
    fetched: dict[Place, TopicRecord] = attrs.Factory(dict[Place, TopicRecord])
    """Records that consumers got."""
    consumers: set[str] = attrs.Factory(set[str])
    deletions: int = 0
    """How often it was deleted: offsets begin again."""

    def produce(self, produced: Produced) -> None:
        """Take a record that a broker took."""
        record = produced.record
        if record.offset is not None:
            self.placed[self.deletions, record.partition, record.offset] = produced
        self.produced.append(produced)

    def records_by_offset(self) -> dict[tuple[int, int], TopicRecord]:
        """Return the records whose offsets are known, without those of aborted transactions and of
        before the topic was deleted."""
        found = dict(self.fetched)
        for place, each in self.placed.items():
            if each.end != ABORT:
                found[place] = each.record
        return {place[1:]: one for place, one in found.items() if place[0] == self.deletions}


@attrs.define(eq=False)
class GroupUse:
    """What clients did with a group."""

    kind: str = "classic"
    clients: set[str] = attrs.Factory(set[str])
    topics: set[str] = attrs.Factory(set[str])
    """Topics that its members subscribed to."""
    committed: dict[tuple[str, int], int] = attrs.Factory(dict[tuple[str, int], int])
    """The last committed offset by topic and partition."""


@attrs.define(eq=False)
class Behaviour:
    """Collects what exchanges show."""

    topics: dict[str, TopicUse] = attrs.field(factory=dict[str, TopicUse], init=False)
    groups: dict[str, GroupUse] = attrs.field(factory=dict[str, GroupUse], init=False)
    transactions: dict[str, list[Transaction]] = attrs.field(
        factory=dict[str, list[Transaction]], init=False
    )
    """Transactions by transactional id, in order."""
    _batches: delivered.Numbers = attrs.field(factory=set, init=False)
    """What idempotent producers have produced."""

    def add(self, exchange: Exchange) -> None:
        """Take the next exchange, in the order in which they were completed."""
        for gone in deletions(exchange):
            self._delete(gone)
        take = _TAKES.get(exchange.api)
        if take is not None and exchange.request is not None:
            take(self, exchange)

    def _delete(self, gone: Gone) -> None:
        group, topic, _ = gone
        if group is None and topic is not None:
            self.topic(topic).deletions += 1
        for name, each in self.groups.items():
            each.committed = {
                where: offset
                for where, offset in each.committed.items()
                if not covers(gone, name, *where)
            }

    def topic(self, name: str) -> TopicUse:
        """Return the use of a topic, added if new."""
        return self.topics.setdefault(name, TopicUse())

    def _group(self, name: str) -> GroupUse:
        return self.groups.setdefault(name, GroupUse())

    def _produce(self, exchange: Exchange) -> None:
        taken = delivered.taken_by(exchange, self._batches)
        name = getattr(exchange.request, "transactional_id", None)
        transaction = self._begun(name) if taken and name is not None else None
        for record in delivered.records_in(exchange, taken):
            produced = Produced(exchange.client_id or "", record, transaction)
            self.topic(record.topic).produce(produced)

    def _fetch(self, exchange: Exchange) -> None:
        for record in delivered.consumed_by(exchange):
            topic = self.topic(record.topic)
            topic.consumers.add(exchange.client_id or "")
            topic.fetched[topic.deletions, record.partition, record.offset or 0] = record

    def _partitions(self, exchange: Exchange) -> None:
        for each in getattr(exchange.response, "topics", None) or ():
            if each.name and not each.error_code:
                self.topic(each.name).partition_count = len(each.partitions)

    # ---- groups

    def _join(self, exchange: Exchange) -> None:
        if not _succeeded(exchange):
            return
        group = self._group(exchange.request.group_id)
        group.kind = _KINDS[exchange.api]
        group.clients.add(exchange.client_id or "")
        group.topics.update(_subscription(exchange))

    def _commit(self, exchange: Exchange) -> None:
        request, response = exchange.request, exchange.response
        if response is None:
            return
        refused = {
            (_topic_name(exchange, each), one.partition_index)
            for each in response.topics
            for one in each.partitions
            if one.error_code
        }
        taken = {
            key: one.committed_offset
            for each in request.topics
            for one in each.partitions
            if (key := (_topic_name(exchange, each), one.partition_index)) not in refused
        }
        if not taken:
            return
        if exchange.api == "TxnOffsetCommit":
            offsets = self._begun(request.transactional_id).offsets
            offsets.setdefault(request.group_id, {}).update(taken)
        else:
            self._group(request.group_id).committed.update(taken)

    # ---- transactions

    def _initialize(self, exchange: Exchange) -> None:
        """A producer begins: what one of this id left open is aborted."""
        begun = self.transactions.get(exchange.request.transactional_id or "")
        if begun and begun[-1].end == OPEN and _succeeded(exchange):
            begun[-1].end = ABORT

    def _add_partitions(self, exchange: Exchange) -> None:
        name = exchange.request.v3_and_below_transactional_id
        if name and exchange.response is not None and not exchange.errors:
            self._begun(name)

    def _end(self, exchange: Exchange) -> None:
        request = exchange.request
        begun = self.transactions.get(request.transactional_id)
        # Where none is open, it repeats one whose response was lost.
        if not begun or begun[-1].end not in (OPEN, UNKNOWN):
            return
        if exchange.response is None and request.committed and may_have_reached(exchange):
            begun[-1].end = UNKNOWN
        if not _succeeded(exchange):
            return
        begun[-1].end = COMMIT if request.committed else ABORT
        for group, offsets in begun[-1].offsets.items() if request.committed else ():
            self._group(group).committed.update(offsets)

    def _begun(self, transactional_id: str) -> Transaction:
        """Return the transaction of this id that has not ended, begun if there is none."""
        begun = self.transactions.setdefault(transactional_id, [])
        if not begun or begun[-1].end != OPEN:
            begun.append(Transaction())
        return begun[-1]


_TAKES: dict[str, Callable[[Behaviour, Exchange], None]] = {
    "Produce": Behaviour._produce,
    "Fetch": Behaviour._fetch,
    "Metadata": Behaviour._partitions,
    "DescribeTopicPartitions": Behaviour._partitions,
    "JoinGroup": Behaviour._join,
    "ConsumerGroupHeartbeat": Behaviour._join,
    "OffsetCommit": Behaviour._commit,
    "TxnOffsetCommit": Behaviour._commit,
    "InitProducerId": Behaviour._initialize,
    "AddPartitionsToTxn": Behaviour._add_partitions,
    "EndTxn": Behaviour._end,
}


def _succeeded(exchange: Exchange) -> bool:
    return exchange.response is not None and not exchange.response.error_code


def _topic_name(exchange: Exchange, named: Any) -> str:
    return named.name or exchange.topic_names.text(named.topic_id)


def _subscription(exchange: Exchange) -> Iterable[str]:
    """Return the topics to which a member subscribes; most heartbeats do not say."""
    request = exchange.request
    if exchange.api == "JoinGroup":
        return exchange.topics
    regex = getattr(request, "subscribed_topic_regex", None)
    return [*(request.subscribed_topic_names or ()), *([f"all like {regex}"] if regex else ())]
