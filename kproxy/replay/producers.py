"""Producers and their transactions, from InitProducerId to EndTxn.

What a transaction produced counts, for `produced`, when it has ended: as committed or as aborted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from kproxy.replay.call import Call
from kproxy.replay.groups import commit_response, took_offsets
from kproxy.replay.loaded import PartitionKey
from kproxy.replay.produced import Expected
from kproxy.replay.produced_report import report_outside, report_uncommitted, report_unknown
from kproxy.replay.steps import Steps
from kproxy.replay.topics import Partition, Topic
from kproxy.wire.protocol import codes, messages
from kproxy.wire.protocol.record_batch import Record
from kproxy.wire.protocol.records import Batch, encode_batch, end_transaction_marker
from kproxy.wire.protocol.schema import NO_UUID

if TYPE_CHECKING:
    from kproxy.replay.state import State

_MS = 1_000_000
_EPOCH_MAX = 32_766
_TRANSACTION = 1
_EPOCH_BUMP_VERSION = 5
"""From this version of EndTxn on, the end of a transaction bumps the epoch (KIP-890)."""


@attrs.define(eq=False)
class Producer:
    """A transactional producer, and its transaction."""

    transactional_id: str
    producer_id: int
    epoch: int = 0
    state: str = "Empty"
    timeout_ms: int = 0
    started_ms: int = -1
    partitions: set[PartitionKey] = attrs.Factory(set)
    """Partitions of the open transaction."""
    produced: list[Expected] = attrs.Factory(list)
    """The recorded records that it has produced again."""
    unknown: list[tuple[Topic, int, Record]] = attrs.Factory(list)
    """Topic, partition and record of what it has produced besides them."""
    groups: set[str] = attrs.Factory(set)
    """Groups that are part of the open transaction."""
    committing: set[str] = attrs.Factory(set)
    """Those of them whose offsets it commits."""

    def forget(self) -> None:
        """Forget the transaction, which has ended."""
        self.partitions.clear()
        self.produced.clear()
        self.unknown.clear()
        self.groups.clear()
        self.committing.clear()


@attrs.define(eq=False)
class Producers:
    """All producers that have an id."""

    next_id: int
    by_name: dict[str, Producer] = attrs.Factory(dict)
    by_id: dict[int, Producer] = attrs.Factory(dict)
    appended: dict[tuple[int, PartitionKey], dict[tuple[int, int], int]] = attrs.Factory(dict)
    """Base offsets by (epoch, base sequence) of a producer's last batches in a partition."""

    def new_id(self) -> int:
        """Return a producer id that is neither used in this replay nor in the recording."""
        self.next_id += 1
        return self.next_id - 1

    def of(self, batch: Batch) -> Producer | None:
        """Return the producer whose transaction a batch is part of; None if it is in none."""
        if not batch.transactional:
            return None
        return self.with_id(batch.producer_id, batch.producer_epoch)

    def with_id(self, producer_id: int, epoch: int) -> Producer:
        """Return the producer with this id; one is made if it is from a recorded response
        (`--mode semantic`)."""
        found = self.by_id.get(producer_id)
        if found is None:
            found = self.by_id[producer_id] = Producer("", producer_id, epoch)
        return found

    def check(self, transactional_id: str, producer_id: int, epoch: int) -> Producer | int:
        """Return the producer that a request names; or an error code."""
        producer = self.by_name.get(transactional_id)
        if producer is None or producer.producer_id != producer_id:
            return codes.INVALID_PRODUCER_ID_MAPPING
        return producer if producer.epoch == epoch else codes.PRODUCER_FENCED

    def begin(self, producer: Producer, now: int) -> None:
        """Begin the producer's transaction if none is open: its first request does so."""
        if producer.state != "Ongoing":
            producer.state, producer.started_ms = "Ongoing", now // _MS


def init_producer_id(state: State, call: Call) -> Any:
    """InitProducerId, idempotent or transactional."""
    body, producers = call.body, state.producers
    response = messages.InitProducerIdResponse
    name = body.transactional_id
    if name is None:
        if body.producer_id >= 0 and body.producer_epoch < _EPOCH_MAX:
            return response(producer_id=body.producer_id, producer_epoch=body.producer_epoch + 1)
        return response(producer_id=producers.new_id(), producer_epoch=0)
    producer = producers.by_name.get(name)
    if producer is None or producer.epoch >= _EPOCH_MAX:
        if producer is not None:
            end(state, producer, False, call.now)
        producer = Producer(name, producers.new_id())
        producers.by_name[name] = producers.by_id[producer.producer_id] = producer
    else:
        if body.producer_id >= 0 and body.producer_epoch < producer.epoch:
            return response(error_code=codes.PRODUCER_FENCED, producer_epoch=-1)
        end(state, producer, False, call.now)
        producer.epoch += 1
    producer.timeout_ms = body.transaction_timeout_ms
    return response(producer_id=producer.producer_id, producer_epoch=producer.epoch)


