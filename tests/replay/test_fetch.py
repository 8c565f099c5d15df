"""Reading from the replaying broker: long polls, limits, errors, offsets by time."""

from __future__ import annotations

from typing import Any

import pytest

from kproxy.replay.settings import Mode, ReplaySettings, Visible
from kproxy.wire.protocol import codes, error_name, messages, records
from kproxy.wire.protocol.compression import CODECS
from kproxy.wire.protocol.message_sets import encode_message_set
from kproxy.wire.protocol.record_batch import Record
from kproxy.wire.protocol.records import encode_batch, end_transaction_marker
from tests.replay.making import ORDERS_ID, Playing, Recorded, batch, fetch


def playing(*batches: bytes) -> Playing:
    recorded = Recorded().metadata()
    for data in batches:
        recorded.fetched(data)
    return Playing(recorded.loaded)


def list_offsets(timestamp: int, isolation_level: int = 0, **more):
    request = messages.ListOffsetsRequest
    one = request.ListOffsetsPartition(partition_index=0, timestamp=timestamp, **more)
    topic = request.ListOffsetsTopic(name="orders", partitions=[one])
    return request(replica_id=-1, isolation_level=isolation_level, topics=[topic])


def test_any_version_reads_the_same() -> None:
    client = playing(batch("a", "b")).connect()
    for version in range(4, 19):
        asked = fetch({0: 0}, max_wait_ms=0)
        asked.topics[0].topic_id = ORDERS_ID
        (topic,) = client.ask(version, asked).responses
        (found,) = topic.partitions
        assert found.records == batch("a", "b"), version
        assert (found.high_watermark, found.error_code) == (2, 0)


OLD = pytest.mark.parametrize(("version", "magic"), [(0, 0), (1, 0), (2, 1), (3, 1)])
"""The versions of Fetch that take message sets, and the newest magic that they take."""


def as_kafka_python_reads(data: bytes) -> list[tuple[Any, ...]]:
    """Magic, offset, time, key and value of each record, and the checksums verified."""
    import kafka.record

    source, found = kafka.record.MemoryRecords(data), []
    while source.has_next():
        each = source.next_batch()
        assert each.validate_crc()
        for one in each:
            found.append((data[16], one.offset, one.timestamp, one.key, one.value))
    return found


@OLD
@pytest.mark.parametrize("codec", CODECS[:3])  # kafka-python lacks the LZ4 of magic 0
@pytest.mark.parametrize("mode", [Mode.STATE, Mode.SEMANTIC])
def test_old_versions_read_message_sets(version: int, magic: int, codec: str, mode: Mode) -> None:
    wrote = {"producer_id": 5, "producer_epoch": 0, "transactional": True}
    marker = end_transaction_marker(3, 1, commit=True, coordinator_epoch=0)
    oldest = encode_message_set([Record(6, 9, b"k", b"f")], magic=0, compression=codec)
    older = encode_message_set(
        [Record(7, 10, None, b"g"), Record(8, 8, b"k", None)], magic=1, compression=codec
    )
    recorded = Recorded().metadata()
    for data in (
        batch("a", "b", "c", compression=codec, **wrote),
        encode_batch([marker], control=True, **wrote),
        batch("d", base_offset=4, compression=codec, log_append_time=77),
        # A batch that compaction has left without its first record.
        encode_batch([Record(5, 5, b"", b"e", (("h", b"1"),))], base_offset=5, compression=codec),
        oldest,
        older,
    ):
        recorded.fetched(data)
    client = Playing(recorded.loaded_for(mode)).connect()

    def read(offset: int, **more: Any) -> list[tuple[Any, ...]]:
        answer = client.fetch(offset, version=version, **more)
        assert (answer.error_code, answer.high_watermark) == (0, 9)
        found = as_kafka_python_reads(bytes(answer.records))
        return [(one[0], one[1], one[2] if magic else None, *one[3:]) for one in found]

    def time(milliseconds: int) -> int | None:
        return milliseconds if magic else None

    values = [(0, 1000, b"k", b"a"), (1, 2000, b"k", b"b"), (2, 3000, b"k", b"c")]
    values += [(4, 77, b"k", b"d"), (5, 5, b"", b"e")]
    expected = [(magic, at, time(ms), key, value) for at, ms, key, value in values]
    assert [each for each in read(0) if each[1] < 6] == expected
    assert [each[1:2] + each[3:] for each in read(1)] == [
        (1, b"k", b"b"),
        (2, b"k", b"c"),
        (4, b"k", b"d"),
        (5, b"", b"e"),
        (6, b"k", b"f"),
        (7, None, b"g"),
        (8, b"k", None),
    ]
    assert next(each[1] for each in read(3)) == 4, "a marker is passed over"


