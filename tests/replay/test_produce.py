"""Producing to the replaying broker: what is recorded, what is not, what becomes visible when."""

from __future__ import annotations

import cProfile
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kproxy.replay import index_file
from kproxy.replay.ignore_words import parse
from kproxy.replay.ignored import Headers, Ignored
from kproxy.replay.index_file import Indexed
from kproxy.replay.produced import ProduceCheck
from kproxy.replay.produced_report import report_unproduced
from kproxy.replay.report import Report
from kproxy.replay.settings import ReplaySettings, Visible
from kproxy.wire.protocol import error_name, messages, records
from kproxy.wire.protocol.errors import CODES
from kproxy.wire.protocol.record_batch import Record
from kproxy.wire.protocol.records import encode_batch
from tests.replay.making import Playing, Recorded, batch, fetch, produce

CAUSAL = ReplaySettings(visible=Visible.CAUSAL)


def playing(recorded: Recorded, settings: ReplaySettings = CAUSAL) -> Playing:
    return Playing(recorded.loaded, settings)


def recorded() -> Recorded:
    return Recorded().metadata(partitions=2).produced(batch("a", "b", "c"))


def test_what_was_produced_is_there_from_the_start_or_when_it_is_produced() -> None:
    assert playing(recorded(), ReplaySettings()).connect().values() == ["a", "b", "c"]
    broker = playing(recorded())
    client = broker.connect()
    assert client.values() == []
    assert client.produce(batch("a")).base_offset == 0
    assert client.produce(batch("b", "c")).base_offset == 1
    assert client.values() == ["a", "b", "c"]
    assert broker.report.findings == []


def test_what_was_only_fetched_is_there_from_the_start() -> None:
    client = playing(recorded().fetched(batch("x", base_offset=3), 3)).connect()
    assert client.values() == []
    client.produce(batch("a", "b", "c"))
    assert client.values() == ["a", "b", "c", "x"]


def test_a_record_that_is_early_is_served_before_those_that_are_to_come() -> None:
    client = playing(recorded()).connect()
    assert client.produce(batch("c")).base_offset == 0
    assert client.values() == ["c"]
    assert client.produce(batch("a", "b")).base_offset == 1
    assert client.values() == ["c", "a", "b"]


def test_what_a_producer_was_told_is_what_consumers_get() -> None:
    """Records that were not recorded, at first, in a batch of others, and at last; and a recorded
    one that is never produced."""
    others = batch("x", "y", base_offset=3, key=None)
    broker = playing(recorded().fetched(others, 3).produced(batch("d"), 5))
    client = broker.connect()
    told = {}
    for values in (["new"], ["a"], ["b", "newer"], ["d"], ["c"], ["last"]):
        offset = client.produce(batch(*values)).base_offset
        told |= {offset + at: value for at, value in enumerate(values)}
        found = client.fetch(0)
        read = {
            one.offset: one.value.decode()
            for each in records.batches(bytes(found.records))
            for one in each.records
        }
        assert {at: read[at] for at in told} == told
        # What others produced follows once all before it has been.
        assert ("x" in read.values()) == ("c" in read.values())
        assert found.high_watermark == len(read)
    assert client.values() == ["new", "a", "b", "newer", "d", "c", "x", "y", "last"]
    assert len(broker.report.findings) == 3


def offset_at(timestamp: int) -> int:
    """A ListOffsets."""
    request = messages.ListOffsetsRequest
    one = request.ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    return request(topics=[request.ListOffsetsTopic(name="orders", partitions=[one])])


def test_what_comes_in_other_batches_is_still_served_as_it_was_recorded() -> None:
    was = recorded().fetched(whole := batch("a", "b", "c", compression="gzip"))
    client = playing(was).connect()
    for value in "abc":
        client.produce(batch(value, time=5000))
    assert bytes(client.fetch(0).records) == whole
    (found,) = client.ask(1, offset_at(3000)).topics[0].partitions
    assert found.offset == 2, "with the times of then"


def test_a_waiting_consumer_gets_what_becomes_visible() -> None:
    broker = playing(recorded())
    consumer, producer = broker.connect(), broker.connect()
    consumer.send(11, fetch({0: 0}, max_wait_ms=10_000))
    producer.produce(batch("a"))
    (answer,) = consumer.answers
    assert answer.responses[0].partitions[0].high_watermark == 1


