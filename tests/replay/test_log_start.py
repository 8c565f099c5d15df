"""The start of a log, after records were deleted, and what compaction has removed."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from kproxy.replay.fetch import EARLIEST, LATEST
from kproxy.replay.settings import ReplaySettings, Visible
from kproxy.wire.protocol import error_name, messages
from kproxy.wire.protocol.record_batch import Record
from kproxy.wire.protocol.records import encode_batch
from tests.replay.making import Client, Playing, Recorded, batch, fetch

ALL = ReplaySettings()
CAUSAL = attrs.evolve(ALL, visible=Visible.CAUSAL)
TEN = [str(value) for value in range(10)]


def deleting(offset: int) -> Any:
    request = messages.DeleteRecordsRequest
    partition = request.DeleteRecordsPartition(partition_index=0, offset=offset)
    return request(topics=[request.DeleteRecordsTopic(name="orders", partitions=[partition])])


def deleted(was: Recorded, offset: int) -> Recorded:
    """A client has deleted the records up to an offset."""
    kind = messages.DeleteRecordsResponse
    found = kind.DeleteRecordsPartitionResult(partition_index=0, low_watermark=offset)
    topic = kind.DeleteRecordsTopicResult(name="orders", partitions=[found])
    return was.add(2, deleting(offset), kind(topics=[topic]))


def read(was: Recorded, offset: int, data: bytes, log_start: int = -1) -> Recorded:
    """A consumer has got batches from an offset on."""
    kind = messages.FetchResponse
    found = kind.PartitionData(partition_index=0, high_watermark=10, aborted_transactions=None)
    found.records, found.log_start_offset = data, log_start
    topic = kind.FetchableTopicResponse(topic="orders", partitions=[found])
    return was.add(11, fetch({0: offset}), kind(responses=[topic]))


def offset_at(client: Any, timestamp: int, partition: int = 0) -> int:
    request = messages.ListOffsetsRequest
    asked = request.ListOffsetsPartition(partition_index=partition, timestamp=timestamp)
    topic = request.ListOffsetsTopic(name="orders", partitions=[asked])
    (found,) = client.ask(5, request(replica_id=-1, topics=[topic])).topics
    return found.partitions[0].offset


def watermarks(client: Client) -> tuple[int, int]:
    return offset_at(client, EARLIEST), offset_at(client, LATEST)


def findings(broker: Playing) -> list[str]:
    broker.end()
    return [each.text for each in broker.report.findings]


def test_what_was_deleted_is_not_served() -> None:
    was = deleted(Recorded().metadata().produced(batch(*TEN)), 4)
    for recorded in (was, read(deleted(Recorded().metadata(), 4), 4, batch(*TEN), 4)):
        client = Playing(recorded.loaded).connect()
        assert watermarks(client) == (4, 10)
        assert error_name(client.fetch(0).error_code) == "OFFSET_OUT_OF_RANGE"
        assert client.fetch(4).log_start_offset == 4
        assert client.values(4) == TEN[4:]


def test_where_records_were_deleted_before_the_recording_the_log_starts_behind_them() -> None:
    was = read(Recorded().metadata(), 4, batch(*TEN), log_start=4)
    for settings in (ALL, CAUSAL):
        loaded = was.loaded
        assert loaded.lacking == []
        assert watermarks(Playing(loaded, settings).connect()) == (4, 10)


def test_what_was_read_before_it_was_deleted_is_there_until_it_is_deleted_again() -> None:
    was = read(Recorded().metadata().produced(batch(*TEN)), 0, batch(*TEN), 0)
    read(deleted(was, 4), 4, batch(*TEN), 4)
    client = Playing(was.loaded).connect()
    assert watermarks(client) == (0, 10) and client.values() == TEN
    client.ask(2, deleting(4))
    assert watermarks(client) == (4, 10)


def test_the_same_app_deletes_what_it_has_produced() -> None:
    was = deleted(Recorded().metadata().produced(batch(*TEN), log_start_offset=0), 4)
    broker = Playing(read(was, 4, batch(*TEN), 4).loaded, CAUSAL)
    client = broker.connect()
    client.produce(batch(*TEN))
    assert watermarks(client) == (0, 10)
    client.ask(2, deleting(4))
    assert watermarks(client) == (4, 10)
    assert client.values(4) == TEN[4:] and findings(broker) == []


def keyed(offset: int, *pairs: tuple[str, str], **more: Any) -> bytes:
    """A batch of records with keys."""
    made = [
        Record(offset + index, 1000, key.encode(), value.encode())
        for index, (key, value) in enumerate(pairs)
        if value
    ]
    last = offset + len(pairs) - 1
    return encode_batch(made, base_offset=offset, last_offset=last, **more)


BATCHES = [(0, [("x", "a"), ("y", "b")]), (2, [("x", "c")]), (3, [("y", "d"), ("z", "e")])]
LEFT = keyed(0, ("x", ""), ("y", "b")) + keyed(3, ("y", ""), ("z", "e"))
"""What compaction has left of them: no record of the second batch."""


def produced() -> Recorded:
    was = Recorded().metadata()
    for offset, pairs in BATCHES:
        was.produced(keyed(offset, *pairs), offset, log_start_offset=0)
    return was


@pytest.mark.parametrize("settings", [ALL, CAUSAL], ids=["all", "causal"])
def test_what_compaction_removed_is_produced_again_and_not_served(
    settings: ReplaySettings,
) -> None:
    loaded = read(produced(), 0, LEFT, 0).loaded
    assert loaded.lacking == []
    broker = Playing(loaded, settings)
    client = broker.connect()
    for offset, pairs in BATCHES:
        assert client.produce(keyed(0, *pairs)).base_offset == offset
    assert client.values() == ["b", "e"]
    assert client.values(1) == ["b", "e"] and client.values(2) == ["e"]
    assert watermarks(client) == (0, 5)
    assert findings(broker) == []


def test_what_compaction_removed_has_to_be_produced_all_the_same() -> None:
    broker = Playing(read(produced(), 0, LEFT, 0).loaded, CAUSAL)
    broker.connect().produce(keyed(0, *BATCHES[0][1]))
    assert len(findings(broker)) == 3


def test_what_a_consumer_read_before_compaction_is_served() -> None:
    was = produced()
    whole = b"".join(keyed(offset, *pairs) for offset, pairs in BATCHES)
    client = Playing(read(read(was, 0, whole, 0), 0, LEFT, 0).loaded).connect()
    assert client.values() == ["a", "b", "c", "d", "e"]


def test_what_nobody_has_read_is_not_known_to_be_removed() -> None:
    was = read(produced(), 2, keyed(3, ("y", ""), ("z", "e")), 0)
    client = Playing(was.loaded).connect()
    assert client.values() == ["a", "b", "e"]
