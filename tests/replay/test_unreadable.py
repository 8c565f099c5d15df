"""What a broker took and kproxy cannot read: it has to come again, byte for byte, and is served."""

from __future__ import annotations

import itertools
import struct
import zlib

import attrs
import pytest
from crc32c import crc32c

from kproxy.history.behaviour import Behaviour
from kproxy.replay import index_file
from kproxy.replay.ignore_words import parse, with_words
from kproxy.replay.ignored import Ignored
from kproxy.replay.index_file import Indexed
from kproxy.replay.settings import Mode, ReplaySettings, Visible
from kproxy.wire import protocol
from kproxy.wire.protocol import error_name, messages
from kproxy.wire.protocol.compression import compress
from kproxy.wire.protocol.message_sets import encode_message_set
from kproxy.wire.protocol.record_batch import Record
from tests.exchange import making
from tests.replay.making import Playing, Recorded, batch, produce
from tests.versions import pairs

CAUSAL = ReplaySettings(visible=Visible.CAUSAL)


def sealed(data: bytes | bytearray, **head: int) -> bytes:
    """A batch of magic 2 with these fields of its head, and its checksum."""
    changed = bytearray(data)
    for name, value in head.items():
        at, form = {
            "attributes": (21, ">h"),
            "base_timestamp": (27, ">q"),
            "max_timestamp": (35, ">q"),
            "producer_id": (43, ">q"),
            "producer_epoch": (51, ">h"),
            "base_sequence": (53, ">i"),
            "count": (57, ">i"),
        }[name]
        struct.pack_into(form, changed, at, value)
    struct.pack_into(">I", changed, 17, crc32c(bytes(changed[21:])))
    return bytes(changed)


def message(data: bytes) -> bytes:
    """A message of magic 0 or 1 with its checksum."""
    return data[:12] + struct.pack(">I", zlib.crc32(data[16:])) + data[16:]


def damaged(data: bytes, at: int, new: bytes) -> bytes:
    """With other bytes at a place."""
    return data[:at] + new + data[at + len(new) :]


TWO = batch("good", "bad")
GZIP = batch("a", "b", compression="gzip")
OLD = encode_message_set([Record(0, 1000, b"k", b"v")], magic=1)
WRAPPER = encode_message_set([Record(0, 1000, None, compress("gzip", b"no set"))], magic=1)
OF_ONE = {
    "the checksum is wrong": damaged(TWO, len(TWO) - 3, b"x"),
    "codec unknown-5": sealed(TWO, attributes=5),
    "gzip": sealed(damaged(GZIP, 71, b"\xff\xff\xff")),
    "record": sealed(damaged(TWO, TWO.index(b"bad") - 6, b"\x7e")),
    "30 records": sealed(GZIP, count=30),
    "magic 3": damaged(TWO, 16, b"\x03"),
    "key": message(damaged(OLD, 26, b"\x00\x00\x00\x7f")),
    "wrapper": message(damaged(WRAPPER, 17, b"\x01")),
}
"""Batches of one Produce, by what is wrong with them."""
CUT_OFF = {"whole batch": TWO[:-3], "batch length": damaged(TWO, 8, b"\xff\xff\xff\xff")}
"""What no broker stores, though some take it."""
WAYS = list(itertools.product([Mode.STATE, Mode.SEMANTIC], Visible, [-1, 0]))
"""How it is served, and how it was produced."""


def again(data: bytes, base_sequence: int = 4) -> bytes:
    """The batch as the next run of a client sends it, later, with another id."""
    if data[16] != 2 or data in CUT_OFF.values():
        return data
    who = {"producer_id": 4000, "producer_epoch": 1, "base_sequence": base_sequence}
    found = sealed(data, base_timestamp=77, max_timestamp=1077, **who)
    return found if data != OF_ONE["the checksum is wrong"] else damaged(found, 17, b"\0\0\0\0")


def other(data: bytes) -> bytes:
    """Another batch that is damaged in the same way."""
    changed = damaged(data, len(data) - 8, bytes([data[-8] ^ 1]))
    if data[16] == 2:
        same = data == OF_ONE["the checksum is wrong"] or data in CUT_OFF.values()
        return changed if same else sealed(changed)
    return message(changed) if data[16] < 2 else changed


def ended(broker: Playing) -> list[str]:
    broker.end()
    return [f"{each.kind}: {each.text}" for each in broker.report.findings]


