"""What an exchange is about: topics, partitions, groups, transactional ids, by name."""

from __future__ import annotations

from uuid import UUID

import pytest

from kproxy.exchange import notes
from kproxy.exchange.body_facts import BodyFacts, body_facts
from kproxy.exchange.entities import TopicNames, TopicPartition
from kproxy.exchange.meanings import PARTITION, PREDICATES
from kproxy.exchange.pairing import Pairing, pair
from kproxy.wire.protocol import codec, messages, schema
from kproxy.wire.protocol.plain import uuid_text
from kproxy.wire.protocol.select import select
from tests.exchange.making import START_NS, answer, request, response

ORDERS = UUID("9f0c3a52-77aa-4b6e-8a51-1b1d1c6f0001")
ORDERS_TEXT = uuid_text(ORDERS)


def told(body) -> BodyFacts:
    """What a request tells."""
    return body_facts(body, None, TopicNames())


def fetch(number: int = 1):
    topic = messages.FetchRequest.FetchTopic
    partition = messages.FetchRequest.FetchPartition
    body = messages.FetchRequest(
        topics=[topic(topic_id=ORDERS, partitions=[partition(partition=3)])]
    )
    return request("Fetch", 13, body, number)


def fetched(asked):
    return response(asked, messages.FetchResponse())


def metadata(number: int = 2):
    asked = request("Metadata", 12, messages.MetadataRequest(), number)
    topic = messages.MetadataResponse.MetadataResponseTopic
    return asked, response(
        asked, messages.MetadataResponse(topics=[topic(name="orders", topic_id=ORDERS)])
    )


def test_a_topic_id_without_a_name_comes_as_kafka_prints_it():
    asked = fetch()
    (exchange,) = pair([asked, fetched(asked)])
    assert exchange.topics == [ORDERS_TEXT]
    assert exchange.partitions == [TopicPartition(ORDERS_TEXT, 3)]


def test_a_response_that_has_both_tells_the_name_before_and_after():
    before, after = fetch(1), fetch(3)
    entries = [before, fetched(before), *metadata(), after, fetched(after)]
    exchanges = list(pair(entries))
    assert [exchange.topics for exchange in exchanges] == [["orders"]] * 3


def test_many_responses_are_not_kept():
    pairing = Pairing()
    for number in range(1, 200):
        for entry in metadata(number):
            pairing.feed(entry)
    asked = fetch(1000)
    pairing.feed(asked)
    (exchange,) = pairing.feed(fetched(asked))
    assert exchange.topics == ["orders"]
    assert len(exchange.topic_names) < 32


@pytest.mark.parametrize("text", [ORDERS_TEXT, str(ORDERS)])
def test_a_note_tells_the_name(text):
    asked = fetch()
    (exchange,) = pair([notes.topic_id(START_NS, text, "orders"), asked, fetched(asked)])
    assert exchange.topics == ["orders"]


@pytest.mark.parametrize("topic_id", ["", "?" * 22, "short", None, 7])
def test_a_note_of_a_foreign_file_may_say_anything(topic_id):
    names = TopicNames()
    names.note({"topic_id": topic_id, "topic": "orders"})
    names.note({"topic_id": topic_id})
    assert names.name(ORDERS) is None


def test_a_response_that_cannot_be_read_tells_nothing():
    asked, answered = metadata()
    broken = answer(asked, answered.data[:-3])
    later = fetch(3)
    _, exchange = pair([asked, broken, later, fetched(later)])
    assert exchange.topics == [ORDERS_TEXT]


@pytest.mark.parametrize(
    ("body", "groups", "transactional_ids", "topics"),
    [
        (messages.FindCoordinatorRequest(key="g", key_type=0), ["g"], [], []),
        (messages.FindCoordinatorRequest(key="t", key_type=1), [], ["t"], []),
        (messages.FindCoordinatorRequest(coordinator_keys=["g", "h"]), ["g", "h"], [], []),
        (messages.AddOffsetsToTxnRequest(transactional_id="t", group_id="g"), ["g"], ["t"], []),
        (messages.ReadShareGroupStateRequest(group_id="g"), ["g"], [], []),
        (
            messages.DescribeConfigsRequest(
                resources=[
                    messages.DescribeConfigsRequest.DescribeConfigsResource(
                        resource_type=kind, resource_name=name
                    )
                    for kind, name in ((2, "orders"), (4, "1"), (32, "g"))
                ]
            ),
            ["g"],
            [],
            ["orders"],
        ),
        (
            messages.DescribeAclsRequest(resource_type_filter=5, resource_name_filter="t"),
            [],
            ["t"],
            [],
        ),
        (messages.HeartbeatRequest(group_id=""), [], [], []),
    ],
)
def test_names_that_the_field_beside_them_explains(body, groups, transactional_ids, topics):
    assert told(body).groups == groups
    assert told(body).transactional_ids == transactional_ids
    assert told(body).topics == topics


def test_what_consumers_embed_counts():
    written: list[bytes] = [b"\0\1"]
    subscription = messages.ConsumerProtocolSubscription(topics=["orders"])
    codec.encoder(schema.named("ConsumerProtocolSubscription"), 1)(subscription, written.append)
    protocol = messages.JoinGroupRequest.JoinGroupRequestProtocol
    join = messages.JoinGroupRequest(
        group_id="g",
        protocol_type="consumer",
        protocols=[protocol(name="range", metadata=b"".join(written))],
    )
    assert told(join).topics == ["orders"]
    join.protocol_type = "connect"
    assert told(join).topics == []


NO_PARTITION = {
    "num_partitions",
    "partition_epoch",
    "partition_max_bytes",
    "response_partition_limit",
}
"""int32 fields that have to do with partitions without naming one."""


def test_no_api_has_partitions_that_are_not_seen():
    for key in schema.api_names():
        for direction in (schema.REQUEST, schema.RESPONSE):
            message = schema.message(key, direction)
            seen = {place.path for place in select(message, PREDICATES[PARTITION]).places}
            for place in select(message, _may_be_partition).places:
                name = place.fields[-1].name
                counts = place.path.endswith("_topics.partitions")  # of a Streams topology
                assert place.path in seen or name in NO_PARTITION or counts, (
                    f"{message.name} {place.path}"
                )


def _may_be_partition(field, beside):
    return field.element == "int32" and ("partition" in field.name or field.name == "index")
