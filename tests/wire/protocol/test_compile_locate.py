"""locate and seek find what decode reads, and refuse what it refuses."""

from __future__ import annotations

import pytest

from kproxy.wire.protocol import ProtocolError, codec, diagnose, messages, schema
from kproxy.wire.protocol.schema import Message
from tests.wire.protocol.making import encoded

FETCH = schema.named("FetchResponse")


def start_of(message: Message, version: int, name: str, raw: bytes) -> int:
    """Where a top-level field starts, or of a tagged one the tagged section."""
    layout = codec.layout(message, version)
    walk = diagnose.Walk(layout, raw, 0)
    for slot in layout.slots:
        if slot.name == name:
            break
        walk.slot(slot, slot.name)
    return walk.position


def sought(message: Message, version: int, name: str, chunks: list[bytes]) -> tuple[int, int]:
    """What `seek` returns, and how many bytes it was sent."""
    walk = codec.seek(message, version, name)
    next(walk)
    sent = 0
    for chunk in chunks:
        sent += len(chunk)
        try:
            walk.send(chunk)
        except StopIteration as stop:
            return stop.value, sent
    raise AssertionError("the end was reached before the field")


def fetch(*endpoints: messages.FetchResponse.NodeEndpoint) -> bytes:
    """A Fetch response v17 with one partition and these endpoints behind it."""
    partition = messages.FetchResponse.PartitionData(records=b"r" * 200)
    topic = messages.FetchResponse.FetchableTopicResponse(partitions=[partition])
    body = messages.FetchResponse(responses=[topic], node_endpoints=list(endpoints))
    return encoded(FETCH, 17, body)


def test_a_tagged_field_comes_with_its_size():
    raw = fetch(
        messages.FetchResponse.NodeEndpoint(node_id=1, host="one"),
        messages.FetchResponse.NodeEndpoint(node_id=2, host="two"),
    )
    spans, end = codec.locate(FETCH, 17, ("node_endpoints.host", "node_endpoints"))(raw, 0)
    around, whole, one, two = spans
    assert end == around[3] == whole[3] == len(raw)
    assert around[0] == -1
    assert around[2] - around[1] == 1
    assert raw[around[1]] == around[3] - around[2]
    assert whole == (1, around[2], around[2] + 1, end)
    assert [raw[s:e] for _, s, _, e in (one, two)] == [b"\x04one", b"\x04two"]
    assert [raw[c:e] for _, _, c, e in (one, two)] == [b"one", b"two"]


def test_without_endpoints_there_is_nothing_to_locate():
    raw = fetch()
    assert codec.locate(FETCH, 17, ("node_endpoints.host",))(raw, 0) == ([], len(raw))
    assert codec.locate(FETCH, 4, ("node_endpoints.host",))(bytes(8), 0) == ([], 8)


def test_seek_streams_records_without_keeping_them():
    partition = messages.FetchResponse.PartitionData(records=b"r" * 5_000_000)
    topic = messages.FetchResponse.FetchableTopicResponse(partitions=[partition])
    raw = encoded(FETCH, 17, messages.FetchResponse(responses=[topic, topic]))
    chunks = [raw[at : at + 65536] for at in range(0, len(raw), 65536)]
    assert sought(FETCH, 17, "node_endpoints", chunks) == (len(raw) - 1, len(raw))


def test_seek_refuses_what_is_malformed():
    walk = codec.seek(FETCH, 17, "node_endpoints")
    next(walk)
    with pytest.raises(ProtocolError, match=r"^FetchResponse v17 responses .*is null"):
        walk.send(bytes(12))
    for raw in ("ff" * 20, "00" * 10 + "ffffffff0f"):
        walk = codec.seek(FETCH, 17, "node_endpoints")
        next(walk)
        with pytest.raises(ProtocolError):
            walk.send(bytes.fromhex(raw))
            walk.send(bytes(10))


def test_a_refusal_behind_the_first_field_names_field_and_offset():
    raw = fetch(messages.FetchResponse.NodeEndpoint(node_id=1, host="one"))
    start = start_of(FETCH, 17, "node_endpoints", raw)
    locate = codec.locate(FETCH, 17, ("node_endpoints.host",), first="node_endpoints")
    refused = rf"node_endpoints.* at offset {len(raw) - 1}"
    with pytest.raises(ProtocolError, match=refused) as caught:
        locate(raw[:-1], start)
    assert caught.value.truncated
    message = schema.named("MetadataRequest")
    locate = codec.locate(message, 12, (), first="allow_auto_topic_creation")
    with pytest.raises(ProtocolError, match="allow_auto_topic_creation at offset 5: needs 1 more"):
        locate(b"12345", 5)


@pytest.mark.parametrize("path", ["nonsense", "topics.nonsense", "topics.name.length"])
def test_a_path_that_no_version_has_is_a_mistake(path):
    with pytest.raises(ValueError, match="has no field"):
        codec.locate(schema.named("MetadataResponse"), 12, (path,))


def test_asking_for_what_a_version_does_not_have_is_a_mistake():
    with pytest.raises(ValueError, match="no field 'node_endpoints'"):
        codec.seek(FETCH, 4, "node_endpoints")
    with pytest.raises(ValueError, match="has no version 99"):
        codec.locate(FETCH, 99, ())
