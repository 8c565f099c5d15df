"""What the broker has in the end, asked past the proxy."""

from __future__ import annotations

from collections.abc import Sequence

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic

from tests.bed.actors.verbs import PATIENCE_SECONDS

_QUIET = {"log_level": 0}


def create(cluster: str, topic: str, partitions: int = 1) -> None:
    """Create a topic."""
    admin = AdminClient({"bootstrap.servers": cluster, **_QUIET})
    (created,) = admin.create_topics([NewTopic(topic, partitions, 1)]).values()
    created.result(PATIENCE_SECONDS)


def fill(cluster: str, topic: str, values: Sequence[str]) -> None:
    """Write values to partition 0 of a topic, each in a batch of its own."""
    one_each = {"linger.ms": 0, "batch.num.messages": 1, "enable.idempotence": True}
    producer = Producer({"bootstrap.servers": cluster, **_QUIET, **one_each})
    for value in values:
        producer.produce(topic, value, partition=0)
    assert producer.flush(PATIENCE_SECONDS) == 0


def values(cluster: str, topic: str) -> list[str]:
    """All values in partition 0 of a topic that are no part of an aborted transaction."""
    own = {"group.id": "judge", "enable.partition.eof": True, "isolation.level": "read_committed"}
    consumer = Consumer({"bootstrap.servers": cluster, **_QUIET, **own})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[str] = []
    while True:
        message = consumer.poll(PATIENCE_SECONDS)
        assert message is not None, f"{topic} cannot be read"
        if message.error() is None:
            found.append(message.value().decode())
        elif message.error().code() == KafkaError._PARTITION_EOF:
            break
    consumer.close()
    return found


def read_to_end(cluster: str, *topics: str) -> None:
    """Read partition 0 of topics from its first record to its last."""
    own = {"group.id": "judge", "enable.partition.eof": True}
    consumer = Consumer({"bootstrap.servers": cluster, **_QUIET, **own})
    consumer.assign([TopicPartition(each, 0, 0) for each in topics])
    ended: set[str] = set()
    while len(ended) < len(topics):
        message = consumer.poll(PATIENCE_SECONDS)
        assert message is not None, f"{topics} cannot be read"
        if message.error() is not None:
            assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
            ended.add(message.topic())
    consumer.close()


def committed(cluster: str, group: str, topic: str) -> int:
    """What a group has committed of partition 0 of a topic."""
    admin = AdminClient({"bootstrap.servers": cluster, **_QUIET})
    asked = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0)])
    (told,) = admin.list_consumer_group_offsets([asked]).values()
    return told.result(PATIENCE_SECONDS).topic_partitions[0].offset


def leaders(cluster: str, topic: str) -> dict[int, int]:
    """Which broker leads each partition of a topic; the topic is made if it is not there."""
    admin = AdminClient({"bootstrap.servers": cluster, **_QUIET})
    found = admin.list_topics(topic, timeout=PATIENCE_SECONDS).topics[topic].partitions
    return {number: partition.leader for number, partition in found.items()}
