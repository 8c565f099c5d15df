"""The verbs with aiokafka."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError

from tests.bed.actors.naming import name
from tests.bed.actors.verbs import PATIENCE_SECONDS, Consumed, Produced


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

    async def run() -> Produced:
        producer = AIOKafkaProducer(
            bootstrap_servers=bootstrap,
            enable_idempotence=idempotent,
            acks="all",
            request_timeout_ms=request_timeout_ms,
            retry_backoff_ms=50,
        )
        await producer.start()
        done = Produced()

        async def one(topic: str, value: str, number: int) -> None:
            started = time.monotonic()
            try:
                sent = await producer.send(topic, value.encode(), partition=number % partitions)
                told = await sent
            except KafkaError as error:
                done.errors[f"{topic}/{value}"] = name(error)
                return
            done.delivered.append(value)
            done.partitions.append(told.partition)
            done.seconds.append(time.monotonic() - started)

        pending = [(topic, v, n) for n, v in enumerate(values) for topic in topics]
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                if one_by_one:
                    for each in pending:
                        await one(*each)
                else:
                    await asyncio.gather(*(one(*each) for each in pending))
        finally:
            await producer.stop()
        return done

    return asyncio.run(run())


def consume(
    bootstrap: str,
    topic: str,
    count: int,
    group: str | None = None,
    fetch_bytes: int = 1 << 20,
) -> Consumed:
    """Read so many records of a topic, from its first one on; as a group: and commit them."""

    async def run() -> Consumed:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=6000,
            heartbeat_interval_ms=200,
            retry_backoff_ms=50,
            max_partition_fetch_bytes=fetch_bytes,
        )
        if group is None:
            consumer.assign([TopicPartition(topic, 0)])
        else:
            consumer.subscribe([topic])
        await consumer.start()
        found = Consumed()
        deadline = time.monotonic() + PATIENCE_SECONDS
        try:
            if group is None:
                await consumer.seek_to_beginning(TopicPartition(topic, 0))
            while len(set(found.values)) < count and time.monotonic() < deadline:
                try:
                    batches = await consumer.getmany(timeout_ms=100)
                except KafkaError as error:
                    found.errors.append(name(error))
                    break
                for message in [each for batch in batches.values() for each in batch]:
                    found.values.append((message.value or b"").decode())
                    found.at.append(time.monotonic())
            if group is not None:
                found.committed = await _commit(consumer, TopicPartition(topic, 0), count, deadline)
        finally:
            await consumer.stop()
        return found

    return asyncio.run(run())


async def _commit(
    consumer: AIOKafkaConsumer, partition: TopicPartition, offset: int, deadline: float
) -> int:
    """Commit, again where the coordinator or the generation has changed, as users do."""
    while True:
        try:
            await consumer.commit({partition: offset})
            return await consumer.committed(partition) or 0
        except (KafkaError, ValueError):  # the latter while the partition is not assigned
            if time.monotonic() > deadline:
                raise
            await consumer.getmany(timeout_ms=100)
