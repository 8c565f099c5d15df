"""Produce: every record is checked against the recording, and placed.

::

    record that was recorded, and is the next  ──▶ its recorded offset
    record that was recorded, but is not       ──▶ the next offset, as it was recorded
record with another id, of a kind (`kinds`) ──▶ the next offset, as it is now
    record that was not recorded               ──▶ the next offset; a finding in the report

From now on it is visible; in a transaction, to readers of uncommitted records (`producers`). With
`--visible all` the recorded ones are at their offsets from the start.

A batch that cannot be read is looked up as a whole, by its bytes (`unreadable`). One that a broker
refuses for its head is refused, unless that of the recording has taken it; so is a batch with a
record that the broker of the recording refused for what it is, and has not taken.

Clients choose the partition of a record without a key at random: such a record gets the partition
and offset at which it was recorded, so that consumers find it there. If partitions are never
compared, records stay in the partition that they are produced to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kproxy.replay.call import NONE, Call
from kproxy.replay.produced import Expected
from kproxy.replay.produced_report import report_unknown
from kproxy.replay.producers import Producer
from kproxy.replay.steps import Steps
from kproxy.replay.stored_batch import pieces
from kproxy.replay.topics import Partition, Topic
from kproxy.replay.unreadable import UnreadableBatch, contents, is_refused
from kproxy.wire.protocol import codes, messages
from kproxy.wire.protocol.errors import CODES
from kproxy.wire.protocol.record_batch import Record
from kproxy.wire.protocol.records import Batch, encode_batch

if TYPE_CHECKING:
    from kproxy.replay.state import State

_OF_THE_CONTENT = frozenset(
    CODES[name]
    for name in (
        "CORRUPT_MESSAGE",
        "INVALID_RECORD",
        "INVALID_TIMESTAMP",
        "MESSAGE_TOO_LARGE",
        "RECORD_LIST_TOO_LARGE",
        "UNSUPPORTED_COMPRESSION_TYPE",
        "UNSUPPORTED_FOR_MESSAGE_FORMAT",
    )
)
"""Errors for what a batch holds: the same is refused again."""
_REMEMBERED_BATCHES = 5
"""Batches remembered per producer and partition, as in Kafka, to detect retries."""


def produce(state: State, call: Call) -> Steps:
    """Produce."""
    body, kind = call.body, messages.ProduceResponse
    responses = []
    for each in body.topic_data:
        yield
        topic = state.cluster.topic(each.name, each.topic_id)
        partitions = []
        for one in each.partition_data:
            yield
            found = kind.PartitionProduceResponse(index=one.index, base_offset=-1)
            partition = topic.partitions.get(one.index) if topic else None
            if topic is None or partition is None:
                by_name = bool(each.name) or topic is not None
                found.error_code = (
                    codes.UNKNOWN_TOPIC_OR_PARTITION if by_name else codes.UNKNOWN_TOPIC_ID
                )
            else:
                _write(state, call, topic, partition, one.records or b"", found)
            partitions.append(found)
        responses.append(
            kind.TopicProduceResponse(
                name=each.name, topic_id=each.topic_id, partition_responses=partitions
            )
        )
    return NONE if body.acks == 0 else kind(responses=responses)


def _write(
    state: State, call: Call, topic: Topic, partition: Partition, data: bytes, found: Any
) -> None:
    batches = list(pieces(data, state.cluster.store.reader.of_frame(len(data))))
    for batch in batches:
        found.error_code = _refusal(state, topic, partition, batch)
        if found.error_code:
            return
    for batch in batches:
        error, offset = _write_batch(state, call, topic, partition, batch)
        found.error_code = error
        if error:
            return
        if found.base_offset < 0:
            found.base_offset = offset
    found.log_start_offset = partition.log.start_offset
    state.fetches.more_visible(state, partition)


def _refusal(state: State, topic: Topic, partition: Partition, batch: Batch) -> int:
    """Return the error code with which a batch is refused; 0 if it is taken, as what the broker of
    the recording took is."""
    check, damaged = state.check, is_refused(batch)
    if not (damaged or check.loaded.refused_batches):
        return 0
    for record in contents(batch):
        if check.holds(topic, partition.index, record):
            continue
        recorded = check.refused(topic, record)
        if recorded and not recorded.by_rule and recorded.error_code in _OF_THE_CONTENT:
            return recorded.error_code
        if damaged:
            check.damaged[topic.name] = record
            return codes.CORRUPT_MESSAGE
    return 0


def _write_batch(
    state: State, call: Call, topic: Topic, partition: Partition, batch: Batch
) -> tuple[int, int]:
    """Place one batch; return the error code and the base offset."""
    key = topic.name, partition.index
    producers = state.producers
    producer = producers.of(batch)
    if producer is not None and batch.producer_epoch < producer.epoch:
        return codes.INVALID_PRODUCER_EPOCH, -1
    written: dict[tuple[int, int], int] = {}
    sequence = batch.producer_epoch, batch.base_sequence
    if batch.producer_id >= 0:
        written = producers.appended.setdefault((batch.producer_id, key), {})
        if sequence in written:
            return 0, written[sequence]
    if producer is not None:
        producers.begin(producer, call.now)
        producer.partitions.add(key)
    offset = _place(state, topic, partition, batch, producer)
    if batch.producer_id >= 0:
        written[sequence] = offset
        if len(written) > _REMEMBERED_BATCHES:
            del written[next(iter(written))]
    return 0, offset


def _place(
    state: State, topic: Topic, partition: Partition, batch: Batch, producer: Producer | None
) -> int:
    """Place the records of a batch; return the offset of the first. `producer` is that of its
    transaction."""
    first = -1
    unknown: list[Record] = []
    appended: dict[Partition, list[Record]] = {}
    found = contents(batch)
    for record in found:
        expected = state.check.match(topic, partition.index, record, producer is not None)
        if expected is None:
            unknown.append(record)
        elif producer is not None:
            producer.produced.append(expected)
        if expected is None or expected.offset < 0:
            where, lacking = partition, record
        else:
            where, lacking = _recorded_place(state, topic, partition, expected, record, producer)
        if lacking is not None:
            appended.setdefault(where, []).append(lacking)
        elif expected is not None and first < 0 and not appended:
            first = expected.offset
    for record in unknown:
        if producer is None:
            report_unknown(state.check, topic, partition.index, record)
        else:
            producer.unknown.append((topic, partition.index, record))
    for where, kept in appended.items():
        whole = batch.magic == 2 and kept == found
        is_unreadable = isinstance(found[0], UnreadableBatch)
        data = batch.raw if whole or is_unreadable else _batch_of(batch, kept)
        offset = where.log.append(data, where.leader_epoch)
        first = offset if first < 0 else first
        state.fetches.more_visible(state, where)
    return first


def _recorded_place(
    state: State,
    topic: Topic,
    partition: Partition,
    expected: Expected,
    record: Record,
    producer: Producer | None,
) -> tuple[Partition, Record | None]:
    """Serve a recorded record that is produced to a partition. Return the partition in which it is,
    and the record if it is to be appended there: where its key, or what is of a kind, is another
    one, that of now, for the app goes on with it."""
    varies = expected.record.key != record.key or expected.varies
    served = record if varies else expected.record
    if expected.partition == partition.index:
        where = partition
    else:
        where = topic.partitions.get(expected.partition) or topic.later[expected.partition]
        is_elsewhere = state.check.ignored.any_partition(topic.name)
        if is_elsewhere and where.log.live_order.holds_back:
            where.log.pass_by(expected.offset)
            state.fetches.more_visible(state, where)
            return partition, served
    order = where.log.live_order
    if varies and order.holds_back:
        where.log.pass_by(expected.offset)
        return where, served
    if not order.show(expected.offset, expected.transaction, producer):
        return where, served
    if where is not partition:
        state.fetches.more_visible(state, where)
    return where, None


def _batch_of(batch: Batch, kept: list[Record]) -> bytes:
    base = kept[0].offset
    numbered = [
        Record(base + index, each.timestamp, each.key, each.value, each.headers)
        for index, each in enumerate(kept)
    ]
    return encode_batch(
        numbered,
        compression=batch.compression,
        producer_id=batch.producer_id,
        producer_epoch=batch.producer_epoch,
        base_sequence=batch.base_sequence,
        transactional=batch.transactional,
    )


HANDLERS = {"Produce": produce}
