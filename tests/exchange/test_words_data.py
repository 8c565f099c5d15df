"""Produce, Fetch and their kin in words."""

from __future__ import annotations

from kproxy.wire.protocol import messages
from tests.exchange.batches import batch, marker
from tests.exchange.bodies import (
    ORDERS,
    exchange,
    fetch_request,
    fetch_response,
    produce_request,
    produce_response,
    words,
)

M = messages


def test_produce():
    asked = produce_request({0: batch(3, value=b"x" * 100)})
    size = len(batch(3, value=b"x" * 100))
    assert words("Produce", 9, asked, produce_response({0: 41})) == (
        f"orders[0] 3 records, {size} B, acks=all → offset 41"
    )
    asked = produce_request({0: batch(1), 2: batch(2)}, transactional_id="tx")
    asked.acks = 1
    assert words("Produce", 9, asked, produce_response({0: 41, 2: 7})) == (
        f"orders[0,2] 3 records, {len(batch(1)) + len(batch(2))} B, acks=1, transaction tx"
        " → [0@41,2@7]"
    )


def test_produce_that_failed_has_no_offset():
    asked = produce_request({0: batch(1)})
    failed = produce_response({0: -1}, error_code=6)
    assert words("Produce", 9, asked, failed).endswith("acks=all → ")


def test_fetch():
    answered = fetch_response({0: batch(3, offset=41), 1: b""})
    size = len(batch(3))
    assert words("Fetch", 11, fetch_request({0: 41, 1: 7}), answered) == (
        f"orders[0@41,1@7] → [0] 3 records @41..43, {size} B"
    )
    answered = fetch_response({0: batch(3, offset=41), 1: batch(1, offset=7)})
    assert words("Fetch", 11, fetch_request({0: 41, 1: 7}), answered) == (
        f"orders[0@41,1@7] → [0,1] 4 records, {size + len(batch(1))} B"
    )
    assert words("Fetch", 11, fetch_request({0: 41}), fetch_response({0: b""})) == (
        "orders[0@41] → empty"
    )


def test_fetch_in_a_session_says_what_came_from_where():
    asked = fetch_request({}, session_id=77, session_epoch=3)
    answered = fetch_response({0: batch(1, offset=5), 4: b""}, session_id=77)
    assert words("Fetch", 11, asked, answered) == (
        f"as before, session 77 #3 → orders[0] 1 record @5, {len(batch(1))} B"
    )
    asked = fetch_request({}, session_id=77, session_epoch=-1)
    assert words("Fetch", 11, asked, M.FetchResponse()) == "session 77 ends → empty"


def test_markers_of_transactions_are_no_records():
    data = batch(2, offset=10) + marker(commit=True, offset=12)
    answered = fetch_response({0: data})
    assert words("Fetch", 11, fetch_request({0: 10}), answered) == (
        f"orders[0@10] → 2 records, COMMIT @10..12, {len(data)} B"
    )
    data = marker(commit=False, offset=12)
    assert words("Fetch", 11, fetch_request({0: 12}), fetch_response({0: data})) == (
        f"orders[0@12] → ABORT @12, {len(data)} B"
    )


def test_bytes_that_are_no_records_are_named():
    data = b"\xff" * 40
    answered = fetch_response({0: data})
    text = words("Fetch", 11, fetch_request({0: 1}), answered)
    assert text == "orders[0@1] → bytes that cannot be read (batch length -1), 40 B"
    # The broker cuts off the last batch.
    data = batch(3, offset=1) + batch(3, offset=4)[:50]
    answered = fetch_response({0: data})
    assert words("Fetch", 11, fetch_request({0: 1}), answered) == (
        f"orders[0@1] → 3 records @1..3, {len(data)} B"
    )


def test_share_fetch():
    F = M.ShareFetchRequest
    topic = F.FetchTopic(topic_id=ORDERS, partitions=[F.FetchPartition(partition_index=0)])
    asked = F(group_id="share", member_id="m", share_session_epoch=1, topics=[topic])
    R = M.ShareFetchResponse
    partition = R.PartitionData(
        partition_index=0,
        records=batch(3, offset=5),
        acquired_records=[R.AcquiredRecords(first_offset=5, last_offset=7, delivery_count=1)],
    )
    answered = R(responses=[R.ShareFetchableTopicResponse(topic_id=ORDERS, partitions=[partition])])
    assert words("ShareFetch", 1, asked, answered) == (
        "group share, id:EjRWeBI0[0], session #1"
        f" → id:EjRWeBI0[0] 3 records @5..7, {len(batch(3))} B, 3 acquired"
    )
    assert words("ShareFetch", 1, asked, R()).endswith(" → empty")


