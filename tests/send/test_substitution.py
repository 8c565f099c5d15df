"""What a cluster decides is put into requests, wherever the schema says that it stands."""

from __future__ import annotations

import copy
import re
import struct
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kproxy.exchange.entities import TopicNames
from kproxy.exchange.meanings import GROUP, PREDICATES, TRANSACTIONAL_ID
from kproxy.send.substitution import Offsets, Renaming, Substitution
from kproxy.wire.protocol import codec, consumer_protocol, messages, schema
from kproxy.wire.protocol.record_batch import Record
from kproxy.wire.protocol.records import batches, encode_batch
from kproxy.wire.protocol.select import select, select_of
from tests.versions import versions
from tests.wire.protocol.making import encoded
from tests.wire.protocol.strategies import bodies

REQUESTS = [
    name
    for name in schema.message_names()
    if schema.named(name).direction == schema.REQUEST and "broker" in schema.named(name).listeners
]
NAMES = TopicNames()


def names_in(body, predicate) -> list[str]:
    """The values of fields, those of lists one by one."""
    return select_of(type(body), predicate).values(body)


def is_topic(field, beside) -> bool:
    """The name of a topic."""
    return field.entity == "topicName"


def is_leader_epoch(field, beside) -> bool:
    """What is always put in: not known."""
    return field.name.endswith("leader_epoch") or field.name == "last_fetched_epoch"


@given(st.sampled_from(REQUESTS), st.data())
def test_nothing_changes_that_is_not_known_to_be_otherwise(name: str, data) -> None:
    message = schema.named(name)
    version = data.draw(st.sampled_from(versions(message)))
    body = data.draw(bodies(message, version))
    before = copy.deepcopy(body)
    Substitution().translate(body, NAMES)
    for _, _, within in select(message, is_leader_epoch).found(before):
        for field in type(within[-1]).__slots__:
            if field.endswith("leader_epoch") or field == "last_fetched_epoch":
                setattr(within[-1], field, -1)
    assert encoded(message, version, body) == encoded(message, version, before)


@given(st.sampled_from(REQUESTS), st.data())
def test_a_prefix_is_before_all_names(name: str, data) -> None:
    message = schema.named(name)
    version = data.draw(st.sampled_from(versions(message)))
    body = data.draw(bodies(message, version))
    before = copy.deepcopy(body)
    Substitution(Renaming("t-", "g-", "-1")).translate(body, NAMES)
    for predicate, change in (
        (is_topic, "t-{}"),
        (PREDICATES[GROUP], "g-{}-1"),
        (PREDICATES[TRANSACTIONAL_ID], "g-{}-1"),
    ):
        expected = [each and change.format(each) for each in names_in(before, predicate)]
        assert names_in(body, predicate) == expected


def test_the_producer_stands_in_batches_too_with_a_right_checksum() -> None:
    substitution = Substitution()
    kind = messages.InitProducerIdResponse
    told = kind(producer_id=7, producer_epoch=2), kind(producer_id=90, producer_epoch=5)
    substitution.learn(messages.InitProducerIdRequest(), told[0], None, told[1], NAMES)
    records = [Record(0, 1, b"k", b"v" * 100), Record(1, 1, None, b"w")]
    data = encode_batch(records, producer_id=7, producer_epoch=2, base_sequence=3) * 2
    other = encode_batch(records, producer_id=8, producer_epoch=2, base_sequence=3)
    request = messages.ProduceRequest
    body = request(
        topic_data=[
            request.TopicProduceData(
                name="t",
                partition_data=[request.PartitionProduceData(index=0, records=data + other)],
            )
        ]
    )
    substitution.translate(body, NAMES)
    found = batches(body.topic_data[0].partition_data[0].records)
    producers = [(each.producer_id, each.producer_epoch, each.base_sequence) for each in found]
    assert producers == [(90, 5, 3), (90, 5, 3), (8, 2, 3)]
    assert all(each.crc_ok and list(each.records) == records for each in found)