def test_a_record_that_was_not_recorded_is_a_finding_with_the_closest_one() -> None:
    broker = playing(recorded())
    answer = broker.connect().produce(batch("ax"))
    assert (answer.error_code, answer.base_offset) == (0, 0)
    (finding,) = broker.report.findings
    assert finding.kind == "not recorded"
    assert "of key 'k' has value 'ax', recorded 'a' (orders[0] at offset 0)" in finding.text
    assert "kproxy run" in finding.advice


def test_a_record_that_is_produced_too_often_is_a_finding() -> None:
    broker = playing(recorded())
    client = broker.connect()
    client.produce(batch("a"))
    client.produce(batch("a"))
    (finding,) = broker.report.findings
    assert "once more" in finding.text


@pytest.mark.parametrize("visible", Visible)
def test_a_record_that_is_never_produced_is_a_finding_where_that_is_asked(visible: Visible) -> None:
    broker = playing(recorded(), ReplaySettings(visible=visible))
    broker.connect().produce(batch("a", "c"))
    broker.perform(broker.broker.stop(broker.now))
    assert broker.report.findings == []
    report_unproduced(broker.broker.state.check, broker.report)
    (finding,) = broker.report.findings
    assert finding.kind == "not produced"
    assert finding.text.startswith(
        "orders: the record of key 'k' was never produced: value 'b' (orders[0]"
    )


KEYED, ALWAYS, NEVER = Ignored(), Ignored(is_partition_always_compared=True), parse(["partition"])


@pytest.mark.parametrize(
    ("key", "ignored", "findings"),
    [
        (b"k", KEYED, 1),
        (None, KEYED, 0),
        (None, ALWAYS, 1),
        (b"k", NEVER, 0),
    ],
)
def test_whether_the_partition_counts(key, ignored, findings) -> None:
    was = Recorded().metadata(partitions=2).produced(batch("a", key=key))
    broker = playing(was, ReplaySettings(visible=Visible.CAUSAL, ignored=ignored))
    broker.connect().produce(batch("a", key=key), partition=1)
    assert len(broker.report.findings) == findings


PLACED = st.lists(st.tuples(st.integers(0, 2), st.sampled_from("ab")), max_size=12)


def check_of(placed: Sequence[tuple[int, str]], ignored: Ignored) -> ProduceCheck:
    """A check of values that were recorded in partitions."""
    was = Recorded().metadata(partitions=3)
    for index in range(3):
        values = [value for partition, value in placed if partition == index]
        if values:
            was.produced(batch(*values), partition=index)
    return ProduceCheck(was.loaded, Report(), ignored)


@given(PLACED, PLACED, st.sampled_from([KEYED, ALWAYS, NEVER]))
def test_a_record_is_the_first_that_is_left_in_its_partition_or_else_in_any(
    placed: list[tuple[int, str]], produced: list[tuple[int, str]], ignored: Ignored
) -> None:
    check = check_of(placed, ignored)
    orders = check.loaded.cluster.topics["orders"]
    left = sorted(check.expected(orders), key=lambda each: (each.partition, each.offset))
    for partition, value in produced:
        equal = [each for each in left if each.record.value == value.encode()]
        found = [each for each in equal if each.partition == partition]
        found += equal if ignored is NEVER else []
        record = Record(0, 1, b"k", value.encode())
        assert check.match(orders, partition, record) is next(iter(found), None)
        left = [each for each in left if each not in found[:1]]
    assert all(not each.produced for each in left)


def test_many_equal_records_are_found_one_after_the_other() -> None:
    check = check_of([(index % 3, "a") for index in range(20_000)], NEVER)
    orders = check.loaded.cluster.topics["orders"]
    with cProfile.Profile() as profile:
        found = [check.match(orders, 2, Record(0, 1, b"k", b"a")) for _ in range(20_001)]
    assert found[-1] is None and None not in found[:-1]
    assert sum(entry.callcount for entry in profile.getstats()) < 100 * len(found)


def test_a_record_without_a_key_is_where_it_was_recorded() -> None:
    broker = playing(Recorded().metadata(partitions=2).produced(batch("a", key=None)))
    client = broker.connect()
    assert client.produce(batch("a", key=None), partition=1).base_offset == 0
    assert client.values() == ["a"]
    assert client.values(partition=1) == []


