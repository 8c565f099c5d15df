"""Build the state of a cluster from the exchanges of a recording, in one pass.

::

    Exchange … ─▶ Loader ─▶ Loaded
       Metadata, DescribeCluster, FindCoordinator …   brokers, topics, ids, leaders, coordinators
       Fetch, Produce, EndTxn                         partition logs
       OffsetFetch                                    the first committed offsets
       APIs that `state` does not model               kept as they are, for `semantic`

Responses are what counts; requests only say what they are about. Recorded errors are left out. The
name of a topic id often comes on another connection, or later: exchanges whose topics cannot be
named yet wait for the end.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from typing import Any

import attrs

from kproxy.exchange.delivered import is_refusal, kept, may_have_reached
from kproxy.exchange.entries import Side
from kproxy.exchange.exchange import Exchange
from kproxy.exchange.words.wording import count
from kproxy.replay.fetch import EARLIEST, LATEST
from kproxy.replay.groups import took_offsets
from kproxy.replay.loaded import Committed, Loaded, Other, PartitionKey, RefusedBatch
from kproxy.replay.log import PartitionLog
from kproxy.replay.placed import PlacedFrame, PlaceOf, nowhere
from kproxy.replay.stored_batch import NO_BATCH, head, pieces, placed, stamp, to_magic_2
from kproxy.replay.topics import Partition, Topic
from kproxy.replay.unreadable import damage_of
from kproxy.wire.protocol import ProtocolError, is_known, records
from kproxy.wire.protocol.records import encode_batch, end_transaction_marker
from kproxy.wire.protocol.schema import NO_UUID


@attrs.define(eq=False)
class _SeenOffsets:
    """Offsets of a partition that were seen in requests and in ListOffsets."""

    lowest_read: int | None = None
    highest_read: int = 0
    latest: int | None = None
    first_start: int | None = None
    """The lowest offset at which the log was seen to start."""
    last_start: int | None = None

    def start_at(self, offset: int) -> None:
        """Take an offset at which the log starts; -1 stands for none."""
        if offset >= 0:
            first = offset if self.first_start is None else self.first_start
            self.first_start = min(first, offset)
            self.last_start = max(offset, self.last_start or 0)


class _TransactionEnd(enum.Enum):
    """The end of a transaction."""

    COMMIT = "committed"
    ABORT = "aborted"
    UNKNOWN = "was to be committed, without an answer"
    UNSEEN = "as its beginning, outside of the recording"


class _Unnamed(Exception):
    """The topics of an exchange cannot be named yet."""


class Loader:
    """Takes exchanges one by one; `finish` returns the result."""

    def __init__(self, served: frozenset[int], place: PlaceOf = nowhere) -> None:
        self.loaded = Loaded()
        self._served = served
        self._place_of = place
        self._seen: dict[Partition, _SeenOffsets] = {}
        self._waiting: list[tuple[Exchange, PlacedFrame, PlacedFrame]] = []
        self._request = self._response = PlacedFrame(None, b"")
        """The frames of the current exchange."""
        self._unplaced: list[tuple[Topic, int, bytes]] = []
        self._behind: list[tuple[Topic, int, bytes]] = []
        """What is no whole batch, behind produced ones: it has no offset."""
        self._writing: dict[int, dict[PartitionLog, int]] = {}
        """Last offset that each producer's open transaction wrote, by producer id and partition."""
        self._committing: dict[int, set[str]] = {}
        """Groups whose offsets are part of each producer's open transaction, by producer id."""
        self._begun: set[int] = set()
        """Ids of the producers whose beginning is recorded."""
        self._unknown: set[int] = set()
        """Ids of the producers whose last EndTxn was to commit, and has no answer."""
        self._producer_ids: dict[str, int] = {}
        """The producer id that each transactional id got last."""
        self._taken: dict[int, tuple[int, int]] = {}
        """When an InitProducerId ended the last transaction of a producer id, and where that is in
        `_ended`: an EndTxn without an answer may be read later."""
        self._ended: list[tuple[int, int, _TransactionEnd, dict[PartitionLog, int]]] = []
        self._with_offsets: list[tuple[int, dict[PartitionLog, int], list[str]]] = []
        """Of each transaction that committed offsets: producer id, its last offset by partition,
        and the groups."""
        self._offset_known: set[tuple[str, PartitionKey]] = set()
        """Groups and partitions whose offset at the beginning of the recording is known."""

    def add(self, exchange: Exchange) -> None:
        """Take the next exchange."""
        self.loaded.exchanges += 1
        if exchange.node_id is not None:
            self.loaded.cluster.racks.setdefault(exchange.node_id, None)
        self._keep(exchange)
        api = exchange.api or ""
        take = _TAKERS.get(api)
        # Decoding a message for the first time costs milliseconds: only where it is needed.
        if (
            take is None
            or (api not in _RESPONSE_SUFFICES and exchange.request is None)
            or (api not in _REQUEST_SUFFICES and exchange.response is None)
        ):
            if api == "Produce":
                self._keep_undecoded(exchange)
            return
        self._request = self._response = PlacedFrame(None, b"")
        if api in _RECORDS:
            request, response = exchange.request_frame or b"", exchange.response_frame or b""
            self._request = PlacedFrame(self._place_of(exchange, Side.CLIENT), request)
            self._response = PlacedFrame(self._place_of(exchange, Side.BROKER), response)
        try:
            take(self, exchange)
        except _Unnamed:
            self._waiting.append((exchange, self._request, self._response))

    def _keep(self, exchange: Exchange) -> None:
        """Keep an exchange whose recorded response will be served."""
        key, version = exchange.api_key, exchange.api_version
        if key is None or version is None or key in self._served or not is_known(key, version):
            return
        request, response = exchange.request_frame, exchange.response_frame
        if request and response and not exchange.truncated:
            found = self.loaded.others.setdefault(key, [])
            found.append(Other(key, version, request, response))

    def _keep_undecoded(self, exchange: Exchange) -> None:
        """Keep a Produce that cannot be decoded, but one that its broker refused."""
        request, response = exchange.request_frame, exchange.response_frame
        if not request or not response or exchange.truncated or kept(exchange):
            return
        topics = exchange.response.responses if exchange.response is not None else ()
        refused = [
            is_refusal(one.error_code, one.base_offset)
            for each in topics
            for one in each.partition_responses
        ]
        if not refused or not all(refused):
            version = int.from_bytes(request[6:8], "big", signed=True)
            self.loaded.undecoded.append(Other(0, version, request, response))

    def finish(self) -> Loaded:
        """Complete the state at the end of the recording, and return it."""
        loaded = self.loaded
        if not loaded.exchanges:
            loaded.lacking.append("exchanges: it is empty, and demands nothing")
        unnamed = 0
        for exchange, request, response in self._waiting:
            self._request, self._response = request, response
            try:
                _TAKERS[exchange.api or ""](self, exchange)
            except _Unnamed:
                unnamed += 1
        if unnamed:
            what = count(unnamed, "exchange")
            loaded.lacking.append(f"names of topics: {what} with ids without names")
        for producer_id, wrote in self._writing.items():
            if producer_id in self._unknown:
                self._ended.append((producer_id, 0, _TransactionEnd.UNKNOWN, wrote))
            elif producer_id not in self._begun:  # nor need its end be, then: it is taken for good
                self._ended.append((producer_id, 0, _TransactionEnd.UNSEEN, wrote))
        for transaction in self._ended:
            self._mark(*transaction)
        if not loaded.cluster.racks:
            loaded.cluster.racks[1] = None
        nodes = loaded.cluster.racks
        if self._unplaced:
            what = count(len(self._unplaced), "batch")
            how = "produced with acks=0 or without a response"
            loaded.lacking.append(f"offsets: of {what}, {how}")
        for topic, following in loaded.cluster.rewind():
            self._leave_out(topic, following)
        unplaced = [*self._unplaced, *self._behind]
        loaded.unplaced = [(topic.topic_id, index, data) for topic, index, data in unplaced]
        for topic in loaded.cluster.all_topics:
            for partition in topic.partitions.values():
                self._finish_partition(topic.name, partition)
                if partition.leader_id not in nodes:
                    partition.leader_id = min(nodes)
        for producer_id, wrote, groups in self._with_offsets:
            for log, last in wrote.items():
                log.note_groups(producer_id, last, groups)
        if loaded.cluster.controller_id not in nodes:
            loaded.cluster.controller_id = min(nodes)
        for group, offsets in loaded.committed.items():
            kept = {key: each for key, each in offsets.items() if each.offset >= 0}
            loaded.committed[group] = kept
        return loaded

    def _leave_out(self, topic: Topic, following: Topic) -> None:
        """Leave out a topic that was deleted and created again, unseen: what clients produced to it
        counts as produced to the following one."""
        batches = sum(len(each.log) for each in topic.partitions.values())
        for index, partition in topic.partitions.items():
            for batch, _ in partition.log.produced():
                self.loaded.cluster.add_partition(following, index)
                self._unplaced.append((following, index, batch.raw))
        what = f"{count(batches, 'batch')} of before it was deleted and created again"
        self.loaded.lacking.append(f"{topic.name}: who did it: {what}")

    def _finish_partition(self, topic: str, partition: Partition) -> None:
        log = partition.log
        seen = self._seen_of(partition)
        log.widen(None, seen.highest_read)
        if not len(log) and seen.latest is not None:
            log.widen(None, seen.latest)
        log.finish(seen.lowest_read, seen.first_start, seen.last_start)
        known = [log.index.bases[0] if len(log) else None, seen.lowest_read]
        first = min((each for each in known if each is not None), default=log.end_offset)
        holes = log.holes(max(first, log.start_offset))
        if holes and len(log):
            name = f"{topic}[{partition.index}]"
            self.loaded.lacking.append(
                f"{name}: {count(holes, 'offset')} up to {log.end_offset - 1}"
            )

    # ---- the cluster

    def _metadata(self, exchange: Exchange) -> None:
        response, cluster = exchange.response, self.loaded.cluster
        for broker in getattr(response, "brokers", ()):
            node_id = broker.node_id if hasattr(broker, "node_id") else broker.broker_id
            cluster.racks[node_id] = broker.rack
        if getattr(response, "cluster_id", None):
            cluster.cluster_id = response.cluster_id
        if getattr(response, "controller_id", -1) >= 0:
            cluster.controller_id = response.controller_id
        for each in getattr(response, "topics", ()):
            if each.error_code and each.name is not None:
                self.loaded.refused.add(each.name)
            if each.error_code or each.name is None:
                continue
            topic = cluster.add_topic(each.name, each.topic_id)
            topic.internal = each.is_internal
            for one in each.partitions:
                partition = cluster.add_partition(topic, one.partition_index)
                if one.leader_id >= 0:
                    partition.leader_id = one.leader_id
                    partition.leader_epoch = max(one.leader_epoch, partition.leader_epoch)
                partition.replicas = one.replica_nodes
                partition.in_sync = one.isr_nodes

    def _create_topics(self, exchange: Exchange) -> None:
        cluster = self.loaded.cluster
        for each in exchange.response.topics:
            if not each.error_code and not exchange.request.validate_only:
                known = cluster.topics.get(each.name)
                if known is not None and each.topic_id == NO_UUID:
                    if known.created or any(len(one.log) for one in known.partitions.values()):
                        cluster.end_topic(each.name, NO_UUID)
                topic = cluster.add_topic(each.name, each.topic_id)
                topic.created = topic.created or topic is not known
                for index in range(max(0, each.num_partitions)):
                    cluster.add_partition(topic, index)

    def _delete_topics(self, exchange: Exchange) -> None:
        cluster = self.loaded.cluster
        for each in exchange.response.responses:
            if not each.error_code:
                name = each.name or cluster.names.get(each.topic_id, "")
                cluster.end_topic(name, each.topic_id, exchange.time_ns)

    def _create_partitions(self, exchange: Exchange) -> None:
        refused = {each.name for each in exchange.response.results if each.error_code}
        for each in () if exchange.request.validate_only else exchange.request.topics:
            topic = self.loaded.cluster.topics.get(each.name)
            if each.name in refused or topic is None or not topic.partitions:
                continue
            if topic.partitions_first is None:
                topic.partitions_first = len(topic.partitions)
            for index in range(each.count):
                self.loaded.cluster.add_partition(topic, index)

    def _find_coordinator(self, exchange: Exchange) -> None:
        request, response, cluster = exchange.request, exchange.response, self.loaded.cluster
        found = [(each.key, each) for each in response.coordinators] or [(request.key, response)]
        for key, each in found:
            if not each.error_code and each.node_id >= 0:
                cluster.coordinators[request.key_type, key] = each.node_id
                cluster.racks.setdefault(each.node_id, None)

    # ---- logs

    def _fetch(self, exchange: Exchange) -> None:
        cluster = self.loaded.cluster
        if exchange.request.replica_id >= 0:
            return
        asked = {
            (each.topic, each.topic_id, one.partition): one.fetch_offset
            for each in exchange.request.topics
            for one in each.partitions
        }
        for each in exchange.response.responses:
            if not each.topic and each.topic_id not in cluster.names:
                raise _Unnamed
        for each in exchange.response.responses:
            name = each.topic or cluster.names[each.topic_id]
            for one in each.partitions:
                if one.error_code:
                    continue
                topic = cluster.add_topic(name, each.topic_id)
                partition = cluster.add_partition(topic, one.partition_index)
                offset = asked.get((each.topic, each.topic_id, one.partition_index))
                if offset is not None:
                    self._read_at(partition, offset)
                self._seen_of(partition).start_at(one.log_start_offset)
                if one.records:
                    data, frame = one.records, self._response
                    self._add(partition, data, frame, data, produced=False, read_at=offset)

    def _add(
        self,
        partition: Partition,
        data: bytes,
        frame: PlacedFrame,
        raw: bytes,
        produced: bool,
        **how: Any,
    ) -> None:
        """Add batches to a log; in the frame they stand as `raw`."""
        store = self.loaded.cluster.store
        start = frame.find(raw)
        try:
            if start < 0 or frame.place is None:
                partition.log.add(data, produced=produced, **how)
            else:
                store.offer(frame.place, frame.data)
                place = frame.place
                partition.log.add(data, produced=produced, place=place, start=start, **how)
        except ProtocolError as error:
            self.loaded.lacking.append(f"records: they cannot be read, {error}")

    def _read_at(self, partition: Partition, offset: int) -> None:
        seen = self._seen_of(partition)
        seen.highest_read = max(seen.highest_read, offset)
        if seen.lowest_read is None or offset < seen.lowest_read:
            seen.lowest_read = offset

    def _seen_of(self, partition: Partition) -> _SeenOffsets:
        return self._seen.setdefault(partition, _SeenOffsets())

    def _list_offsets(self, exchange: Exchange) -> None:
        cluster = self.loaded.cluster
        asked = {
            (each.name, one.partition_index): one.timestamp
            for each in exchange.request.topics
            for one in each.partitions
        }
        for each in exchange.response.topics:
            for one in each.partitions:
                timestamp = asked.get((each.name, one.partition_index))
                if one.error_code or timestamp not in (LATEST, EARLIEST):
                    continue
                offset = one.old_style_offsets[0] if one.old_style_offsets else one.offset
                topic = cluster.add_topic(each.name)
                seen = self._seen_of(cluster.add_partition(topic, one.partition_index))
                if timestamp == LATEST:
                    seen.latest = offset
                else:
                    seen.start_at(offset)

    def _delete_records(self, exchange: Exchange) -> None:
        cluster = self.loaded.cluster
        for each in exchange.response.topics:
            for one in each.partitions:
                if not one.error_code and each.name in cluster.topics:
                    topic = cluster.add_topic(each.name)
                    seen = self._seen_of(cluster.add_partition(topic, one.partition_index))
                    seen.last_start = max(one.low_watermark, seen.last_start or 0)

    def _produce(self, exchange: Exchange) -> None:
        cluster = self.loaded.cluster
        if exchange.row.fault_ids and exchange.response is None and not exchange.one_way:
            return  # a rule kept it from the broker
        for each in exchange.request.topic_data:
            if not each.name and each.topic_id not in cluster.names:
                raise _Unnamed
        placed = {
            (each.name, each.topic_id, one.index): one
            for each in (exchange.response.responses if exchange.response else ())
            for one in each.partition_responses
        }
        for each in exchange.request.topic_data:
            name = each.name or cluster.names[each.topic_id]
            for one in each.partition_data:
                topic = cluster.add_topic(name, each.topic_id)
                answer = placed.get((each.name, each.topic_id, one.index))
                partition = cluster.add_partition(topic, one.index)
                if not one.records:
                    continue
                if answer is not None and is_refusal(answer.error_code, answer.base_offset):
                    code, by_rule = answer.error_code, bool(exchange.row.fault_ids)
                    found = RefusedBatch(name, bytes(one.records), code, by_rule)
                    self.loaded.refused_batches.append(found)
                    continue
                if answer is None or answer.base_offset < 0:
                    if answer is None:  # it may have ended long after it began
                        topic = cluster.topic_at(name, exchange.time_ns) or topic
                        cluster.add_partition(topic, one.index)
                    self._unplaced.append((topic, one.index, one.records))
                    continue
                self._seen_of(partition).start_at(answer.log_start_offset)
                self._place(topic, partition, one.records, answer)

    def _place(self, topic: Topic, partition: Partition, data: bytes, answer: Any) -> None:
        """Add produced batches from the offset on that the broker gave to the first."""
        reader, log = self.loaded.cluster.store.reader, partition.log
        found = list(pieces(data, reader.of_log((log, answer.base_offset))))
        if found and found[-1].magic == NO_BATCH:  # brokers do not store it
            self._behind.append((topic, partition.index, found.pop().raw))
        if not found:
            return
        time = answer.log_append_time_ms
        timed = time >= 0 and all(each.crc_ok for each in found)
        as_sent = all(each.magic == 2 and each.last_offset_delta >= 0 for each in found)
        offset, stored = answer.base_offset, []
        for each in found:
            batch = _stored(each, time if timed else -1)
            stored.append(placed(batch, offset, partition.leader_epoch))
            if each.magic < 2 and batch.magic == 2:
                reader.grant(log, attrs.evolve(batch, offset=offset))
            offset += max(0, batch.last_offset_delta) + 1
            self._note_producer(log, batch, offset - 1)
        raw = data[: sum(len(each.raw) for each in found)]
        frame = self._request if as_sent else PlacedFrame(None, b"")
        self._add(partition, b"".join(stored), frame, raw, produced=True, timed=timed)
        self.loaded.produced.add((topic.name, partition.index))

    def _note_producer(self, log: PartitionLog, batch: records.Batch, last_offset: int) -> None:
        producer_id = batch.producer_id
        if producer_id > self.loaded.producer_id_max and batch.crc_ok:
            self.loaded.producer_id_max = producer_id
        if batch.transactional:
            self._writing.setdefault(producer_id, {})[log] = last_offset

    def _end_txn(self, exchange: Exchange) -> None:
        request, response = exchange.request, exchange.response
        if response is not None and not response.error_code:
            wrote = self._writing.pop(request.producer_id, {})
            groups = self._committing.pop(request.producer_id, set())
            if request.committed and groups:
                self.loaded.committing.in_transactions.update(groups)
                self._with_offsets.append((request.producer_id, wrote, sorted(groups)))
            self._unknown.discard(request.producer_id)
            end = _TransactionEnd.COMMIT if request.committed else _TransactionEnd.ABORT
            self._ended.append((request.producer_id, request.producer_epoch, end, wrote))
        elif response is None and request.committed and may_have_reached(exchange):
            taken_ns, at = self._taken.get(request.producer_id, (0, 0))
            if exchange.time_ns >= taken_ns:
                self._unknown.add(request.producer_id)
            elif self._ended[at][2] is _TransactionEnd.ABORT:
                producer_id, epoch, _, wrote = self._ended[at]
                self._ended[at] = producer_id, epoch, _TransactionEnd.UNKNOWN, wrote

    def _mark(
        self, producer_id: int, epoch: int, end: _TransactionEnd, wrote: dict[PartitionLog, int]
    ) -> None:
        """Add the markers of a transaction that nobody fetched: after its last batch."""
        for log, last in wrote.items():
            at, time = last + 1, 0
            for batch in log.batches(last):
                if batch.control and batch.producer_id == producer_id:
                    at = -1
                elif batch.offset <= last:
                    time = batch.max_timestamp
                elif batch.offset == at:
                    at = batch.last_offset + 1
                    continue
                if batch.offset > last:
                    break
            if at >= 0:
                commit = end is not _TransactionEnd.ABORT
                marker = end_transaction_marker(at, time, commit=commit, coordinator_epoch=0)
                data = encode_batch(
                    [marker],
                    control=True,
                    transactional=True,
                    producer_id=producer_id,
                    producer_epoch=epoch,
                )
                unknown, unseen = end is _TransactionEnd.UNKNOWN, end is _TransactionEnd.UNSEEN
                log.add_marker(data, at, unknown=unknown, unseen=unseen)

    # ---- groups

    def _offset_fetch(self, exchange: Exchange) -> None:
        response = exchange.response
        if response.error_code:
            return
        groups = [(group.group_id, group) for group in response.groups]
        if not groups and exchange.request is not None:
            groups = [(exchange.request.group_id, response)]
        for _, group in groups:
            if any(not each.name and not self._name(each) for each in group.topics):
                raise _Unnamed
        for group_id, group in groups:
            offsets = self.loaded.committed.setdefault(group_id, {})
            for each in () if group.error_code else group.topics:
                for one in each.partitions:
                    key = each.name or self._name(each) or "", one.partition_index
                    if not one.error_code and self._is_first_offset(group_id, key):
                        epoch = one.committed_leader_epoch
                        offsets[key] = Committed(one.committed_offset, epoch, one.metadata)

    def _offset_commit(self, exchange: Exchange) -> None:
        # A group that commits before it fetches its offset had none at the beginning.
        group_id = exchange.request.group_id
        self.loaded.groups.setdefault(group_id, "classic")
        for each in exchange.request.topics:
            for one in each.partitions:
                key = each.name or self._name(each) or "", one.partition_index
                self._is_first_offset(group_id, key)
        response = exchange.response
        if exchange.api == "OffsetCommit":
            if response is None or took_offsets(response):
                self.loaded.committing.plainly.add(group_id)
        elif response is not None and took_offsets(response):
            self._committing.setdefault(exchange.request.producer_id, set()).add(group_id)

    def _is_first_offset(self, group: str, key: PartitionKey) -> bool:
        """Return whether no offset of a group was seen before in this partition."""
        known = (group, key) in self._offset_known
        self._offset_known.add((group, key))
        return not known

    def _name(self, each: Any) -> str | None:
        topic_id = getattr(each, "topic_id", NO_UUID)
        return self.loaded.cluster.names.get(topic_id)

    def _join_group(self, exchange: Exchange) -> None:
        self.loaded.groups.setdefault(exchange.request.group_id, "classic")

    def _consumer_group(self, exchange: Exchange) -> None:
        self.loaded.groups[exchange.request.group_id] = "consumer"

    def _init_producer_id(self, exchange: Exchange) -> None:
        request, response = exchange.request, exchange.response
        if response.error_code:
            return
        found = response.producer_id
        self.loaded.producer_id_max = max(self.loaded.producer_id_max, found)
        self._begun.add(found)
        name = getattr(request, "transactional_id", None)
        before = self._producer_ids.get(name, found) if name else found
        if name:
            self._producer_ids[name] = found
        for producer_id in {before, found}:  # it aborts the transaction if it is open
            self._committing.pop(producer_id, None)
            end = _TransactionEnd.UNKNOWN if producer_id in self._unknown else _TransactionEnd.ABORT
            self._unknown.discard(producer_id)
            if wrote := self._writing.pop(producer_id, {}):
                self._taken[producer_id] = exchange.time_ns, len(self._ended)
                self._ended.append((producer_id, response.producer_epoch, end, wrote))