def test_subscriptions_and_assignments_name_the_topics_that_are_there() -> None:
    kind = messages.ConsumerProtocolAssignment
    assigned = kind(assigned_partitions=[kind.TopicPartition(topic="orders", partitions=[1, 2])])
    parts = [struct.pack(">h", 1)]
    codec.encoder(schema.named("ConsumerProtocolAssignment"), 1)(assigned, parts.append)
    request = messages.SyncGroupRequest
    body = request(
        group_id="g",
        protocol_type="consumer",
        assignments=[request.SyncGroupRequestAssignment(member_id="m", assignment=b"".join(parts))],
    )
    Substitution(Renaming("try-")).translate(body, NAMES)
    data = body.assignments[0].assignment
    found = consumer_protocol.read("ConsumerProtocolAssignment", data).value
    assert [(each.topic, each.partitions) for each in found.assigned_partitions] == [
        ("try-orders", [1, 2])
    ]


@pytest.mark.parametrize("regex", ["orders-.*", "^or[^x^]*$|^bar", r"ord\^|[\]^]a|orders", ""])
def test_a_prefix_is_before_what_regular_expressions_match(regex: str) -> None:
    body = messages.ConsumerGroupHeartbeatRequest(subscribed_topic_regex=regex)
    Substitution(Renaming("try.")).translate(body, NAMES)
    for name in ("orders-1", "orders", "bar", "foobar", "ord^", "^a", "]a"):
        assert bool(re.fullmatch(body.subscribed_topic_regex, f"try.{name}")) == bool(
            re.fullmatch(regex, name)
        )
        assert not re.fullmatch(body.subscribed_topic_regex, name)


def test_a_topic_has_its_name_and_its_id_where_a_version_has_either() -> None:
    names, ids = TopicNames(), {"try-orders": uuid.uuid4()}
    recorded = uuid.uuid4()
    names.learn_name(recorded.bytes, "orders")
    substitution = Substitution(Renaming("try-"), ids)
    kind = messages.ProduceRequest
    by_id = kind(topic_data=[kind.TopicProduceData(topic_id=recorded)])
    by_name = kind(topic_data=[kind.TopicProduceData(name="orders")])
    for body in (by_id, by_name):
        assert substitution.topics(body, names) == {"try-orders"}
        substitution.translate(body, names)
        found = body.topic_data[0]
        assert (found.name, found.topic_id) == ("try-orders", ids["try-orders"])
    deleting = messages.DeleteTopicsRequest  # which refuses both at once
    body = deleting(topics=[deleting.DeleteTopicState(name="orders")])
    substitution.translate(body, names)
    assert (body.topics[0].name, body.topics[0].topic_id) == ("try-orders", schema.NO_UUID)


def test_a_member_is_called_as_the_new_group_calls_it() -> None:
    substitution = Substitution()
    kind = messages.JoinGroupResponse
    then = kind(member_id="c-1", generation_id=4), kind(member_id="c-9", generation_id=1)
    request = messages.JoinGroupRequest(group_id="g", member_id="")
    substitution.learn(request, then[0], request, then[1], NAMES)
    commit = messages.OffsetCommitRequest(member_id="c-1", generation_id_or_member_epoch=4)
    substitution.translate(commit, NAMES)
    assert (commit.member_id, commit.generation_id_or_member_epoch) == ("c-9", 1)
    stranger = messages.HeartbeatRequest(member_id="who", generation_id=4)
    substitution.translate(stranger, NAMES)
    assert (stranger.member_id, stranger.generation_id) == ("who", 4)


@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(0, 3)), min_size=1, max_size=20),
    st.integers(0, 50),
)
def test_offsets_of_produced_records_are_found_again(sizes, first: int) -> None:
    """Batches of some records each; before each one others have written some."""
    offsets, recorded, new, expected = Offsets(), first, 0, {}
    for size, others in sizes:
        new += others
        offsets.learn(recorded, new)
        expected |= {recorded + each: new + each for each in range(size)}
        recorded, new = recorded + size, new + size
    assert {each: offsets(each) for each in expected} == expected
    assert offsets(recorded) == new and offsets(-1) == -1


def test_a_topic_whose_name_was_never_told_is_asked_for_by_its_id_alone() -> None:
    kind = messages.DeleteTopicsRequest
    body = kind(topics=[kind.DeleteTopicState(name=None, topic_id=uuid.uuid4())])
    before = copy.deepcopy(body)
    Substitution(Renaming("t-")).translate(body, NAMES)
    assert body == before