def add_partitions_to_txn(state: State, call: Call) -> Steps:
    """AddPartitionsToTxn, from clients (up to version 3) and from brokers."""
    body, response = call.body, messages.AddPartitionsToTxnResponse
    if call.version < 4:
        results = yield from _add(
            state,
            call,
            body.v3_and_below_transactional_id,
            (body.v3_and_below_producer_id, body.v3_and_below_producer_epoch),
            body.v3_and_below_topics,
        )
        return response(results_by_topic_v3_and_below=results)
    transactions = []
    for each in body.transactions:
        name, identity = each.transactional_id, (each.producer_id, each.producer_epoch)
        results = yield from _add(state, call, name, identity, each.topics)
        result = response.AddPartitionsToTxnResult(transactional_id=name, topic_results=results)
        transactions.append(result)
    return response(results_by_transaction=transactions)


def _add(
    state: State, call: Call, name: str, identity: tuple[int, int], topics: list[Any]
) -> Steps:
    response = messages.AddPartitionsToTxnResponse
    producer = state.producers.check(name, *identity)
    results = []
    for each in topics:
        yield
        topic = state.cluster.topics.get(each.name)
        partitions = []
        for index in each.partitions:
            yield
            error = producer if isinstance(producer, int) else 0
            if not error and (topic is None or index not in topic.partitions):
                error = codes.UNKNOWN_TOPIC_OR_PARTITION
            if not error and isinstance(producer, Producer):
                state.producers.begin(producer, call.now)
                producer.partitions.add((each.name, index))
            result = response.AddPartitionsToTxnPartitionResult
            partitions.append(result(partition_index=index, partition_error_code=error))
        result = response.AddPartitionsToTxnTopicResult
        results.append(result(name=each.name, results_by_partition=partitions))
    return results


def add_offsets_to_txn(state: State, call: Call) -> Any:
    """AddOffsetsToTxn."""
    body = call.body
    found = state.producers.check(body.transactional_id, body.producer_id, body.producer_epoch)
    if isinstance(found, int):
        return messages.AddOffsetsToTxnResponse(error_code=found)
    state.producers.begin(found, call.now)
    found.groups.add(body.group_id)
    return messages.AddOffsetsToTxnResponse()


def txn_offset_commit(state: State, call: Call) -> Steps:
    """TxnOffsetCommit: the offsets are valid when the transaction is committed."""
    body = call.body
    found = state.producers.check(body.transactional_id, body.producer_id, body.producer_epoch)
    error = found if isinstance(found, int) else 0
    if not error:
        error = state.groups.check_commit(
            body.group_id,
            body.member_id,
            body.group_instance_id,
            body.generation_id_or_member_epoch,
        )
    offsets = {}
    if not isinstance(found, int) and not error:
        state.producers.begin(found, call.now)
        found.groups.add(body.group_id)
        undecided = state.groups.undecided.setdefault(body.group_id, {})
        offsets = undecided.setdefault(found.producer_id, {})
    kind = messages.TxnOffsetCommitResponse
    response = yield from commit_response(state, kind, "TxnOffsetCommit", body, offsets, error)
    if not isinstance(found, int) and took_offsets(response):
        found.committing.add(body.group_id)
    return response


def end_txn(state: State, call: Call) -> Any:
    """EndTxn."""
    body, response = call.body, messages.EndTxnResponse
    found = state.producers.check(body.transactional_id, body.producer_id, body.producer_epoch)
    if isinstance(found, int):
        return response(error_code=found)
    done = "CompleteCommit" if body.committed else "CompleteAbort"
    if found.state not in ("Ongoing", done):
        return response(error_code=codes.INVALID_TXN_STATE)
    end(state, found, body.committed, call.now)
    if call.version < _EPOCH_BUMP_VERSION:
        return response()
    found.epoch += 1
    return response(producer_id=found.producer_id, producer_epoch=found.epoch)


