"""The meaning of a recording: text that is the same for the same behaviour, for `git diff`.

::

    Exchange … ─▶ RecordingMeaning ─┬─ topics: who produces which records, who consumes
                           ├─ groups: what they subscribe to, how far they commit
                           ├─ transactions, and how they end
                           ├─ requests of admins, and their responses
                           └─ errors, faults                              ─▶ lines

Left out is what changes from run to run: times, ports, ids, epochs, offsets as numbers, versions,
batches, polls, retries that succeed, the order between partitions, the partition of a record
without a key; and what the recording's own settings ignore.

Invariant: two runs in which clients do the same on equal topics give the same lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import attrs

from kproxy import recording
from kproxy.exchange import delivered
from kproxy.exchange.entries import EVENTS, SASL_TOKEN, Note
from kproxy.exchange.exchange import Exchange
from kproxy.exchange.topic_records import TopicRecord
from kproxy.exchange.words.wording import count
from kproxy.printable import printable
from kproxy.recording.reader import by_recording
from kproxy.replay.ignored import Ignored, parse
from kproxy.view import meaning_text

PREPARING_APIS = frozenset(
    {
        SASL_TOKEN,
        "ApiVersions",
        "SaslHandshake",
        "SaslAuthenticate",
        "Metadata",
        "DescribeCluster",
        "FindCoordinator",
        "ListOffsets",
        "OffsetForLeaderEpoch",
        "OffsetFetch",
        "SyncGroup",
        "Heartbeat",
        "LeaveGroup",
        "InitProducerId",
        "AddPartitionsToTxn",
        "AddOffsetsToTxn",
        "GetTelemetrySubscriptions",
        "PushTelemetry",
    }
)
"""Requests that prepare others: connecting, metadata, coordination. They have no lines."""

TRANSIENT_ERRORS = frozenset(
    {
        "COORDINATOR_LOAD_IN_PROGRESS",
        "COORDINATOR_NOT_AVAILABLE",
        "NOT_COORDINATOR",
        "CONCURRENT_TRANSACTIONS",
        "MEMBER_ID_REQUIRED",
        "REBALANCE_IN_PROGRESS",
        "ILLEGAL_GENERATION",
        "UNKNOWN_MEMBER_ID",
        "FETCH_SESSION_ID_NOT_FOUND",
        "INVALID_FETCH_SESSION_EPOCH",
        "FETCH_SESSION_TOPIC_ID_ERROR",
        "LEADER_NOT_AVAILABLE",
        "UNKNOWN_LEADER_EPOCH",
    }
)
"""Errors that depend on timing: clients retry, and the next run may not have them."""
_TRANSIENT_IN = frozenset(
    {("Metadata", "UNKNOWN_TOPIC_OR_PARTITION"), ("ApiVersions", "UNSUPPORTED_VERSION")}
)

_RANDOM_ID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|[0-9a-fA-F]{12,}")
_VARYING_NUMBER = re.compile(r"(?<=[-_#])\d+$|\d+(\.\d+)+|\d{4,}")
"""Numbers in client ids: a counter, the version of the client, a process id."""

PartitionOffset = tuple[int, int]


@attrs.define(eq=False)
class _Topic:
    partition_count: int = 0
    """0 if the recording does not show it."""
    produced: dict[str, list[TopicRecord]] = attrs.Factory(dict[str, list[TopicRecord]])
    """Client → its records."""
    fetched: dict[PartitionOffset, TopicRecord] = attrs.Factory(dict[PartitionOffset, TopicRecord])
    consumers: set[str] = attrs.Factory(set[str])

    def records_by_offset(self) -> dict[PartitionOffset, TopicRecord]:
        """Return the records whose offsets are known."""
        found = dict(self.fetched)
        for records in self.produced.values():
            found.update({(r.partition, r.offset): r for r in records if r.offset is not None})
        return found


@attrs.define(eq=False)
class _ConsumerGroup:
    kind: str = "classic"
    clients: set[str] = attrs.Factory(set[str])
    topics: set[str] = attrs.Factory(set[str])
    committed: dict[tuple[str, int], int] = attrs.Factory(dict[tuple[str, int], int])


@attrs.define(eq=False)
class RecordingMeaning:
    """Collects the behaviour that exchanges show; `lines` returns it as text."""

    ignored: Ignored = attrs.Factory(Ignored)
    _topics: dict[str, _Topic] = attrs.field(factory=dict[str, _Topic], init=False)
    _groups: dict[str, _ConsumerGroup] = attrs.field(factory=dict[str, _ConsumerGroup], init=False)
    _transactions: dict[str, list[str]] = attrs.field(factory=dict[str, list[str]], init=False)
    _requests: dict[str, set[str]] = attrs.field(factory=dict[str, set[str]], init=False)
    _errors: dict[str, set[str]] = attrs.field(factory=dict[str, set[str]], init=False)
    _faults: set[str] = attrs.field(factory=set[str], init=False)
    _produced: set[tuple[str, int, int]] = attrs.field(
        factory=set[tuple[str, int, int]], init=False
    )
    """Topic, partition and offset of each record that was produced."""

    # ---- collecting

    def add(self, exchange: Exchange) -> None:
        """Take the next exchange."""
        client = client_text(exchange.client_id)
        self._faults.update(exchange.faults)
        for error in exchange.errors:
            if error not in TRANSIENT_ERRORS and (exchange.api, error) not in _TRANSIENT_IN:
                self._errors.setdefault(client, set()).add(f"{exchange.api}: {error}")
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
            case api:
                if api not in PREPARING_APIS:
                    self._requests.setdefault(client, set()).add(meaning_text.request(exchange))

    def _topic(self, name: str) -> _Topic:
        return self._topics.setdefault(name, _Topic())

    def _produce(self, exchange: Exchange, client: str) -> None:
        for record in delivered.produced_by(exchange):
            if record.offset is not None:
                place = record.topic, record.partition, record.offset
                if place in self._produced:
                    continue
                self._produced.add(place)
            self._topic(record.topic).produced.setdefault(client, []).append(record)

    def _fetch(self, exchange: Exchange, client: str) -> None:
        for record in delivered.consumed_by(exchange):
            topic = self._topic(record.topic)
            topic.consumers.add(client)
            topic.fetched[record.partition, record.offset or 0] = record

    def _partitions(self, exchange: Exchange) -> None:
        for each in getattr(exchange.response, "topics", None) or ():
            if each.name and not each.error_code:
                self._topic(each.name).partition_count = len(each.partitions)

    def _join(self, exchange: Exchange, client: str) -> None:
        for name in exchange.groups:
            group = self._groups.setdefault(name, _ConsumerGroup())
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
        group = self._groups.setdefault(request.group_id, _ConsumerGroup())
        for each in request.topics:
            name = each.name or exchange.topic_names.text(each.topic_id)
            for one in each.partitions:
                key = name, one.partition_index
                if key not in refused:
                    group.committed[key] = one.committed_offset

    def _end(self, exchange: Exchange) -> None:
        request, response = exchange.request, exchange.response
        if request is not None and response is not None and not response.error_code:
            ended = self._transactions.setdefault(request.transactional_id, [])
            ended.append("commit" if request.committed else "abort")

    # ---- text

    def lines(self) -> Iterator[str]:
        """Yield the text, line by line."""
        for name, topic in sorted(self._topics.items()):
            yield from self._topic_lines(name, topic)
        for name, group in sorted(self._groups.items()):
            yield from self._group_lines(name, group)
        for name, ended in sorted(self._transactions.items()):
            yield f"transactions of {_without_random_ids(name)}: {', '.join(ended)}"
        for client, requests in sorted(self._requests.items()):
            yield f"{client} requests"
            yield from (f"  {text}" for text in sorted(requests))
        for client, errors in sorted(self._errors.items()):
            yield f"{client} gets errors"
            yield from (f"  {text}" for text in sorted(errors))
        yield from (f"fault {name}" for name in sorted(self._faults))

    def _topic_lines(self, name: str, topic: _Topic) -> Iterator[str]:
        committed = any(
            name == one for group in self._groups.values() for one, _ in group.committed
        )
        subscribed = any(name in group.topics for group in self._groups.values())
        if not (topic.produced or topic.fetched or committed or subscribed):
            return  # only Metadata names it, and that names all topics of the cluster
        many = f", {count(topic.partition_count, 'partition')}" if topic.partition_count else ""
        yield f"topic {name}{many}"
        for client, records in sorted(topic.produced.items()):
            yield f"  {client} produces"
            yield from self._record_lines(topic, records)
        there = [
            record
            for (partition, offset), record in topic.fetched.items()
            if (name, partition, offset) not in self._produced
        ]
        if there:
            yield "  there before"
            yield from self._record_lines(topic, there)
        for client in sorted(topic.consumers):
            yield f"  {client} consumes"

    def _is_any_partition(self, topic: _Topic, record: TopicRecord) -> bool:
        """Return whether the record may be in another partition in the next run."""
        return topic.partition_count != 1 and not self.ignored.compares_partition(record)

    def _record_lines(self, topic: _Topic, records: Iterable[TopicRecord]) -> Iterator[str]:
        """Yield the records of each partition in order; those of any partition sorted by text."""
        placed: list[tuple[int, int, str]] = []
        anywhere: list[str] = []
        for number, record in enumerate(records):
            text = meaning_text.record(record, self.ignored)
            if self._is_any_partition(topic, record):
                anywhere.append(text)
            else:
                order = number if record.offset is None else record.offset
                placed.append((record.partition, order, text))
        yield from (f"    [{partition}] {text}" for partition, _, text in sorted(placed))
        yield from (f"    [any] {text}" for text in sorted(anywhere))

    def _group_lines(self, name: str, group: _ConsumerGroup) -> Iterator[str]:
        members = f" of {', '.join(sorted(group.clients))}" if group.clients else ""
        yield f"group {_without_random_ids(name)}, {group.kind}{members}"
        if group.topics:
            yield f"  subscribes to {', '.join(sorted(group.topics))}"
        by_topic: dict[str, dict[int, int]] = {}
        for (topic, partition), offset in group.committed.items():
            by_topic.setdefault(topic, {})[partition] = offset
        for topic, offsets in sorted(by_topic.items()):
            yield from self._commit_lines(topic, offsets)

    def _commit_lines(self, name: str, offsets: dict[int, int]) -> Iterator[str]:
        """Yield how many records of a topic are before the offsets committed last.

        The offsets themselves depend on earlier content of the topic, and on markers.
        """
        topic = self._topic(name)
        places = topic.records_by_offset()
        before: dict[int, int] = dict.fromkeys(offsets, 0)
        for partition, offset in places:
            if offset < offsets.get(partition, 0):
                before[partition] += 1
        if any(self._is_any_partition(topic, record) for record in places.values()):
            yield f"  commits {name} after {count(sum(before.values()), 'record')}"
            return
        for partition, number in sorted(before.items()):
            if number:
                yield f"  commits {name}[{partition}] after {count(number, 'record')}"


def lines(paths: Sequence[Path], ignored: Ignored | None = None) -> Iterator[str]:
    """Yield the meaning of recordings, one after the other. Without `ignored`, each recording's own
    settings say what to leave out.

    Raises:
        RecordingError: a path is not there, no recording, or damaged.
    """
    for number, files in enumerate(by_recording(paths)):
        if number:
            yield ""
        yield from _lines(files, ignored)


def _lines(files: Sequence[Path], ignored: Ignored | None) -> Iterator[str]:
    meaning = RecordingMeaning(Ignored() if ignored is None else ignored)
    incomplete: list[str] = []

    def on_note(note: Note) -> None:
        event = note.body.get("event")
        if note.channel != EVENTS:
            return
        if event == "ignored" and ignored is None:
            meaning.ignored = parse(str(word) for word in note.body.get("ignore", ()))
        elif event in ("torn", "lost"):
            incomplete.append(f"incomplete: {note.body.get('what') or note.body.get('reason')}")

    for exchange in recording.read(files, told=on_note):
        meaning.add(exchange)
    for line in (*meaning.lines(), *incomplete):
        yield printable(line)


def client_text(client_id: str | None) -> str:
    """Return a client id without the parts that differ from process to process."""
    return _VARYING_NUMBER.sub("*", _without_random_ids(client_id or "")) or "a client"


def _without_random_ids(name: str) -> str:
    return _RANDOM_ID.sub("*", name)
