"""Message bodies, and what is said about them after they were on the wire."""

from __future__ import annotations

import struct
from uuid import UUID

from kproxy.exchange.exchange import Exchange
from kproxy.exchange.pairing import pair
from kproxy.exchange.words import text_of
from kproxy.wire.protocol import messages
from tests.exchange.making import request, response

M = messages
ORDERS = UUID("12345678-1234-5678-1234-567812345678")


def exchange(api: str, version: int, asked: object, answered: object | None = None) -> Exchange:
    """An exchange that has been on the wire."""
    frame = request(api, version, asked)
    if answered is None:
        (made,) = pair([frame])
    else:
        (made,) = pair([frame, response(frame, answered)])
    assert not made.opaque
    return made


def words(api: str, version: int, asked: object, answered: object | None = None) -> str:
    """It as text: `request → response`."""
    found = text_of(exchange(api, version, asked, answered))
    return f"{found.request} → {found.response}"


def produce_request(sets: dict[int, bytes], topic: str = "orders", **fields):
    P = M.ProduceRequest
    partitions = [P.PartitionProduceData(index=index, records=data) for index, data in sets.items()]
    topics = [P.TopicProduceData(name=topic, partition_data=partitions)]
    return P(topic_data=topics, acks=-1, timeout_ms=1, **fields)


def produce_response(offsets: dict[int, int], error_code: int = 0, topic: str = "orders"):
    P = M.ProduceResponse
    partitions = [
        P.PartitionProduceResponse(index=index, base_offset=offset, error_code=error_code)
        for index, offset in offsets.items()
    ]
    return P(responses=[P.TopicProduceResponse(name=topic, partition_responses=partitions)])


def fetch_request(offsets: dict[int, int], topic: str = "orders", **fields):
    F = M.FetchRequest
    partitions = [
        F.FetchPartition(partition=index, fetch_offset=offset) for index, offset in offsets.items()
    ]
    topics = [F.FetchTopic(topic=topic, partitions=partitions)] if offsets else []
    return F(topics=topics, **fields)


def fetch_response(sets: dict[int, bytes], topic: str = "orders", **fields):
    F = M.FetchResponse
    partitions = [F.PartitionData(partition_index=i, records=data) for i, data in sets.items()]
    topics = [F.FetchableTopicResponse(topic=topic, partitions=partitions)]
    return F(responses=topics, **fields)


def by_id(offsets: dict[int, int]):
    made = fetch_request(offsets)
    made.topics[0].topic_id = ORDERS
    return made


def subscription(*topics: str) -> bytes:
    named = b"".join(struct.pack(">h", len(topic)) + topic.encode() for topic in topics)
    return struct.pack(">hi", 0, len(topics)) + named + struct.pack(">i", -1)


def assignment(topic: str, *partitions: int, version: int = 0) -> bytes:
    numbers = struct.pack(f">{len(partitions)}i", *partitions)
    named = struct.pack(">h", len(topic)) + topic.encode()
    head = struct.pack(">hi", version, 1)
    return head + named + struct.pack(">i", len(partitions)) + numbers + struct.pack(">i", -1)


def filled(owner: str, fields, version: int, cls: type | None = None):
    """A value with something in every list and string, and every nullable struct."""
    made = (cls or getattr(M, owner))()
    for field in fields:
        if version not in field.versions:
            continue
        if field.fields:
            inner = filled(owner, field.fields, version, getattr(getattr(M, owner), field.element))
        elif field.element == "string":
            inner = "x"
        elif field.element in ("bytes", "records"):
            inner = b"\1\2\3"
        else:
            continue
        setattr(made, field.name, [inner] if field.is_array else inner)
    return made
