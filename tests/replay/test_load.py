"""What a recording is made into."""

from __future__ import annotations

import uuid

import pytest

from kproxy.replay.loaded import Committed
from kproxy.wire.protocol import messages, records
from kproxy.wire.protocol.errors import CODES
from kproxy.wire.protocol.message_sets import encode_message_set
from tests.replay.making import ORDERS_ID, Recorded, batch, fetch, produce


def log(recorded: Recorded, partition: int = 0):
    return recorded.loaded.cluster.topics["orders"].partitions[partition].log


def values(found) -> list[bytes | None]:
    return [record.value for each in found.batches() for record in each.records]


def test_the_cluster_is_as_metadata_says() -> None:
    cluster = Recorded().metadata(partitions=3, nodes=2).loaded.cluster
    assert list(cluster.racks) == [1, 2]
    assert (cluster.cluster_id, cluster.controller_id) == ("a", 1)
    topic = cluster.topics["orders"]
    assert topic.topic_id == ORDERS_ID
    assert [(each.leader_id, each.leader_epoch) for each in topic.partitions.values()] == [
        (1, 3),
        (2, 3),
        (1, 3),
    ]


def test_fetched_and_produced_batches_make_one_log() -> None:
    recorded = Recorded().metadata().produced(batch("b"), 1).fetched(batch("a"))
    assert values(log(recorded)) == [b"a", b"b"]


def test_the_same_batch_twice_is_one() -> None:
    recorded = Recorded().metadata().produced(batch("a"), 0)
    recorded.fetched(batch("a")).fetched(batch("a")).produced(batch("a"), 0)
    assert values(log(recorded)) == [b"a"]


def test_old_message_sets_are_stored_as_batches() -> None:
    record = records.Record(0, 5, b"k", b"v")
    data = encode_message_set([record], magic=1)
    recorded = Recorded().metadata().produced(data, 4)
    (found,) = log(recorded).batches()
    assert (found.magic, found.offset, found.records[0].value) == (2, 4, b"v")


def test_a_topic_that_stamps_records_has_stamped_them() -> None:
    recorded = Recorded().metadata().produced(batch("a"), 0, log_append_time_ms=77)
    (found,) = log(recorded).batches()
    assert found.timestamp_type == "LogAppendTime"
    assert found.records[0].timestamp == 77
    assert found.crc_ok


def test_a_refused_produce_is_not_in_the_log() -> None:
    recorded = Recorded().metadata().produced(batch("a"), -1, error_code=6)
    assert len(log(recorded)) == 0


@pytest.mark.parametrize("error", ["REQUEST_TIMED_OUT", "NOT_ENOUGH_REPLICAS_AFTER_APPEND"])
def test_what_was_written_before_the_error_is_in_the_log(error: str) -> None:
    recorded = Recorded().metadata().produced(batch("a"), 5, error_code=CODES[error])
    assert [(each.offset, values(log(recorded))) for each in log(recorded).batches()] == [
        (5, [b"a"])
    ]
    assert recorded.loaded.refused_batches == []
    refused = Recorded().metadata().produced(batch("a"), -1, error_code=CODES[error])
    assert len(log(refused)) == 0


def test_what_was_produced_without_an_answer_has_no_offset_and_is_named() -> None:
    loaded = Recorded().metadata().add(9, produce(batch("a"), acks=0)).loaded
    assert [each[:2] for each in loaded.unplaced] == [(ORDERS_ID, 0)]
    what = "offsets: of 1 batch, produced with acks=0 or without a response"
    assert loaded.lacking == [what]


def test_offsets_that_the_recording_lacks_are_named() -> None:
    recorded = Recorded().metadata().fetched(batch("a")).fetched(batch("b", base_offset=5), 5)
    assert recorded.loaded.lacking == ["orders[0]: 4 offsets up to 5"]


def test_a_log_of_which_nothing_was_read_ends_where_it_was_read() -> None:
    recorded = Recorded().metadata().fetched(b"", offset=42)
    assert (log(recorded).start_offset, log(recorded).end_offset) == (42, 42)


def test_topic_ids_may_be_named_later() -> None:
    request = messages.FetchRequest
    kind = messages.FetchResponse
    asked = fetch({0: 0})
    asked.topics[0].topic_id = ORDERS_ID
    data = kind.PartitionData(partition_index=0, aborted_transactions=None, records=batch("a"))
    got = kind.FetchableTopicResponse(topic_id=ORDERS_ID, partitions=[data])
    recorded = Recorded().add(13, asked, kind(responses=[got])).metadata()
    assert values(log(recorded)) == [b"a"]
    asked.topics[0].topic_id = got.topic_id = uuid.UUID(int=99)
    nameless = Recorded().add(13, asked, kind(responses=[got])).loaded
    assert nameless.lacking == ["names of topics: 1 exchange with ids without names"]
    assert request is messages.FetchRequest


def test_groups_stand_where_they_stood_first() -> None:
    recorded = Recorded().metadata().stood("g", 5).stood("g", 9)
    assert recorded.loaded.committed == {"g": {("orders", 0): Committed(5, -1, "")}}
    assert Recorded().metadata().stood("g", -1).stood("g", 9).loaded.committed == {"g": {}}


def test_a_group_that_commits_first_stood_nowhere() -> None:
    request = messages.OffsetCommitRequest
    one = request.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=9, committed_metadata=""
    )
    topic = request.OffsetCommitRequestTopic(name="orders", partitions=[one])
    body = request(group_id="g", topics=[topic])
    recorded = Recorded().metadata().add(8, body, messages.OffsetCommitResponse())
    assert recorded.stood("g", 9).loaded.committed == {"g": {}}


def test_markers_that_nobody_fetched_are_put_behind_what_was_produced() -> None:
    more = {"producer_id": 5, "producer_epoch": 1, "transactional": True}
    recorded = Recorded().metadata().produced(batch("a", "b", **more), 0)
    end = messages.EndTxnRequest(
        transactional_id="t", producer_id=5, producer_epoch=1, committed=False
    )
    recorded.add(3, end, messages.EndTxnResponse()).produced(batch("c"), 3)
    found = log(recorded)
    assert [each.offset for each in found.batches() if each.control] == [2]
    assert [each.first_offset for each in found.aborted(0, 4)] == [0]
    assert found.last_stable_offset == 4
