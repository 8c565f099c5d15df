"""What consumers once read, to be produced again: a service meets it without the apps that made it.

::

    Exchange ─▶ ServiceInputs.take ─▶ records that these consumers got, each once
                  │                            └─ rounds ─▶ produce_request …
                  ├── DeleteTopics: offsets begin anew
                  └── requests of groups: for whom a client reads a partition (`Groups.may_read`)

What a consumer got is what `exchange.delivered` says: records of aborted transactions only where it
read uncommitted ones. They are written in no transaction, when the last one would have come to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kproxy.exchange import delivered
from kproxy.exchange.entities import TopicPartition
from kproxy.exchange.exchange import Exchange
from kproxy.exchange.filter.terms import Term
from kproxy.exchange.topic_records import TopicRecord
from kproxy.history.behaviour import Behaviour
from kproxy.history.coordinator_events import EVENTS
from kproxy.history.history import History
from kproxy.history.ref import client_of
from kproxy.send.substitution import Renaming
from kproxy.wire.protocol import messages
from kproxy.wire.protocol.record_batch import Record
from kproxy.wire.protocol.records import encode_batch
from kproxy.wire.protocol.schema import NO_UUID

CLIENT, GROUP = "client_id", "group"
"""The keys of terms that name consumers."""
_BATCH_BYTES = 512 << 10
"""Half of what brokers take by default (message.max.bytes), before compression."""
_RECORD_BYTES = 64
"""What a record takes besides its contents, about."""
_ALL_REPLICAS = -1
_TIMEOUT_MS = 20_000

Batches = dict[TopicPartition, list[TopicRecord]]
Input = tuple[Exchange, list[TopicRecord]]
"""An exchange, and the records that it brought first."""


class ServiceInputs:
    """Finds what some consumers read."""

    def __init__(self, consumers: Term) -> None:
        self._term = consumers
        self._begin(None)

    def _begin(self, recording: str | None) -> None:
        self._recording = recording
        self._seen = Behaviour()
        self._history = History()

    def take(self, exchange: Exchange, recording: str | None) -> list[TopicRecord]:
        """Take the next exchange, in order of completion, of a recording; return the records that
        it brought first."""
        if recording != self._recording:
            self._begin(recording)
        if exchange.api == "DeleteTopics":
            self._seen.add(exchange)
        elif exchange.api in EVENTS:
            self._history.add(exchange)
        is_client = self._term.name == CLIENT
        if is_client and not self._term.matches(exchange):
            return []
        return [
            record
            for record in delivered.consumed_by(exchange)
            if (is_client or self._is_read(exchange, record))
            and self._seen.topic(record.topic).fetch(record) is not None
        ]

    def _is_read(self, exchange: Exchange, record: TopicRecord) -> bool:
        """Return whether the client of a Fetch reads a record for one of the groups."""
        where = TopicPartition(record.topic, record.partition)
        groups = self._history.groups.may_read(client_of(exchange), where)
        named: tuple[Any, ...] = self._term.values
        return any(each.matches(group) for group in groups for each in named)


def rounds(records: Iterable[TopicRecord], renaming: Renaming) -> list[Batches]:
    """Divide records into those of Produce requests, which have a batch of a partition each, by the
    names that are sent."""
    found: list[Batches] = []
    taken: dict[TopicPartition, tuple[int, int]] = {}
    for record in records:
        where = TopicPartition(renaming.topic(record.topic), record.partition)
        contents = record.key, record.value, *(part for _, part in record.headers)
        size = _RECORD_BYTES + sum(len(each or b"") for each in contents)
        at, size_bytes = taken.get(where, (0, 0))
        if size_bytes and size_bytes + size > _BATCH_BYTES:
            at, size_bytes = at + 1, 0
        taken[where] = at, size_bytes + size
        if at == len(found):
            found.append({})
        found[at].setdefault(where, []).append(record)
    return found


def produce_request(batches: Batches, topic_ids: Mapping[str, Any]) -> Any:
    """Return the request that writes these records, with the ids of their topics."""
    kind = messages.ProduceRequest
    topics: dict[str, list[Any]] = {}
    for where, records in batches.items():
        content = (
            Record(number, each.timestamp, each.key, each.value, each.headers)
            for number, each in enumerate(records)
        )
        batch = encode_batch(content, compression="lz4")
        data = kind.PartitionProduceData(index=where.partition, records=batch)
        topics.setdefault(where.topic, []).append(data)
    topic_data = [
        kind.TopicProduceData(
            name=name, topic_id=topic_ids.get(name, NO_UUID), partition_data=partitions
        )
        for name, partitions in topics.items()
    ]
    return kind(acks=_ALL_REPLICAS, timeout_ms=_TIMEOUT_MS, topic_data=topic_data)
