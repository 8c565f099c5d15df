"""What a replay unpacks is bounded over all of its recording, and over a frame of a client."""

from __future__ import annotations

import pytest

from kproxy.exchange import unpacking
from kproxy.replay.unreadable import UnreadableBatch
from kproxy.wire.protocol import error_name, records
from kproxy.wire.protocol.message_sets import encode_message_set
from kproxy.wire.protocol.record_batch import Record
from kproxy.wire.protocol.records import encode_batch
from tests.exchange.test_unpacking import hollow, with_headers
from tests.replay.making import Playing, Recorded, batch
from tests.replay.test_unreadable import CAUSAL, again, ended
from tests.wire.protocol.test_record_batch import wrapper_of

COUNT = 5_000
BYTES = 1 << 20
BOMBS = {
    "headers out of compressed bytes": with_headers(COUNT),
    "records out of compressed bytes": hollow(COUNT),
    "records out of": wrapper_of(encode_message_set([Record(0, 0)], magic=1) * COUNT),
    "bytes decompress to more than": batch("x" * BYTES, compression="zstd"),
}
"""Batches within the spare of one of them, by the words for the second."""
BEYOND = hollow(COUNT + 5000)
"""A batch beyond it."""


@pytest.fixture(autouse=True)
def little_to_spare(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is room for one bomb."""
    monkeypatch.setattr(unpacking, "SPARE_RECORDS", COUNT)
    monkeypatch.setattr(unpacking, "SPARE_BYTES", BYTES * 3 // 2)


@pytest.mark.parametrize("words", BOMBS)
def test_all_batches_of_a_recording_share_what_they_may_unpack_to(words: str) -> None:
    bomb, was = BOMBS[words], Recorded().metadata(partitions=3)
    for partition in range(3):
        was.produced(bomb, partition=partition)
    check = Playing(was.loaded).broker.state.check
    found = [each.record for topic in check.topics for each in check.expected(topic)]
    unread = [each.text for each in found if isinstance(each, UnreadableBatch)]
    assert len(unread) == 2 and all(words in each and "more than" in each for each in unread)
    assert len(found) == 2 + len(records.batches(bomb)[0].records)


def test_one_beyond_it_is_compared_by_its_bytes_and_served() -> None:
    was = Recorded().metadata().produced(BEYOND, 5).produced(batch("z"), 6)
    for wrong in (batch("y"), hollow(COUNT + 5001)):
        broker = Playing(was.loaded, CAUSAL)
        broker.connect().produce(wrong)
        words = f"{len(BEYOND)} bytes that cannot be read ({COUNT + 5000} records out of"
        found = ended(broker)
        assert any(words in each for each in found), found
    broker = Playing(was.loaded, CAUSAL)
    client = broker.connect()
    answer = client.produce(again(BEYOND))
    assert (error_name(answer.error_code), answer.base_offset) == ("NONE", 5)
    client.produce(batch("z"))
    assert BEYOND[61:] in bytes(client.fetch(5).records)
    assert ended(broker) == []


@pytest.mark.parametrize("words", BOMBS)
def test_one_that_was_read_is_read_again_when_it_is_produced(words: str) -> None:
    bomb = BOMBS[words]
    for _ in range(3):  # they draw on what the recording has left
        broker = Playing(Recorded().metadata().produced(bomb).loaded, CAUSAL)
        assert error_name(broker.connect().produce(bomb).error_code) == "NONE"
        assert ended(broker) == []


def test_the_batches_of_a_live_frame_share_its_allowance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "RECORDS_MAX", 1000)
    many = encode_batch([Record(number, 0) for number in range(600)], compression="zstd")
    broker = Playing(Recorded().metadata().produced(batch("a")).loaded)
    broker.connect().produce(many * 5)
    unknown = [each for each in ended(broker) if each.startswith("not recorded")]
    assert "behind more records than one request may unpack to" in "".join(unknown)