def end(state: State, producer: Producer, committed: bool, now: int) -> None:
    """End the open transaction of a producer, if there is one: write its markers."""
    if producer.state != "Ongoing":
        return
    producer.state = "CompleteCommit" if committed else "CompleteAbort"
    written = {(each.topic.name, each.partition) for each in producer.produced}
    ended = state.check.end(producer.produced, committed, producer.committing)
    for name, index in sorted(producer.partitions | written):
        partition = state.cluster.partition(name, NO_UUID, index)
        if partition is not None:
            _write_markers(partition, producer, committed, now)
    for each in ended:
        each.log.pass_by(each.offset)
    for name, index in sorted(producer.partitions | written):
        partition = state.cluster.partition(name, NO_UUID, index)
        if partition is not None:
            state.fetches.more_visible(state, partition)
    for group_id in producer.groups:
        offsets = state.groups.undecided.get(group_id, {}).pop(producer.producer_id, {})
        if committed:
            state.groups.committed.setdefault(group_id, {}).update(offsets)
    if committed:
        _report_unknown(state, producer)
    producer.forget()


def _write_markers(partition: Partition, producer: Producer, committed: bool, now: int) -> None:
    """End what a producer's transaction wrote to a partition: its own, and recorded ones."""
    log = partition.log
    lacking = log.live_order.end(producer, committed)
    for producer_id in dict.fromkeys([*lacking, producer.producer_id]):
        if producer_id not in lacking and not log.is_open(producer_id):
            continue
        marker = end_transaction_marker(0, now // _MS, commit=committed, coordinator_epoch=0)
        data = encode_batch(
            [marker],
            control=True,
            transactional=True,
            producer_id=producer_id,
            producer_epoch=producer.epoch,
        )
        log.append(data, partition.leader_epoch)


def _report_unknown(state: State, producer: Producer) -> None:
    """Report the records of a transaction that are not among the recorded ones."""
    for unknown in producer.unknown:
        report_unknown(state.check, *unknown)


def end_as_recorded(state: State, call: Call) -> None:
    """Take an EndTxn that a recorded response has answered (`--mode semantic`)."""
    producer = state.producers.by_id.get(call.body.producer_id)
    if producer is not None:
        end(state, producer, call.body.committed, call.now)


def commit_as_recorded(state: State, call: Call) -> None:
    """Take a TxnOffsetCommit that a recorded response has answered (`--mode semantic`)."""
    producer = state.producers.with_id(call.body.producer_id, call.body.producer_epoch)
    state.producers.begin(producer, call.now)
    producer.committing.add(call.body.group_id)


def report_at_end(state: State) -> None:
    """Report what transactions have produced that never ended, what they have produced otherwise
    than recorded, and what should have been in one."""
    for producer in state.producers.by_id.values():
        _report_unknown(state, producer)
    report_uncommitted(state.check)
    report_outside(state.check)


def list_transactions(state: State, call: Call) -> Any:
    """ListTransactions: the transactions of this replay."""
    body, response = call.body, messages.ListTransactionsResponse
    states = [
        response.TransactionState(
            transactional_id=each.transactional_id,
            producer_id=each.producer_id,
            transaction_state=each.state,
        )
        for each in state.producers.by_name.values()
        if call.connection.client.node_id
        in (None, state.cluster.coordinator(_TRANSACTION, each.transactional_id))
        and (not body.state_filters or each.state in body.state_filters)
        and (not body.producer_id_filters or each.producer_id in body.producer_id_filters)
    ]
    return response(transaction_states=states)


def describe_transactions(state: State, call: Call) -> Steps:
    """DescribeTransactions: the transactions of this replay; None if one is from elsewhere."""
    response = messages.DescribeTransactionsResponse
    found = []
    for name in call.body.transactional_ids:
        yield
        producer = state.producers.by_name.get(name)
        if producer is None:
            return None
        topics: dict[str, list[int]] = {}
        for topic, index in sorted(producer.partitions):
            topics.setdefault(topic, []).append(index)
        found.append(
            response.TransactionState(
                transactional_id=name,
                transaction_state=producer.state,
                transaction_timeout_ms=producer.timeout_ms,
                transaction_start_time_ms=producer.started_ms,
                producer_id=producer.producer_id,
                producer_epoch=producer.epoch,
                topics=[
                    response.TopicData(topic=topic, partitions=indexes)
                    for topic, indexes in topics.items()
                ],
            )
        )
    return response(transaction_states=found)


HANDLERS = {
    "InitProducerId": init_producer_id,
    "AddPartitionsToTxn": add_partitions_to_txn,
    "AddOffsetsToTxn": add_offsets_to_txn,
    "TxnOffsetCommit": txn_offset_commit,
    "EndTxn": end_txn,
    "ListTransactions": list_transactions,
    "DescribeTransactions": describe_transactions,
}