_TAKERS: dict[str, Callable[[Loader, Exchange], None]] = {
    "Metadata": Loader._metadata,
    "DescribeCluster": Loader._metadata,
    "DescribeTopicPartitions": Loader._metadata,
    "CreateTopics": Loader._create_topics,
    "CreatePartitions": Loader._create_partitions,
    "DeleteRecords": Loader._delete_records,
    "DeleteTopics": Loader._delete_topics,
    "FindCoordinator": Loader._find_coordinator,
    "Fetch": Loader._fetch,
    "ListOffsets": Loader._list_offsets,
    "Produce": Loader._produce,
    "EndTxn": Loader._end_txn,
    "OffsetFetch": Loader._offset_fetch,
    "OffsetCommit": Loader._offset_commit,
    "TxnOffsetCommit": Loader._offset_commit,
    "JoinGroup": Loader._join_group,
    "ConsumerGroupHeartbeat": Loader._consumer_group,
    "InitProducerId": Loader._init_producer_id,
}
"""Methods by API."""
_RECORDS = frozenset({"Fetch", "Produce"})
_RESPONSE_SUFFICES = frozenset(
    {
        "Metadata",
        "DescribeCluster",
        "DescribeTopicPartitions",
        "DeleteRecords",
        "DeleteTopics",
        "OffsetFetch",
        "InitProducerId",
    }
)
"""APIs whose request is not needed, or only in old versions."""
_REQUEST_SUFFICES = frozenset(
    {
        "Produce",
        "EndTxn",
        "OffsetCommit",
        "TxnOffsetCommit",
        "JoinGroup",
        "ConsumerGroupHeartbeat",
    }
)
"""APIs that say something without their response."""


def _stored(batch: records.Batch, log_append_time: int) -> records.Batch:
    """Return a produced batch as a broker stores it, which sets its timestamp from 0 on: one of an
    old format is converted, if it can be read."""
    if (batch.magic < 2 and not damage_of(batch)) or (batch.magic == 2 and log_append_time >= 0):
        data = bytearray(batch.raw if batch.magic == 2 else to_magic_2(batch, batch.base_offset))
        if log_append_time >= 0:
            stamp(data, log_append_time)
        return head(bytes(data), 0, len(data), 2, batch.reader)
    return batch


def load(exchanges: Iterable[Exchange], served: frozenset[int], place: PlaceOf = nowhere) -> Loaded:
    """Build the state of a recording's exchanges; `served` are the API keys that `state` models.

    The bytes of batches whose frames have a `place` are not kept.
    """
    loader = Loader(served, place)
    for exchange in exchanges:
        loader.add(exchange)
    return loader.finish()
