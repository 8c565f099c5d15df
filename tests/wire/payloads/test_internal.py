"""The records of Kafka's own topics: what Kafka's own tool prints of them, and any bytes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kproxy.wire.payloads.decoding import decode
from kproxy.wire.payloads.meaning import Decoded, Undecoded
from kproxy.wire.payloads.schemas import Schemas
from kproxy.wire.protocol import schema
from kproxy.wire.protocol.schema import Message
from tests.bed import console
from tests.wire.protocol.strategies import drawn

OFFSETS = "__consumer_offsets"
VALUES = [
    message
    for message in map(schema.named, schema.record_names())
    if message.direction == schema.RECORD_VALUE
]
KEY = bytes.fromhex("0001 0002 6170 0001 74 00000005")
SUBSCRIPTION = bytes.fromhex("0001 00000001 0006 6f7264657273 ffffffff 00000000")


def meaning(part: str, topic: str, key: bytes | None, value: bytes | None = None) -> Any:
    """What a part of a record without headers means."""
    return decode(part, topic, key, value, (), Schemas())


def test_a_committed_offset() -> None:
    value = bytes.fromhex("0003 000000000000002a ffffffff 0000 0000000000000007")
    assert meaning("key", OFFSETS, KEY, value) == Decoded(
        {"group": "ap", "topic": "t", "partition": 5}, "Kafka's OffsetCommitKey"
    )
    assert meaning("value", OFFSETS, KEY, value) == Decoded(
        {"offset": 42, "leader_epoch": -1, "metadata": "", "commit_timestamp": 7},
        "Kafka's OffsetCommitValue, version 3",
    )
    assert meaning("value", OFFSETS, KEY) is None, "a tombstone"


def test_what_consumers_wrote_into_the_metadata_of_their_group() -> None:
    key = bytes.fromhex("0002 0002 6170")
    member = bytes.fromhex("0001 6d 0001 63 0001 68 00000001 00000002")
    member += len(SUBSCRIPTION).to_bytes(4, "big") + SUBSCRIPTION + bytes(4)

    def value(protocol_type: bytes) -> bytes:
        head = bytes.fromhex("0001") + len(protocol_type).to_bytes(2, "big") + protocol_type
        return head + bytes.fromhex("00000003 0005 72616e6765 0001 6d 00000001") + member

    found = meaning("value", OFFSETS, key, value(b"consumer")).value["members"]
    assert found[0]["subscription"]["topics"] == ["orders"]
    assert found[0]["assignment"] == ""
    found = meaning("value", OFFSETS, key, value(b"connect")).value["members"]
    assert isinstance(found[0]["subscription"], str), "the workers of Connect have another protocol"


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        (b"", b"\0\3", "its key has no type"),
        (None, b"\0\3", "its key has no type"),
        (b"\0\x12", b"\0\0", "Kafka's record type 18 of __consumer_offsets is unknown"),
        (KEY, b"\0", "Kafka's OffsetCommitValue has no version"),
        (KEY, b"\0\x09", "Kafka's OffsetCommitValue, version 9 is unknown"),
        (KEY, b"\0\3\0", "not of Kafka's OffsetCommitValue, version 3"),
        (
            KEY,
            b"\0\0" + bytes(19),
            "not of Kafka's OffsetCommitValue, version 0: bytes follow its end",
        ),
        (KEY, bytes((1 << 20) + 1), "1.0 MiB are not decoded"),
    ],
)
def test_what_is_not_decoded_says_why(key: bytes | None, value: bytes, why: str) -> None:
    assert meaning("value", OFFSETS, key, value) == Undecoded(why)


@given(
    st.sampled_from(["__consumer_offsets", "__transaction_state", "__share_group_state"]),
    st.none() | st.builds(lambda n, rest: bytes([0, n]) + rest, st.integers(0, 24), st.binary()),
    st.none() | st.builds(lambda n, rest: bytes([0, n]) + rest, st.integers(0, 5), st.binary()),
)
def test_any_bytes_are_decoded_or_not(topic: str, key: bytes | None, value: bytes | None) -> None:
    for part, data in (("key", key), ("value", value)):
        found = meaning(part, topic, key, value)
        assert found is None if data is None else isinstance(found, Decoded | Undecoded)


@pytest.mark.java
def test_every_kind_of_record_is_what_kafkas_own_tool_prints() -> None:
    records: list[console.Record] = []
    asked: list[tuple[Message, int]] = []
    for message in VALUES:
        assert message.api_key is not None and message.topic is not None
        key = schema.record_part(message.topic, message.api_key, schema.RECORD_KEY)
        assert key is not None
        for version in message.versions:
            parts = drawn(key, 0, 5), drawn(message, version, 5, tags=False)
            for one, other in zip(*parts, strict=True):
                place = message.topic, _numbered(message.api_key, one)
                records.append((*place, _numbered(version, other)))
                asked.append((message, version))
    theirs = console.printed(records)
    unread = set()
    for (message, version), record, answer in zip(asked, records, theirs, strict=True):
        if answer is None:
            unread.add((message.name, version))
            continue
        assert answer["key"]["type"] == message.api_key
        assert answer["value"]["version"] == version
        topic, key, value = record
        assert meaning("key", topic, key).value == answer["key"]["data"]
        found = meaning("value", topic, key, value)
        assert found.by == f"Kafka's {message.name}, version {version}"
        assert console.as_printed(found.value, message.fields, version) == answer["value"]["data"]
    assert unread == UNREAD


UNREAD = {("ShareGroupPartitionMetadataValue", 0)} | {
    ("LegacyOffsetCommitValue", version) for version in range(1, 5)
}
"""What only 3.9.2 reads."""


def _numbered(number: int, data: bytes) -> bytes:
    return number.to_bytes(2, "big") + data
