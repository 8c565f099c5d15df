"""The verbs with kafka-python."""

from __future__ import annotations

import gc
import time
import warnings
from collections.abc import Sequence

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaError
from kafka.structs import OffsetAndMetadata

from tests.bed.actors.naming import name
from tests.bed.actors.verbs import PATIENCE_SECONDS, Consumed, Produced

_QUICK = {"retry_backoff_ms": 50, "reconnect_backoff_ms": 50, "reconnect_backoff_max_ms": 500}


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
    producer = KafkaProducer(
        bootstrap_servers=bootstrap,
        enable_idempotence=idempotent,
        acks="all",
        request_timeout_ms=request_timeout_ms,
        delivery_timeout_ms=PATIENCE_SECONDS * 1000,
        linger_ms=0 if one_by_one else 5,
        **_QUICK,
    )
    done = Produced()

    def wait(topic: str, value: str, sent, started: float) -> None:
        try:
            told = sent.get(PATIENCE_SECONDS)
        except KafkaError as error:
            done.errors[f"{topic}/{value}"] = name(error)
            return
        done.delivered.append(value)
        done.partitions.append(told.partition)
        done.seconds.append(time.monotonic() - started)

    pending = []
    for number, value in enumerate(values):
        for topic in topics:
            started = time.monotonic()
            try:
                sent = producer.send(topic, value.encode(), partition=number % partitions)
            except KafkaError as error:
                done.errors[f"{topic}/{value}"] = name(error)
                continue
            pending.append((topic, value, sent, started))
            if one_by_one:
                wait(*pending.pop())
    for each in pending:
        wait(*each)
    metrics = producer.metrics()["producer-metrics"]
    longest = metrics.get("produce-throttle-time-max", 0)
    done.throttled_ms = max(0, longest) if longest == longest else 0
    producer.close(timeout=5)
    return done


def consume(
    bootstrap: str,
    topic: str,
    count: int,
    group: str | None = None,
    fetch_bytes: int = 1 << 20,
) -> Consumed:
    """Read so many records of a topic, from its first one on; as a group: and commit them."""
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=6000,
        heartbeat_interval_ms=200,
        max_partition_fetch_bytes=fetch_bytes,
        **_QUICK,
    )
    try:
        return _consume(consumer, topic, count, group)
    finally:
        consumer.close(autocommit=False)
        del consumer
        with warnings.catch_warnings():  # it leaves sockets of lost connections open
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()


def _consume(consumer: KafkaConsumer, topic: str, count: int, group: str | None) -> Consumed:
    partition = TopicPartition(topic, 0)
    if group is None:
        consumer.assign([partition])
        consumer.seek_to_beginning(partition)
    else:
        consumer.partitions_for_topic(topic)  # a leader that knows none assigns none
        consumer.subscribe([topic])
    found = Consumed()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while len(set(found.values)) < count and time.monotonic() < deadline:
        try:
            batches = consumer.poll(timeout_ms=100)
        except KafkaError as error:
            found.errors.append(name(error))
            break
        for message in [each for batch in batches.values() for each in batch]:
            found.values.append((message.value or b"").decode())
            found.at.append(time.monotonic())
    if group is not None:
        found.committed = _commit(consumer, partition, count, deadline)
    return found


def _commit(
    consumer: KafkaConsumer, partition: TopicPartition, offset: int, deadline: float
) -> int:
    """Commit, again where the coordinator or the generation has changed, as users do."""
    while True:
        try:
            consumer.commit({partition: OffsetAndMetadata(offset, "", -1)})
            return consumer.committed(partition) or 0
        except (KafkaError, AssertionError):
            if time.monotonic() > deadline:
                raise
            consumer.poll(timeout_ms=100)