@pytest.mark.parametrize(("kind", "how"), pairs([*OF_ONE, *CUT_OFF], WAYS))
def test_what_cannot_be_read_has_to_be_repeated(kind: str, how: tuple[Mode, Visible, int]) -> None:
    mode, visible, acks = how
    data = (OF_ONE | CUT_OFF)[kind]
    was = Recorded().metadata(partitions=2)
    if acks:
        was.produced(data, 5).produced(batch("z"), 9)
    else:
        was.add(9, produce(data, acks=0)).produced(batch("z"), 9)
    how = ReplaySettings(mode=mode, visible=visible)
    broker = Playing(was.loaded_for(mode), how)
    broker.connect().produce(batch("z"))
    (found,) = ended(broker)
    assert found.startswith("not produced: orders: the batch ") and kind in found
    assert f"{len(data)} bytes that cannot be read" in found

    broker = Playing(was.loaded_for(mode), how)
    client = broker.connect()
    answer = client.produce(again(data))
    assert error_name(answer.error_code) == "NONE"
    client.produce(batch("z"))
    if kind in OF_ONE and acks:
        assert answer.base_offset == 5
        served = bytes(client.fetch(5).records)
        assert served[:8] == (5).to_bytes(8, "big")
        assert data[61:] in served and served.index(b"z") > len(data)
    assert ended(broker) == []

    for wrong in ([other(data)], [again(data), again(data, 5)]):
        broker = Playing(was.loaded_for(mode), how)
        client = broker.connect()
        for each in [*wrong, batch("z")]:
            client.produce(each)
        assert any(f"{len(data)} bytes that cannot be read" in each for each in ended(broker))


def test_one_that_is_not_in_the_recording_is_refused_as_by_a_broker_or_named() -> None:
    was = Recorded().metadata().produced(batch("a")).produced(sealed(GZIP, count=30), 1)
    for kind in ("the checksum is wrong", "codec unknown-5", "magic 3"):
        answer = Playing(was.loaded, CAUSAL).connect().produce(OF_ONE[kind])
        assert (error_name(answer.error_code), answer.base_offset) == ("CORRUPT_MESSAGE", -1)
    broker = Playing(was.loaded, CAUSAL)
    broker.connect().produce(batch("a"))
    broker.connect().produce(OF_ONE["gzip"])
    (found,) = ended(broker)
    assert found.startswith("not recorded: orders: the batch has other bytes: ")
    assert found.endswith("(orders[0] at offset 1)")


@pytest.mark.parametrize("ignored", [Ignored(), Ignored(True), parse(["partition"])])
def test_its_partition_counts_unless_that_is_ignored(ignored: Ignored) -> None:
    data = OF_ONE["gzip"]
    was = Recorded().metadata(partitions=2).produced(data).produced(batch("z"), 2)
    settings = attrs.evolve(CAUSAL, ignored=with_words(ignored, ["header:h"]))
    broker = Playing(was.loaded, settings)
    client = broker.connect()
    client.produce(data, partition=1)
    client.produce(batch("z"))
    if ignored.parts:
        assert bytes(client.fetch(0, partition=1).records)[61:] == data[61:]
        assert client.values() == ["z"]
        assert ended(broker) == []
    else:
        assert [each.partition(":")[0] for each in ended(broker)] == ["not recorded"]


def test_what_a_broker_has_compressed_again_is_compared_as_it_was_sent() -> None:
    """It is read by Kafka, and not by kproxy: the broker's form of it is served."""
    sent, stored = OF_ONE["gzip"], batch("a", "b", base_offset=4, compression="snappy")
    for was in (
        Recorded().metadata().produced(sent, 4).fetched(stored, 4),
        Recorded().metadata().fetched(stored, 4).produced(sent, 4),
    ):
        broker = Playing(was.loaded, CAUSAL)
        client = broker.connect()
        assert client.values(4) == []
        client.produce(again(sent))
        assert client.values(4) == ["a", "b"]
        assert ended(broker) == []
        assert "that cannot be read" in ended(Playing(was.loaded, CAUSAL))[0]


