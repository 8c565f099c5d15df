"""Records as Kafka's Java client, kafka-python and aiokafka write and read them."""

from __future__ import annotations

import importlib
import json
from base64 import b64decode
from pathlib import Path

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kproxy.wire.protocol import records as module
from kproxy.wire.protocol.compression import CODECS, decompress
from kproxy.wire.protocol.errors import ProtocolError
from kproxy.wire.protocol.message_sets import encode_message_set
from kproxy.wire.protocol.records import (
    Record,
    batches,
    encode_batch,
    end_transaction_marker,
    rebase,
)
from tests.wire.protocol.making import few, records_plain

NOW = 1_700_000_000_000


def vectors() -> dict[str, bytes]:
    """Read what the Java client wrote: "2-zstd" and so on, and "COMMIT"."""
    found = {}
    text = (Path(__file__).parent / "data" / "record-vectors.txt").read_text()
    for line in text.splitlines():
        *labels, data = line.split()
        if labels[0] == "control":
            found[labels[1]] = bytes.fromhex(data)
        else:
            codec = labels[1].removeprefix("codec=").split("(")[0]
            found[f"{labels[0].removeprefix('magic=')}-{codec}"] = bytes.fromhex(data)
    return found


VECTORS = vectors()
JAVA = [name for name in VECTORS if name != "COMMIT"]
WRITABLE = [(magic, codec) for magic in (0, 1, 2) for codec in CODECS[: 5 if magic == 2 else 4]]


def java_records(magic: int) -> list[Record]:
    """What is in every vector: three records from offset 100 on."""
    return [
        Record(
            100 + index,
            NOW + index if magic else -1,
            b"key%d" % index,
            None if magic == 2 and index == 2 else b"value-%d-" % index + b"a" * 36,
            (("h", b"x%d" % index),) if magic == 2 else (),
        )
        for index in range(3)
    ]


def encode(records: list[Record], magic: int, codec: str = "none") -> bytes:
    if magic == 2:
        return encode_batch(records, compression=codec)
    return encode_message_set(records, magic=magic, compression=codec)


def all_records(data: bytes) -> list[Record]:
    found = batches(data)
    assert all(batch.crc_ok for batch in found)
    assert found.bytes_left == 0
    return [record for batch in found for record in batch.records]


# ---- the Java client's bytes


@pytest.mark.parametrize("name", JAVA)
def test_java_vectors_are_read(name):
    magic = int(name[0])
    codec = name[2:]
    found = batches(VECTORS[name])
    assert all_records(VECTORS[name]) == java_records(magic)
    assert {batch.compression for batch in found} == {codec}
    assert {batch.magic for batch in found} == {magic}
    assert (found[0].base_offset, found[-1].last_offset) == (100, 102)
    assert {batch.timestamp_type for batch in found} == {
        "CreateTime" if magic else "NoTimestampType"
    }


@pytest.mark.parametrize("name", JAVA)
def test_java_vectors_are_written_again(name):
    """Byte for byte, but for what a compressor may choose; that decompresses to the same."""
    magic = int(name[0])
    codec = name[2:]
    java = VECTORS[name]
    ours = encode(all_records(java), magic, codec)
    assert all_records(ours) == java_records(magic)
    if codec == "none":
        assert ours == java
        return
    head = (18, 26, 61)[magic]
    assert ours[:8] == java[:8]
    assert ours[16:17] + ours[21:head] == java[16:17] + java[21:head] or magic < 2
    start = head + (8 if magic < 2 else 0)
    assert decompress(codec, ours[start:], lz4_checksum_ignored=magic == 0) == decompress(
        codec, java[start:], lz4_checksum_ignored=magic == 0
    )


def test_java_commit_marker():
    (batch,) = batches(VECTORS["COMMIT"])
    assert batch.control and batch.transactional and batch.crc_ok
    assert (batch.producer_id, batch.producer_epoch, batch.partition_leader_epoch) == (9000, 4, 3)
    marker = end_transaction_marker(200, NOW, commit=True, coordinator_epoch=7)
    assert batch.records == [marker]
    assert marker.control_type == "COMMIT"
    written = encode_batch(
        [marker],
        producer_id=9000,
        producer_epoch=4,
        partition_leader_epoch=3,
        transactional=True,
        control=True,
    )
    assert written == VECTORS["COMMIT"]


# ---- other implementations


def read_with(library: str, data: bytes) -> list[Record]:
    """Read `data` with another implementation, which checks every checksum."""
    found = []
    source = importlib.import_module(f"{library}.record.memory_records").MemoryRecords(data)
    while source.has_next():
        batch = source.next_batch()
        assert batch.validate_crc()
        for record in batch:
            time = -1 if record.timestamp is None else record.timestamp
            headers = tuple((name, value) for name, value in record.headers)
            key, value = (None if x is None else bytes(x) for x in (record.key, record.value))
            found.append(Record(record.offset, time, key, value, headers))
    return found