def test_list_offsets():
    L, R = M.ListOffsetsRequest, M.ListOffsetsResponse
    partitions = [
        L.ListOffsetsPartition(partition_index=index, timestamp=timestamp)
        for index, timestamp in enumerate((-1, -2, 1700000000000))
    ]
    asked = L(topics=[L.ListOffsetsTopic(name="orders", partitions=partitions)])
    found = [
        R.ListOffsetsPartitionResponse(partition_index=index, offset=offset)
        for index, offset in enumerate((42, 0, -1))
    ]
    answered = R(topics=[R.ListOffsetsTopicResponse(name="orders", partitions=found)])
    assert words("ListOffsets", 7, asked, answered) == (
        "orders[0@latest,1@earliest,2@time 1700000000000] → [0@42,1@0,2@–]"
    )
    old = R.ListOffsetsPartitionResponse(partition_index=0, old_style_offsets=[7, 3])
    answered = R(topics=[R.ListOffsetsTopicResponse(name="orders", partitions=[old])])
    asked = L(topics=[L.ListOffsetsTopic(name="orders", partitions=partitions[:1])])
    assert words("ListOffsets", 0, asked, answered) == "orders[0@latest] → [0@7]"


def test_offset_for_leader_epoch():
    L, R = M.OffsetForLeaderEpochRequest, M.OffsetForLeaderEpochResponse
    partition = L.OffsetForLeaderPartition(partition=2, leader_epoch=5)
    asked = L(topics=[L.OffsetForLeaderTopic(topic="orders", partitions=[partition])])
    end = R.EpochEndOffset(partition=2, end_offset=42)
    answered = R(topics=[R.OffsetForLeaderTopicResult(topic="orders", partitions=[end])])
    assert words("OffsetForLeaderEpoch", 3, asked, answered) == "orders[2 epoch 5] → [2@42]"


def test_how_far_a_consumer_is_behind():
    F = M.FetchResponse

    def fetched(partitions):
        found = [
            F.PartitionData(partition_index=index, records=data, high_watermark=end)
            for index, (data, end) in partitions.items()
        ]
        return F(responses=[F.FetchableTopicResponse(topic="orders", partitions=found)])

    asked = fetch_request({0: 41, 1: 7})
    size = len(batch(3, offset=41))
    one = words("Fetch", 11, fetch_request({0: 41}), fetched({0: (batch(3, offset=41), 56)}))
    assert one.endswith(f"→ 3 records @41..43, {size} B, lag 12 of 56")
    both = words("Fetch", 11, asked, fetched({0: (batch(3, offset=41), 56), 1: (b"", 9)}))
    assert both.endswith("lag 14 in 2 partitions")
    # Read to the end, and nothing new.
    end = words("Fetch", 11, asked, fetched({0: (batch(3, offset=41), 44), 1: (b"", 7)}))
    assert "lag" not in end
    assert words("Fetch", 11, asked, fetched({1: (b"", 9)})).endswith("→ empty, lag 2 of 9")


def test_records_of_aborted_transactions_are_told_apart():
    F = M.FetchResponse
    data = batch(3, offset=41, producer_id=7) + marker(False, 44, producer_id=7)
    data += batch(2, offset=45, producer_id=7) + marker(True, 47, producer_id=7)
    partition = F.PartitionData(partition_index=0, records=data, high_watermark=48)
    partition.aborted_transactions = [F.AbortedTransaction(producer_id=7, first_offset=41)]
    body = F(responses=[F.FetchableTopicResponse(topic="orders", partitions=[partition])])
    found = exchange("Fetch", 11, fetch_request({0: 41}), body)
    assert "5 records, 3 aborted, ABORT, COMMIT @41..47" in found.text
    assert [record.aborted for record in found.records] == [True] * 3 + [False] * 2


def test_a_fetch_of_nothing_says_so():
    assert words("Fetch", 11, fetch_request({}), M.FetchResponse()) == "no topics → empty"
