"""What clients did, as exchanges show it: records produced and consumed, groups, transactions.

::

    Exchange … ─▶ Behaviour ─┬─ topics: who produced which records, who consumed
                             ├─ groups: what they subscribed to, how far they committed
                             └─ transactions, and how they ended

It is collected once, for the text of `git diff` (`view.meaning`) and for what a replay compares
(`replay.compared`). Requests that were refused have changed nothing, and are not in it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import attrs

from kproxy.exchange import delivered
from kproxy.exchange.exchange import Exchange
from kproxy.exchange.topic_records import TopicRecord

_RANDOM_ID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|[0-9a-fA-F]{12,}")
_VARYING_NUMBER = re.compile(r"(?<=[-_#])\d+$|\d+(\.\d+)+|\d{4,}")
"""Numbers in client ids: a counter, the version of the client, a process id."""

OPEN = "open"
"""The end of a transaction that was neither committed nor aborted."""


@attrs.define(eq=False)
class TopicUse:
    """What clients did with a topic."""

    partition_count: int = 0
    """0 if the exchanges do not show it."""
    produced: list[tuple[str, TopicRecord]] = attrs.Factory(list[tuple[str, TopicRecord]])
    """Client and record, in the order in which brokers took them."""
    fetched: dict[tuple[int, int], TopicRecord] = attrs.Factory(dict[tuple[int, int], TopicRecord])
    """Records that consumers got, by partition and offset."""
    consumers: set[str] = attrs.Factory(set[str])

    def is_any_partition(
        self, record: TopicRecord, compares_partition: Callable[[TopicRecord], bool]
    ) -> bool:
        """Return whether the record may be in another partition in the next run."""
        return self.partition_count != 1 and not compares_partition(record)

    def records_by_offset(self) -> dict[tuple[int, int], TopicRecord]:
        """Return the records whose offsets are known."""
        found = dict(self.fetched)
        found.update(
            {(one.partition, one.offset): one for _, one in self.produced if one.offset is not None}
        )
        return found


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
class Transaction:
    """A transaction, and how it ended."""

    end: str = OPEN
    """"commit", "abort", or OPEN."""
    groups: set[str] = attrs.Factory(set[str])
    """Groups whose offsets are part of it."""


@attrs.define(eq=False)
class Behaviour:
    """Collects what exchanges show."""

    topics: dict[str, TopicUse] = attrs.field(factory=dict[str, TopicUse], init=False)
    groups: dict[str, GroupUse] = attrs.field(factory=dict[str, GroupUse], init=False)
    transactions: dict[str, list[Transaction]] = attrs.field(
        factory=dict[str, list[Transaction]], init=False
    )
    """Transactions by transactional id, in order."""
    produced_places: set[tuple[str, int, int]] = attrs.field(
        factory=set[tuple[str, int, int]], init=False
    )
    """Topic, partition and offset of each record that was produced."""

    def add(self, exchange: Exchange) -> None:
        """Take the next exchange, in the order in which they were completed."""
        client = client_text(exchange.client_id)
        match exchange.api:
            case "Produce":
                self._produce(exchange, client)
            case "Fetch":
                self._fetch(exchange, client)
            case "Metadata" | "DescribeTopicPartitions":
                self._partitions(exchange)
            case "JoinGroup" | "ConsumerGroupHeartbeat":
                self._join(exchange, client)
            case "OffsetCommit" | "TxnOffsetCommit":
                self._commit(exchange)
            case "EndTxn":
                self._end(exchange)
            case _:
                pass

    def topic(self, name: str) -> TopicUse:
        """Return the use of a topic, added if new."""
        return self.topics.setdefault(name, TopicUse())

    def _group(self, name: str) -> GroupUse:
        return self.groups.setdefault(name, GroupUse())

    def _produce(self, exchange: Exchange, client: str) -> None:
        taken = False
        for record in delivered.produced_by(exchange):
            taken = True
            if record.offset is not None:
                place = record.topic, record.partition, record.offset
                if place in self.produced_places:
                    continue
                self.produced_places.add(place)
            self.topic(record.topic).produced.append((client, record))
        transactional_id = getattr(exchange.request, "transactional_id", None)
        if taken and transactional_id is not None:
            self._transaction(transactional_id)

    def _fetch(self, exchange: Exchange, client: str) -> None:
        for record in delivered.consumed_by(exchange):
            topic = self.topic(record.topic)
            topic.consumers.add(client)
            topic.fetched[record.partition, record.offset or 0] = record

    def _partitions(self, exchange: Exchange) -> None:
        for each in getattr(exchange.response, "topics", None) or ():
            if each.name and not each.error_code:
                self.topic(each.name).partition_count = len(each.partitions)

    def _join(self, exchange: Exchange, client: str) -> None:
        for name in exchange.groups:
            group = self._group(name)
            group.clients.add(client)
            group.topics.update(exchange.topics)
            if exchange.api == "ConsumerGroupHeartbeat":
                group.kind = "consumer"

    def _commit(self, exchange: Exchange) -> None:
        request, response = exchange.request, exchange.response
        if request is None or response is None:
            return
        refused = {
            (each.name or exchange.topic_names.text(each.topic_id), one.partition_index)
            for each in response.topics
            for one in each.partitions
            if one.error_code
        }
        group = self._group(request.group_id)
        for each in request.topics:
            name = each.name or exchange.topic_names.text(each.topic_id)
            for one in each.partitions:
                key = name, one.partition_index
                if key not in refused:
                    group.committed[key] = one.committed_offset
        if exchange.api == "TxnOffsetCommit":
            self._transaction(request.transactional_id).groups.add(request.group_id)

    def _end(self, exchange: Exchange) -> None:
        request, response = exchange.request, exchange.response
        if request is not None and response is not None and not response.error_code:
            self._transaction(request.transactional_id).end = (
                "commit" if request.committed else "abort"
            )

    def _transaction(self, transactional_id: str) -> Transaction:
        """Return the transaction of this id that has not ended, begun if there is none."""
        begun = self.transactions.setdefault(transactional_id, [])
        if not begun or begun[-1].end != OPEN:
            begun.append(Transaction())
        return begun[-1]


def commits(
    behaviour: Behaviour, group: GroupUse, compares_partition: Callable[[TopicRecord], bool]
) -> Iterator[tuple[str, int | None, int]]:
    """Yield topic, partition, and how many records are before the offset committed last: the offset
    itself depends on earlier content of the topic, and on markers. The partition is None for all
    together, where a record may be in another one in the next run."""
    by_topic: dict[str, dict[int, int]] = {}
    for (name, partition), offset in group.committed.items():
        by_topic.setdefault(name, {})[partition] = offset
    for name, offsets in sorted(by_topic.items()):
        topic = behaviour.topics.get(name, TopicUse())
        places = topic.records_by_offset()
        before = dict.fromkeys(offsets, 0)
        for partition, offset in places:
            if offset < offsets.get(partition, 0):
                before[partition] += 1
        if any(topic.is_any_partition(one, compares_partition) for one in places.values()):
            yield name, None, sum(before.values())
            continue
        for partition, number in sorted(before.items()):
            if number:
                yield name, partition, number


def client_text(client_id: str | None) -> str:
    """Return a client id without the parts that differ from process to process."""
    return _VARYING_NUMBER.sub("*", without_random_ids(client_id or "")) or "a client"


def without_random_ids(name: str) -> str:
    """Return a name with `*` in place of ids that are drawn by chance."""
    return _RANDOM_ID.sub("*", name)
