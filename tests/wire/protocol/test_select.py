"""Fields chosen by the schema: their paths, and what bodies have there."""

from __future__ import annotations

from kproxy.wire.protocol import messages, schema
from kproxy.wire.protocol.schema import Field
from kproxy.wire.protocol.select import Found, select

PRODUCE = messages.ProduceRequest
TOPIC = PRODUCE.TopicProduceData
PARTITION = PRODUCE.PartitionProduceData


def is_topic(field: Field, beside: tuple[Field, ...]) -> bool:
    """Chooses by Kafka's entity type."""
    return field.entity == "topicName"


def is_records(field: Field, beside: tuple[Field, ...]) -> bool:
    """Chooses by type."""
    return field.type == "records"


def is_port_of_a_node(field: Field, beside: tuple[Field, ...]) -> bool:
    """Chooses by what is beside it."""
    return field.name == "port" and any(other.name == "node_id" for other in beside)


def nothing(field: Field, beside: tuple[Field, ...]) -> bool:
    """Chooses nothing."""
    return False


def orders():
    return PRODUCE(
        topic_data=[
            TOPIC(name="a", partition_data=[PARTITION(index=0, records=b"x"), PARTITION(index=1)]),
            TOPIC(name="b", partition_data=[PARTITION(index=7, records=b"y")]),
        ]
    )


def test_values_come_in_order_and_null_gives_none():
    message = schema.named("ProduceRequest")
    assert select(message, is_topic).values(orders()) == ["a", "b"]
    assert select(message, is_records).values(orders()) == [b"x", b"y"]
    assert select(message, nothing).values(orders()) == []


def test_a_value_comes_with_its_path_and_the_structs_around_it():
    body = orders()
    found = select(schema.named("ProduceRequest"), is_records).found(body)
    second = body.topic_data[1]
    path = "topic_data.partition_data.records"
    assert found[-1] == Found(path, b"y", (body, second, second.partition_data[0]))


def test_a_choice_may_look_at_what_is_beside():
    message = schema.named("FindCoordinatorResponse")
    assert select(message, is_port_of_a_node).paths(3) == ("port",)
    assert select(message, is_port_of_a_node).paths(4) == ("coordinators.port",)
