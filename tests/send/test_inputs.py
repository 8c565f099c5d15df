"""What consumers read: all of it once, in order, in requests that brokers take."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kproxy.exchange.topic_records import TopicRecord
from kproxy.send.inputs import produce_request, rounds
from kproxy.send.substitution import Renaming
from kproxy.wire.protocol import codec, messages, records

SIZES = st.sampled_from([0, 1, 100_000, 600_000])
DRAWN = st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 2), SIZES), max_size=30)


@given(DRAWN, st.lists(st.integers(-1, 1 << 41), min_size=30, max_size=30))
def test_requests_hold_all_records_in_order_in_batches_of_a_size(drawn, times) -> None:
    found = [
        TopicRecord(
            topic, partition, at, times[at], bytes([at]), b"v" * size, (("h", None),), False
        )
        for at, (topic, partition, size) in enumerate(drawn)
    ]
    expected: dict = {}
    for each in found:
        row = each.timestamp, each.key, each.value, each.headers
        expected.setdefault((f"x-{each.topic}", each.partition), []).append(row)
    written: dict = {}
    for batches in rounds(found, Renaming("x-")):
        body = produce_request(batches, {})
        header = messages.RequestHeader(api_key=0, api_version=9, correlation_id=1, client_id="")
        frame = codec.encode_request(codec.Request(header, body))
        for topic in codec.decode_request_body(frame).topic_data:
            for each in topic.partition_data:
                (batch,) = records.batches(each.records)
                assert batch.crc_ok and batch.last_offset_delta == len(batch.records) - 1
                sizes = [len(one.value or b"") for one in batch.records]
                assert sum(sizes) <= 512 << 10 or len(sizes) == 1
                rows = [(one.timestamp, one.key, one.value, one.headers) for one in batch.records]
                written.setdefault((topic.name, each.index), []).extend(rows)
    assert written == expected
