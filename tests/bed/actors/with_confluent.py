"""The verbs with confluent-kafka (librdkafka)."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

import confluent_kafka
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.bed.actors.verbs import PATIENCE_SECONDS, Consumed, Produced

_QUICK = {
    "log_level": 0,
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 500,
    "retry.backoff.ms": 50,
}


def produce(
    bootstrap: str,
    topics: Sequence[str],
    values: Sequence[str],
    idempotent: bool = True,
    request_timeout_ms: int = 10_000,
    one_by_one: bool = False,
    partitions: int = 1,
) -> Produced:
    """Produce the values to each topic; wait for each of them, or for all in the end."""
    done = Produced()

    def statistics(text: str) -> None:
        windows = [each["throttle"]["max"] for each in json.loads(text)["brokers"].values()]
        done.throttled_ms = max([done.throttled_ms, *windows])

    own: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        "enable.idempotence": idempotent,
        "socket.timeout.ms": request_timeout_ms,
        "linger.ms": 0 if one_by_one else 5,
        "statistics.interval.ms": 100,
        "stats_cb": statistics,
    }
    producer = Producer(_QUICK | own)
    for number, value in enumerate(values):
        for topic in topics:
            started = time.monotonic()

            def told(error: Any, message: Any, value: str = value, started: float = started):
                if error:
                    done.errors[f"{message.topic()}/{value}"] = error.name()
                    return
                done.delivered.append(value)
                done.partitions.append(message.partition())
                done.seconds.append(time.monotonic() - started)

            producer.produce(topic, value, partition=number % partitions, on_delivery=told)
            if one_by_one:
                producer.flush(PATIENCE_SECONDS)
    producer.flush(PATIENCE_SECONDS)
    producer.poll(0.2)  # one more of the statistics
    return done


def consume(
    bootstrap: str,
    topic: str,
    count: int,
    group: str | None = None,
    fetch_bytes: int = 1 << 20,
) -> Consumed:
    """Read so many records of a topic, from its first one on; as a group: and commit them."""
    own = {
        "bootstrap.servers": bootstrap,
        "group.id": group or "none",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "session.timeout.ms": 6000,
        "heartbeat.interval.ms": 200,
        "fetch.message.max.bytes": fetch_bytes,
        "fetch.error.backoff.ms": 50,
        "fetch.queue.backoff.ms": 1,
        "queued.min.messages": 1 if fetch_bytes == 1 else 1000,
    }
    consumer = Consumer(_QUICK | own)
    if group is None:
        consumer.assign([TopicPartition(topic, 0, 0)])
    else:
        consumer.subscribe([topic])
    found = Consumed()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while len(set(found.values)) < count and time.monotonic() < deadline:
        message = consumer.poll(0.1)
        if message is None:
            continue
        if message.error():
            found.errors.append(message.error().name())
            if message.error().code() == confluent_kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED:
                break
            continue
        found.values.append(message.value().decode())
        found.at.append(time.monotonic())
    if group is not None:
        found.committed = _commit(consumer, TopicPartition(topic, 0, count), deadline)
    consumer.close()
    return found


def _commit(consumer: Consumer, offset: TopicPartition, deadline: float) -> int:
    """Commit, again where the coordinator or the generation has changed, as users do."""
    while True:
        try:
            consumer.commit(offsets=[offset], asynchronous=False)
            break
        except confluent_kafka.KafkaException:
            if time.monotonic() > deadline:
                raise
            consumer.poll(0.1)
    (committed,) = consumer.committed([TopicPartition(offset.topic, 0)], timeout=10)
    return committed.offset