def kafka_python_writes(records: list[Record], magic: int, codec: str) -> bytes:
    import kafka.record

    builder = kafka.record.MemoryRecordsBuilder(magic, CODECS.index(codec), batch_size=1 << 20)
    for record in records:
        builder.append(record.timestamp, record.key, record.value, list(record.headers))
    builder.close()
    return bytes(builder.buffer())


def aiokafka_writes(records: list[Record], magic: int, codec: str) -> bytes:
    from aiokafka.record import default_records, legacy_records

    code = CODECS.index(codec)
    if magic == 2:
        builder = default_records.DefaultRecordBatchBuilder(2, code, False, -1, -1, -1, 1 << 20)
    else:
        builder = legacy_records.LegacyRecordBatchBuilder(magic, code, 1 << 20)
    for index, record in enumerate(records):
        builder.append(
            index, record.timestamp, record.key, record.value, headers=list(record.headers)
        )
    return bytes(builder.build())


def from_zero(records: list[Record]) -> list[Record]:
    """Number `records` as producers do."""
    return [attrs.evolve(record, offset=index) for index, record in enumerate(records)]


names = st.text(max_size=5).filter(lambda name: max(name, default=" ") < "\ud800")
contents = st.none() | st.binary(max_size=80)
times = st.integers(min_value=0, max_value=1 << 45)


@st.composite
def record_lists(draw: st.DrawFn, magic: int, min_size: int = 0) -> list[Record]:
    base = draw(st.integers(min_value=0, max_value=1 << 60))
    found = draw(
        st.lists(
            st.builds(
                Record,
                st.just(0),
                times if magic else st.just(-1),
                contents,
                contents,
                st.lists(st.tuples(names, contents), max_size=3).map(tuple)
                if magic == 2
                else st.just(()),
            ),
            min_size=min_size,
            max_size=6,
        )
    )
    return [attrs.evolve(record, offset=base + index) for index, record in enumerate(found)]


@pytest.mark.parametrize(("magic", "codec"), WRITABLE)
@few(4)
@given(data=st.data())
def test_others_read_what_we_write(magic, codec, data):
    records = data.draw(record_lists(magic, min_size=1))
    written = encode(records, magic, codec)
    if (magic, codec) != (0, "lz4"):  # theirs needs the package xxhash for it
        assert read_with("kafka", written) == records
        assert read_with("aiokafka", written) == records
    assert all_records(written) == records


@pytest.mark.parametrize(("magic", "codec"), WRITABLE)
@few(4)
@given(data=st.data())
def test_we_read_what_others_write(magic, codec, data):
    records = from_zero(data.draw(record_lists(magic, min_size=1)))
    if (magic, codec) != (0, "lz4"):
        assert all_records(kafka_python_writes(records, magic, codec)) == records
        assert all_records(aiokafka_writes(records, magic, codec)) == records


@pytest.mark.parametrize("magic", [0, 1, 2])
def test_uncompressed_bytes_are_those_of_aiokafka(magic):
    records = from_zero(java_records(magic))
    assert encode(records, magic) == aiokafka_writes(records, magic, "none")


# ---- what a batch tells


@given(
    record_lists(2),
    st.sampled_from(CODECS),
    st.integers(min_value=-1, max_value=2**63 - 1),
    st.integers(min_value=-1, max_value=2**15 - 1),
    st.integers(min_value=-1, max_value=2**31 - 1),
    st.booleans(),
    st.none() | times,
)
def test_every_field_comes_back(records, codec, producer_id, epoch, number, flag, append_time):
    data = encode_batch(
        records,
        compression=codec,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=number,
        partition_leader_epoch=number,
        transactional=flag,
        log_append_time=append_time,
    )
    (batch,) = batches(data)
    assert (batch.raw, batch.crc_ok, batch.compression) == (data, True, codec)
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (
        producer_id,
        epoch,
        number,
    )
    assert (batch.transactional, batch.control) == (flag, False)
    assert batch.partition_leader_epoch == number
    if append_time is not None:
        assert batch.timestamp_type == "LogAppendTime"
        assert batch.max_timestamp == append_time
        records = [attrs.evolve(record, timestamp=append_time) for record in records]
    assert batch.records == records
    assert batch.records is batch.records


def test_empty_batches_and_no_batches():
    (batch,) = batches(encode_batch([], base_offset=10, last_offset=19, compression="gzip"))
    assert (batch.records, batch.base_offset, batch.last_offset) == ([], 10, 19)
    assert records_plain(batch)["records"] == []
    assert batches(b"") == [] and batches(b"").bytes_left == 0
    assert records_plain(batches(b"")) == []