def test_records_before_it_are_compared_one_by_one() -> None:
    """In one field, as old clients send it: what cannot be read comes behind what can."""
    set_of = encode_message_set([Record(0, 1000, b"k", b"x"), Record(1, 1000, b"k", b"y")], magic=1)
    was = Recorded().metadata().produced(set_of + OF_ONE["key"] + b"cut", 3)
    broker = Playing(was.loaded, CAUSAL)
    client = broker.connect()
    client.produce(set_of, version=2)
    assert client.values(3, version=4) == ["x", "y"]
    size = len(OF_ONE["key"])
    assert [each.partition(" that")[0] for each in ended(broker)] == [
        f"not produced: orders: the batch was never produced: {size} bytes",
        "not produced: orders: the batch was never produced: 3 bytes",
    ]
    broker = Playing(was.loaded, CAUSAL)
    assert broker.connect().produce(set_of + OF_ONE["key"] + b"cut", version=2).base_offset == 3
    assert ended(broker) == []


def test_offsets_by_time_find_it() -> None:
    was = Recorded().metadata().produced(OF_ONE["gzip"], 5)
    request = messages.ListOffsetsRequest
    one = request.ListOffsetsPartition(partition_index=0, timestamp=1500)
    asked = request(topics=[request.ListOffsetsTopic(name="orders", partitions=[one])])
    answer = Playing(was.loaded).connect().ask(7, asked)
    assert answer.topics[0].partitions[0].offset == 5


def test_consumers_get_what_follows_an_unknown_format() -> None:
    was = (
        Recorded().metadata().fetched(batch("a") + damaged(OF_ONE["magic 3"], 0, bytes(7) + b"\1"))
    )
    client = Playing(was.loaded).connect()
    assert bytes(client.fetch(1).records) == damaged(OF_ONE["magic 3"], 0, bytes(7) + b"\1")
    assert client.fetch(0).high_watermark == 2


# ---- requests of which nothing can be decoded


def undecodable(correlation_id: int, name: bytes = b"orders") -> bytes:
    """A Produce v3 whose topic says that it has more partitions than there are bytes."""
    body = b"\0\0\0\3" + struct.pack(">ih", correlation_id, -1) + b"\xff\xff\0\1\0\0\0\1"
    body += b"\0\0\0\1" + struct.pack(">h", len(name)) + name + b"\0\0\0\x09"
    return struct.pack(">i", len(body)) + body


def recorded_undecodable(error: int = 0) -> Recorded:
    was = Recorded().metadata()
    kind = messages.ProduceResponse
    placed = kind.PartitionProduceResponse(index=0, base_offset=0, error_code=error)
    topic = kind.TopicProduceResponse(name="orders", partition_responses=[placed])
    asked = making.request("Produce", 3, produce(b""), 2)
    data = undecodable(102)
    asked = attrs.evolve(asked, pieces=[data], frame_bytes=len(data))
    was.entries += [asked, making.response(asked, kind(responses=[topic]))]
    return was


def test_a_produce_that_cannot_be_decoded_has_to_come_again(tmp_path) -> None:
    loaded = recorded_undecodable().loaded
    (found,) = ended(Playing(loaded))
    size = len(undecodable(0))
    start = f"not produced: a Produce v3 of {size} bytes that cannot be decoded (Produce"
    assert found.startswith(start), found
    index_file.write(tmp_path / "x", {"a": 1}, Indexed(loaded, [], {}, [], []))
    indexed = index_file.read(tmp_path / "x", {"a": 1})
    assert indexed is not None
    for kept in (loaded, indexed.loaded):
        broker = Playing(kept)
        client = broker.connect()
        client.bytes(undecodable(44))
        (frame,) = client.frames
        answer = protocol.decode_response(frame, 0, 3)
        assert answer.header.correlation_id == 44
        assert answer.body.responses[0].partition_responses[0].base_offset == 0
        assert broker.broker.state.check.lacks_records is False
        assert ended(broker) == []
    broker = Playing(loaded)
    client = broker.connect()
    client.bytes(undecodable(44, b"others"))
    assert client.frames == [] and client.number in broker.closed
    assert ended(broker)


def test_a_produce_that_was_refused_need_not_come_again() -> None:
    assert ended(Playing(recorded_undecodable(error=87).loaded)) == []


def test_what_several_consumers_got_is_told_once_and_one_number_of_a_partition_kept() -> None:
    found: list[int | None] = []
    behaviour = Behaviour(lambda client, record: found.append(record.offset))
    recorded = Recorded().metadata()
    for offset in (0, 0, 5, 5, 9, 9):
        recorded.fetched(sealed(batch("a", base_offset=offset), attributes=5), offset)
    for each in recorded.exchanges:
        behaviour.add(each)
    assert found == [0, 5, 9] and len(behaviour._unread) == 1
