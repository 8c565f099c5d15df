"""Subscriptions and assignments that end early are read as far as they go."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kproxy.exchange.filter import parse
from kproxy.look.lines.jsonl import to_line
from kproxy.wire.protocol import codec, consumer_protocol, messages, schema
from kproxy.wire.protocol.consumer_protocol import ASSIGNMENT, SUBSCRIPTION
from tests.exchange.bodies import exchange

M = messages


def encoded(name: str, version: int, topics: list[str]) -> bytes:
    if name == SUBSCRIPTION:
        S = M.ConsumerProtocolSubscription
        owned = [S.TopicPartition(topic=each, partitions=[0, 1]) for each in topics]
        body = S(topics=topics, user_data=b"u", owned_partitions=owned, generation_id=7)
        body.rack_id = "a"
    else:
        A = M.ConsumerProtocolAssignment
        given = [A.TopicPartition(topic=each, partitions=[0, 1]) for each in topics]
        body = A(assigned_partitions=given, user_data=b"u")
    parts = [version.to_bytes(2, "big")]
    codec.encoder(schema.named(name), version)(body, parts.append)
    return b"".join(parts)


def topics_of(name: str, value) -> list[str]:
    return value.topics if name == SUBSCRIPTION else [t.topic for t in value.assigned_partitions]


@given(
    name=st.sampled_from([SUBSCRIPTION, ASSIGNMENT]),
    version=st.integers(0, 3),
    topics=st.lists(st.text("abc", min_size=1, max_size=5), max_size=5),
    data=st.data(),
)
def test_what_is_there_is_read_however_much_is_missing(name, version, topics, data):
    whole = encoded(name, version, topics)
    length = data.draw(st.integers(0, len(whole)))
    found, undecoded = consumer_protocol.read(name, whole[:length])
    if length == len(whole):
        assert not undecoded and topics_of(name, found) == topics
    elif length:
        assert undecoded
        read = [] if found is None else topics_of(name, found)
        assert read == topics[: len(read)]
        # An element that is whole is not lost.
        of_one = [6 + sum(len(t) + (2 if name == SUBSCRIPTION else 14) for t in topics[:n])
                  for n in range(len(topics) + 1)]  # fmt: skip
        assert len(read) == max((n for n, end in enumerate(of_one) if end <= length), default=0)


@given(name=st.sampled_from([SUBSCRIPTION, ASSIGNMENT]), data=st.binary(max_size=60))
def test_no_bytes_make_it_fail(name, data):
    found, undecoded = consumer_protocol.read(name, data)
    assert found is not None or undecoded or not data


def test_many_topics_that_are_cut_off_take_no_long_search():
    data = b"\0\1\0\2\0\0" + b"\0\1a" * 100_000
    found, undecoded = consumer_protocol.read(SUBSCRIPTION, data)
    assert len(found.topics) == 100_000
    assert undecoded == "it ends in topics, behind 100000 of 131072"


@pytest.mark.parametrize(
    ("version", "tail", "missing"),
    [
        (0, b"", "user_data"),
        (1, bytes(4), "owned_partitions"),
        (2, bytes(8), "generation_id"),
        (3, bytes(12), "rack_id"),
    ],
)
def test_a_member_that_says_a_version_and_leaves_out_what_it_added(version, tail, missing):
    """kafka-go, sarama-cluster: lines, JSON and filters know the topics, and what is missing."""
    whole = encoded(SUBSCRIPTION, version, ["orders"])[:14] + tail
    J, S = M.JoinGroupRequest, M.SyncGroupResponse
    protocols = [J.JoinGroupRequestProtocol(name="range", metadata=whole)]
    asked = J(group_id="g", protocol_type="consumer", protocols=protocols)
    joined = exchange("JoinGroup", 5, asked, M.JoinGroupResponse(error_code=79))
    assert f"wants orders, its subscription cannot be read whole (it ends before {missing})" in (
        joined.text
    )
    assert joined.topics == ["orders"] and parse("topic:orders").matches(joined)
    (plain,) = json.loads(to_line(joined))["request"]["protocols"]
    assert plain["metadata"]["topics"] == ["orders"]
    assert plain["metadata_undecoded"] == f"it ends before {missing}"
    given = encoded(ASSIGNMENT, version, ["orders"])[:-5]
    synced = exchange("SyncGroup", 3, M.SyncGroupRequest(group_id="g"), S(assignment=given))
    assert "→ orders[0,1], the assignment cannot be read whole (it ends before user_data)" in (
        synced.text
    )


def test_what_cannot_be_read_at_all_is_base64_and_has_its_reason():
    J = M.JoinGroupRequest
    protocols = [J.JoinGroupRequestProtocol(name="range", metadata=b"\0\0\xff\xff\xff\xff")]
    asked = J(group_id="g", protocol_type="consumer", protocols=protocols)
    joined = exchange("JoinGroup", 5, asked, M.JoinGroupResponse(error_code=79))
    (plain,) = json.loads(to_line(joined))["request"]["protocols"]
    assert plain["metadata"] == "AAD/////"
    assert plain["metadata_undecoded"].startswith("ConsumerProtocolSubscription v0 topics")