@OLD
def test_limits_of_old_versions_are_those_of_their_brokers(version: int, magic: int) -> None:
    """Up to v2 an entry that is too large is cut off; from v3 on the first one comes whole."""
    broker = playing(batch("v" * 5000), batch("w", base_offset=1))
    asked = fetch({0: 0}, max_wait_ms=0)
    (one,) = asked.topics[0].partitions
    one.partition_max_bytes = 1000
    (topic,) = broker.connect().ask(version, asked).responses
    (found,) = topic.partitions
    if version < 3:
        assert len(found.records) == 1000
        assert as_kafka_python_reads(bytes(found.records)) == []
    else:
        assert [each[1] for each in as_kafka_python_reads(bytes(found.records))] == [0]
    one.partition_max_bytes = 10_000
    (topic,) = broker.connect().ask(version, asked).responses
    read = as_kafka_python_reads(bytes(topic.partitions[0].records))
    assert [(each[0], each[1]) for each in read] == [(magic, 0), (magic, 1)]


@OLD
def test_what_cannot_be_converted_is_an_error_behind_what_can(version: int, magic: int) -> None:
    damaged = bytearray(batch("b", base_offset=1))
    damaged[-2] ^= 1  # which only its checksum tells
    broker = playing(batch("a") + bytes(damaged))
    client = broker.connect()
    read = as_kafka_python_reads(bytes(client.fetch(0, version=version).records))
    assert [each[1] for each in read] == [0]
    assert broker.report.findings == []
    assert error_name(client.fetch(1, version=version).error_code) == "CORRUPT_MESSAGE"
    (finding,) = broker.report.findings
    assert finding.text.startswith(f"orders[0] to Fetch v{version}, which takes old formats: ")
    zstd = playing(batch("a", compression="zstd")).connect()
    answer = zstd.fetch(0, version=version)
    assert error_name(answer.error_code) == "UNSUPPORTED_COMPRESSION_TYPE"


def test_a_fetch_at_the_end_waits_its_time_and_is_empty() -> None:
    broker = playing(batch("a"))
    client = broker.connect()
    client.send(11, fetch({0: 1}, max_wait_ms=300))
    broker.pass_ms(299)
    assert client.answers == []
    broker.pass_ms(1)
    (answer,) = client.answers
    assert answer.responses[0].partitions[0].records == b""


def test_a_waiting_fetch_is_answered_when_enough_is_produced() -> None:
    broker = playing(batch("a"))
    consumer, producer = broker.connect(), broker.connect()
    size = len(batch("b"))
    consumer.send(11, fetch({0: 1}, min_bytes=2 * size))
    producer.produce(batch("b"))
    assert consumer.answers == []
    producer.produce(batch("c"))
    (answer,) = consumer.answers
    found = records.batches(answer.responses[0].partitions[0].records)
    assert [each.offset for each in found] == [1, 2]
    broker.pass_ms(10_000)
    assert consumer.answers == [], "it is answered twice"


def test_an_offset_that_is_not_there_is_out_of_range() -> None:
    broker = Playing(Recorded().metadata().fetched(batch("a", base_offset=5), 5).loaded)
    client = broker.connect()
    for offset in (4, 7):
        found = client.fetch(offset)
        assert error_name(found.error_code) == "OFFSET_OUT_OF_RANGE"
        assert found.high_watermark == -1


def test_unknown_topics_are_named_as_such() -> None:
    client = playing(batch("a")).connect()
    asked = fetch({0: 0})
    asked.topics[0].topic = "nothing"
    (topic,) = client.ask(12, asked).responses
    assert error_name(topic.partitions[0].error_code) == "UNKNOWN_TOPIC_OR_PARTITION"
    (topic,) = client.ask(13, asked).responses
    assert error_name(topic.partitions[0].error_code) == "UNKNOWN_TOPIC_ID"


def test_there_are_no_fetch_sessions() -> None:
    client = playing(batch("a")).connect()
    answer = client.ask(11, fetch({0: 0}, session_id=0, session_epoch=0))
    assert answer.session_id == 0
    answer = client.ask(11, fetch({0: 0}, session_id=7, session_epoch=1))
    assert error_name(answer.error_code) == "FETCH_SESSION_ID_NOT_FOUND"


def test_zstd_is_kept_from_clients_that_do_not_know_it() -> None:
    client = playing(batch("a", compression="zstd")).connect()
    assert error_name(client.fetch(0, version=9).error_code) == "UNSUPPORTED_COMPRESSION_TYPE"
    assert client.values() == ["a"]


def test_a_response_keeps_to_its_limits() -> None:
    size = len(batch("a"))
    client = playing(batch("a"), batch("b", base_offset=1)).connect()
    assert client.values(max_bytes=size) == ["a"]
    assert client.values(max_bytes=2 * size) == ["a", "b"]
    assert client.values(max_bytes=1) == ["a"]