def test_where_partitions_do_not_count_records_are_where_they_are_produced_to() -> None:
    settings = ReplaySettings(visible=Visible.CAUSAL, ignored=NEVER)
    client = playing(recorded(), settings).connect()
    client.produce(batch("b"), partition=1)
    client.produce(batch("a", "c"))
    assert client.values(partition=1) == ["b"]
    assert client.values() == ["a", "c"]


def test_headers_count_but_those_that_are_left_out() -> None:
    def one(trace: bytes) -> bytes:
        headers = (("trace", trace), ("kind", b"x"))
        return encode_batch([Record(0, 1, b"k", b"v", headers)])

    was = Recorded().metadata().produced(one(b"1"))
    broker = playing(was)
    broker.connect().produce(one(b"2"))
    (finding,) = broker.report.findings
    assert "has header trace '2', recorded '1' (" in finding.text
    broker = playing(was, IGNORES_TRACE)
    broker.connect().produce(one(b"2"))
    assert broker.report.findings == []


IGNORES_TRACE = ReplaySettings(ignored=parse(["header:trace"]))
KIND, TRACE = ("kind", b"x"), ("trace", b"1")


@pytest.mark.parametrize(
    ("then", "now", "told"),
    [
        ((TRACE, KIND), (KIND, ("trace", b"2")), None),
        ((TRACE,), (("trace", None),), None),
        ((TRACE, KIND), (KIND,), "no header trace, recorded present"),
        ((TRACE,), (), "no header trace, recorded present"),
        ((), (TRACE,), "header trace present, recorded without"),
        ((TRACE, TRACE), (TRACE,), "header trace present, recorded present 2 times"),
        ((KIND, TRACE), (("kind", b"present"), TRACE), "header kind 'present', recorded 'x'"),
        ((("a", b"1"), KIND), (KIND, ("a", b"1")), "headers (('kind', b'x'), ('a', b'1'))"),
    ],
)
def test_an_ignored_header_may_differ_and_not_be_missing(
    then: Headers, now: Headers, told: str | None
) -> None:
    def one(headers: Headers) -> bytes:
        return encode_batch([Record(0, 1, b"k", b"v", headers)])

    broker = playing(Recorded().metadata().produced(one(then)), IGNORES_TRACE)
    broker.connect().produce(one(now))
    found = [each.text for each in broker.report.findings]
    assert len(found) == (told is not None)
    assert all(f" has {told}" in each for each in found)


def test_a_retry_is_the_same_batch_again() -> None:
    broker = playing(recorded())
    client = broker.connect()
    data = batch("a", "b", producer_id=70, producer_epoch=0, base_sequence=0)
    assert client.produce(data).base_offset == 0
    assert client.produce(data).base_offset == 0
    assert broker.report.findings == []


def test_acks_0_has_no_response() -> None:
    broker = playing(recorded())
    client = broker.connect()
    client.send(9, produce(batch("a", "b"), acks=0))
    assert client.frames == []
    client.asked.clear()
    assert client.values() == ["a", "b"]


def test_a_damaged_batch_is_refused() -> None:
    data = bytearray(batch("a"))
    data[-1] ^= 1
    broker = playing(recorded())
    answer = broker.connect().produce(bytes(data))
    assert error_name(answer.error_code) == "CORRUPT_MESSAGE"
    assert answer.base_offset == -1
    report_unproduced(broker.broker.state.check, broker.report)
    found = [each.text for each in broker.report.findings]
    assert found[0] == (
        "orders: a batch came, and was refused (CORRUPT_MESSAGE):"
        f" {len(data)} bytes that cannot be read (the checksum is wrong)"
    )
    assert any("was never produced" in each for each in found[1:])


def refused(data: bytes, error: str) -> Recorded:
    """A recording of "a", and of a batch that was refused before it."""
    was = Recorded().metadata()
    was.produced(data, base_offset=-1, error_code=CODES[error])
    return was.produced(batch("a"))


@pytest.mark.parametrize("error", ["INVALID_RECORD", "MESSAGE_TOO_LARGE", "CORRUPT_MESSAGE"])
def test_what_was_refused_for_what_it_is_is_refused_again(error: str, tmp_path: Path) -> None:
    data = bytearray(batch("x", key=None))
    data[-1] ^= error == "CORRUPT_MESSAGE"
    loaded = refused(bytes(data), error).loaded
    index_file.write(tmp_path / "x", {}, Indexed(loaded, [], {}, [], []))
    indexed = index_file.read(tmp_path / "x", {})
    assert indexed is not None
    for each in (loaded, indexed.loaded):
        broker = Playing(each, CAUSAL)
        client = broker.connect()
        assert error_name(client.produce(bytes(data)).error_code) == error
        assert client.produce(batch("a")).base_offset == 0
        assert client.values() == ["a"]
        report_unproduced(broker.broker.state.check, broker.report)
        assert broker.report.findings == []