def test_log_append_time_of_a_message_set():
    records = java_records(1)
    for codec in ("none", "gzip"):
        data = encode_message_set(records, magic=1, compression=codec, log_append_time=NOW + 99)
        assert {record.timestamp for record in all_records(data)} == {NOW + 99}
        assert {batch.timestamp_type for batch in batches(data)} == {"LogAppendTime"}


def test_numbers_that_do_not_fit_are_value_errors():
    with pytest.raises(ValueError, match="cannot hold"):
        encode_batch([Record(0, NOW)], producer_id=1 << 63)
    with pytest.raises(ValueError, match="brotli"):
        encode_batch([], compression="brotli")


def test_header_names_that_are_no_text_survive():
    name = b"\xff\xfe".decode("utf-8", "surrogateescape")
    record = Record(0, NOW, None, None, ((name, None), (name, b"")))
    data = encode_batch([record])
    assert b"\xff\xfe" in data
    assert all_records(data) == [record]
    json.dumps(records_plain(batches(data)))


# ---- checksums, cut-off batches, moving


@pytest.mark.parametrize("name", VECTORS)
def test_a_wrong_checksum_is_named_and_the_records_still_shown(name):
    magic = VECTORS[name][16]
    data = bytearray(VECTORS[name])
    start = 17 if magic == 2 else 12
    data[start : start + 4] = b"\1\2\3\4"
    batch = batches(bytes(data))[0]
    assert not batch.crc_ok
    assert batch.crc == 0x01020304
    assert batch.crc_computed == int.from_bytes(VECTORS[name][start : start + 4], "big")
    plain = records_plain(batch)
    assert plain["crc_ok"] is False
    assert plain["crc"] == 0x01020304 != plain["crc_computed"]
    assert plain["records"]


@pytest.mark.parametrize("codec", CODECS)
def test_moving_batches_keeps_their_checksum(codec):
    one = encode_batch(java_records(2), compression=codec)
    gap = encode_batch([], base_offset=0, last_offset=9)
    moved = rebase(one + gap + one, 1000, partition_leader_epoch=6)
    found = batches(moved)
    assert [batch.base_offset for batch in found] == [1000, 1003, 1013]
    assert {batch.partition_leader_epoch for batch in found} == {6}
    assert [record.offset for record in all_records(moved)] == [1000, 1001, 1002, 1013, 1014, 1015]
    assert rebase(moved[: len(one)], 100) == one


def test_what_cannot_be_moved():
    with pytest.raises(ProtocolError, match="magic 1"):
        rebase(VECTORS["1-none"], 0)
    with pytest.raises(ProtocolError, match="no whole batch"):
        rebase(VECTORS["2-none"][:-1], 0)


# ---- JSON


def test_json_has_the_documented_keys():
    (plain,) = records_plain(batches(VECTORS["2-zstd"]))
    assert plain == {
        "base_offset": 100,
        "magic": 2,
        "compression": "zstd",
        "partition_leader_epoch": -1,
        "crc_ok": True,
        "timestamp_type": "CreateTime",
        "transactional": False,
        "control": False,
        "base_timestamp": NOW,
        "max_timestamp": NOW + 2,
        "producer_id": -1,
        "producer_epoch": -1,
        "base_sequence": -1,
        "records": plain["records"],
    }
    assert plain["records"][2] == {
        "offset": 102,
        "timestamp": NOW + 2,
        "key": "key2",
        "value": None,
        "headers": [{"key": "h", "value": "x2"}],
    }


def test_json_keeps_what_cannot_be_read():
    """One bad batch does not hide the others, and its bytes are there."""
    good = encode_batch(java_records(2), compression="gzip")
    bad = bytearray(good)
    bad[61] ^= 0xFF
    shown = records_plain(batches(good + bytes(bad) + good))
    assert [batch["records"] is None for batch in shown] == [False, True, False]
    assert shown[1]["error"].startswith("records")
    assert b64decode(shown[1]["payload"]) == bytes(bad[61:])
    assert shown[1]["crc_ok"] is False
    json.dumps(shown)


def test_json_shares_one_allowance_between_all_batches(monkeypatch):
    """Bombs that are each small enough are not, together."""
    monkeypatch.setattr(module, "DECOMPRESSED_BYTES_MAX", 1 << 20)
    bomb = encode_batch([Record(0, NOW, None, bytes(400_000))], compression="zstd")
    shown = records_plain(batches(bomb * 5))
    assert [batch["records"] is None for batch in shown] == [False, False, True, True, True]
    assert "more than" in shown[2]["error"]
    assert records_plain(batches(bomb)[0])["records"]