def test_a_response_keeps_to_the_limits_of_a_broker() -> None:
    broker = playing(batch("v" * (8 << 20)))
    asked = fetch({0: 0}, max_wait_ms=0, max_bytes=2**31 - 1)
    (one,) = asked.topics[0].partitions
    one.partition_max_bytes = 2**31 - 1
    asked.topics[0].partitions = [one] * 300
    answer = broker.connect().ask(11, asked)
    size = sum(len(each.records) for each in answer.responses[0].partitions)
    assert 40 << 20 < size <= 55 << 20


def test_read_committed_stops_at_open_transactions() -> None:
    more = {"producer_id": 5, "producer_epoch": 0, "transactional": True}
    client = playing(batch("a") + batch("b", base_offset=1, **more)).connect()
    found = client.fetch(0, isolation_level=1)
    assert found.records == batch("a")
    assert (found.last_stable_offset, found.high_watermark) == (1, 2)
    assert found.aborted_transactions == []
    assert client.fetch(0).aborted_transactions is None


def test_offsets_are_listed_by_their_kinds() -> None:
    more = {"producer_id": 5, "producer_epoch": 0, "transactional": True}
    data = batch("a", "b", time=1000) + batch("c", base_offset=2, time=9000, **more)
    client = playing(data).connect()

    def found(timestamp: int, version: int = 7, **more: int) -> tuple[int, int]:
        answer = client.ask(version, list_offsets(timestamp, **more))
        one = answer.topics[0].partitions[0]
        return one.offset, one.timestamp

    assert found(-1) == (3, -1)
    assert found(-1, isolation_level=1) == (2, -1)
    assert found(-2) == (0, -1)
    assert found(-3) == (2, 9000)
    assert found(1500) == (1, 2000)
    assert found(9001) == (-1, -1)
    answer = client.ask(0, list_offsets(-1, max_num_offsets=5))
    assert answer.topics[0].partitions[0].old_style_offsets == [3, 0]


def test_what_lies_on_the_brokers_own_disk_is_all_of_it() -> None:
    """KIP-405 and KIP-1005: nothing is in tiered storage; what is not known is refused."""
    client = Playing(Recorded().metadata().fetched(batch("a", base_offset=5), 5).loaded).connect()

    def found(timestamp: int) -> tuple[int, str]:
        (topic,) = client.ask(9, list_offsets(timestamp)).topics
        (one,) = topic.partitions
        return one.offset, error_name(one.error_code)

    assert found(-4) == found(-2) == (5, "NONE")
    assert found(-5) == (-1, "NONE")
    assert found(-6) == (-1, "UNSUPPORTED_FOR_MESSAGE_FORMAT")


def test_leader_epochs_end_at_the_end_of_the_log() -> None:
    client = playing(batch("a", partition_leader_epoch=3)).connect()
    request = messages.OffsetForLeaderEpochRequest
    one = request.OffsetForLeaderPartition(partition=0, leader_epoch=3)
    topic = request.OffsetForLeaderTopic(topic="orders", partitions=[one])
    answer = client.ask(4, request(topics=[topic])).topics[0].partitions[0]
    assert (answer.error_code, answer.leader_epoch, answer.end_offset) == (0, 3, 1)
    one.partition = 9
    answer = client.ask(4, request(topics=[topic])).topics[0].partitions[0]
    assert answer.error_code == codes.UNKNOWN_TOPIC_OR_PARTITION


def test_what_comes_next_is_read_while_the_consumer_is_busy() -> None:
    big = "v" * 100_000
    recorded = Recorded().metadata().fetched(batch(big))
    loaded = recorded.fetched(batch(big, base_offset=1), offset=1).loaded
    store, read = loaded.cluster.store, []
    frame = store.frame

    def noting(place: int) -> bytes:
        read.append(place)
        return frame(place)

    store.frame = noting  # type: ignore[method-assign]
    broker = Playing(loaded)
    client = broker.connect()
    assert len(client.fetch(0).records) > 100_000
    assert len(read) == 1, "the response does not wait for it"
    broker.pass_ms(1)
    assert len(set(read)) == 2
    assert len(client.fetch(1).records) > 100_000
    assert len(set(read)) == 2


def test_after_a_difference_readers_give_up_if_that_is_wanted() -> None:
    """Nothing that is to come can make it good: who waits need not wait."""
    for fails_fast, error in ((True, "TOPIC_AUTHORIZATION_FAILED"), (False, "NONE")):
        was = Recorded().metadata().produced(batch("a", "b"))
        broker = Playing(was.loaded, ReplaySettings(visible=Visible.CAUSAL, fails_fast=fails_fast))
        client = broker.connect()
        client.produce(batch("a"))
        assert error_name(client.fetch(0).error_code) == "NONE"
        consumer = broker.connect()
        consumer.send(11, fetch({0: 1}, max_wait_ms=60_000, min_bytes=10_000))
        client.produce(batch("other"))
        assert error_name(client.fetch(0).error_code) == error
        assert len(consumer.answers) == fails_fast, "it waits though nothing can come"