def test_what_was_taken_after_it_was_refused_is_taken() -> None:
    broker = playing(refused(batch("a"), "INVALID_RECORD"))
    assert broker.connect().produce(batch("a")).error_code == 0
    assert broker.report.findings == []


def test_what_was_refused_for_another_reason_is_told_with_the_way_out() -> None:
    broker = playing(refused(batch("x"), "NOT_ENOUGH_REPLICAS"))
    assert broker.connect().produce(batch("x")).error_code == 0
    (found,) = broker.report.findings
    assert found.text.startswith(
        "orders[0]: this record was refused when recorded (NOT_ENOUGH_REPLICAS), and is taken now;"
        " --recorded-faults refuses it again: key"
    )


def test_an_unknown_topic_is_refused_and_not_created() -> None:
    client = playing(recorded()).connect()
    answer = client.ask(9, produce(batch("a"), topic="other"))
    (one,) = answer.responses[0].partition_responses
    assert error_name(one.error_code) == "UNKNOWN_TOPIC_OR_PARTITION"


def test_parts_of_json_values_may_differ() -> None:
    was = Recorded().metadata().produced(batch('{"id": 1, "at": 5}', '{"id": 2, "at": 6}'))
    broker = playing(was, ReplaySettings(ignored=parse(["json:at"])))
    client = broker.connect()
    assert client.produce(batch('{"at": 99, "id": 2}')).base_offset == 1
    assert broker.report.findings == []
    client.produce(batch('{"at": 99, "id": 3}'))
    (finding,) = broker.report.findings
    assert " has id 3, recorded 1 (" in finding.text


def told(was: str, now: str) -> str:
    """In what a produced value differs from a recorded one, as it is told."""
    broker = playing(Recorded().metadata().produced(batch(was)))
    broker.connect().produce(batch(now))
    broker.perform(broker.broker.stop(broker.now))
    (finding,) = broker.report.findings  # it is not told again as never produced
    return finding.text.partition(" has ")[2].rpartition(" (")[0]


@pytest.mark.parametrize(
    ("was", "now", "text"),
    [
        (
            {"a": {"b": [1, 2]}, "c": 1},
            {"a": {"b": [1, 3]}, "c": 1},
            "a.b[1] 3, recorded 2",
        ),
        ({"a": 1}, {"b": True}, "no a, recorded 1; b true, recorded without"),
        ([1], [1, "x"], 'value[1] "x", recorded without'),
        ({"a": 1}, {"a": 1.0}, "a 1.0, recorded 1"),
    ],
)
def test_of_json_the_parts_that_differ_are_told(was: object, now: object, text: str) -> None:
    assert told(json.dumps(was), json.dumps(now)) == text


def test_of_a_long_value_what_differs_is_told() -> None:
    long = "x" * 500
    assert told(f"{long} one", f"{long} two") == (
        f"value …{'x' * 19} two', recorded …{'x' * 19} one'"
    )
    parts = [{f"f{index}": value for index in range(9)} for value in (1, 2)]
    assert told(*map(json.dumps, parts)).endswith("; 6 more differing parts")
    shown = told(json.dumps({"id": f"{long}1"}), json.dumps({"id": f"{long}2"}))
    assert shown.startswith("id …x") and shown.index("2") < shown.index("1")


def test_records_that_are_as_recorded_are_found_before_the_closest_of_the_others() -> None:
    broker = playing(Recorded().metadata().produced(batch("aa", "bb")))
    broker.connect().produce(batch("ab", "aa", "bb"))
    (finding,) = broker.report.findings
    assert "the record is not in the recording: key 'k', value 'ab'" in finding.text


def test_what_was_produced_otherwise_is_one_finding_and_what_was_not_is_another() -> None:
    broker = playing(recorded())
    broker.connect().produce(batch("a", "bx"))
    report_unproduced(broker.broker.state.check, broker.report)
    assert [each.kind for each in broker.report.findings] == ["not recorded", "not produced"]
    assert "was never produced: value 'c' (orders[0] at offset 2)" in broker.report.findings[1].text
