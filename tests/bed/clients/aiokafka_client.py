"""The job with aiokafka."""

from __future__ import annotations

import asyncio
import time

import aiokafka
import job
from aiokafka.abc import AbstractTokenProvider
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType


def settings(bootstrap: str, work: dict, **more) -> dict:
    """A client configuration for this job."""
    config = {"bootstrap_servers": bootstrap, **job.with_ssl_context(work["config"]), **more}
    if "oauth_token" in config:
        config["sasl_oauth_token_provider"] = Token(config.pop("oauth_token"))
    return config


class Token(AbstractTokenProvider):
    """A bearer token that is there already."""

    def __init__(self, token: str) -> None:
        self._token = token

    async def token(self) -> str:
        """The token."""
        return self._token


async def connect(bootstrap: str, work: dict) -> dict:
    """Ask for the brokers."""
    client = AIOKafkaAdminClient(**settings(bootstrap, work, request_timeout_ms=4000))
    try:
        await client.start()
        await client.describe_cluster()
    except aiokafka.errors.KafkaError as error:
        return {"saw": f"{type(error).__name__}: {error}"}
    finally:
        await client.close()
    return {"saw": None}


async def create(bootstrap: str, work: dict) -> dict:
    """Create the two topics."""
    prefix = work["prefix"]
    client = AIOKafkaAdminClient(**settings(bootstrap, work))
    await client.start()
    topics = [NewTopic(f"{prefix}-records", 2, 1), NewTopic(f"{prefix}-ledger", 1, 1)]
    answer = await client.create_topics(topics)
    await client.close()
    if any(error[1] for error in answer.topic_errors):
        raise RuntimeError(str(answer))
    return {}


async def produce(bootstrap: str, work: dict) -> dict:
    """Produce the records of every compression, each by a producer of its own."""
    produced = 0
    for compression in work["compressions"]:
        kind = None if compression == "none" else compression
        producer = aiokafka.AIOKafkaProducer(
            **settings(bootstrap, work, compression_type=kind, linger_ms=5)
        )
        await producer.start()
        pending = [
            await producer.send(
                f"{work['prefix']}-records",
                None if value is None else value.encode(),
                None if key is None else key.encode(),
                headers=[(name, text.encode()) for name, text in headers],
            )
            for key, value, headers in job.records(compression)
        ]
        produced += len(await asyncio.gather(*pending))
        await producer.stop()
    return {"produced": produced}


async def steady(bootstrap: str, work: dict) -> dict:
    """Produce for some seconds by one producer."""
    producer = aiokafka.AIOKafkaProducer(**settings(bootstrap, work))
    await producer.start()
    for number in range(job.STEADY_COUNT):
        await producer.send_and_wait(f"{work['prefix']}-records", str(number).encode())
        await asyncio.sleep(job.STEADY_PAUSE_SECONDS)
    await producer.stop()
    return {"produced": job.STEADY_COUNT}


async def group(bootstrap: str, work: dict) -> dict:
    """Read everything back as a classic group and commit."""
    consumer = aiokafka.AIOKafkaConsumer(
        f"{work['prefix']}-records",
        **settings(
            bootstrap,
            work,
            group_id=f"{work['prefix']}-classic",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            heartbeat_interval_ms=500,
        ),
    )
    await consumer.start()
    expected = sum(len(job.records(each)) for each in work["compressions"])
    found = []
    deadline = time.monotonic() + 30
    while len(found) < expected and time.monotonic() < deadline:
        for batch in (await consumer.getmany(timeout_ms=500)).values():
            found += [job.seen(each.key, each.value, each.headers) for each in batch]
    await consumer.commit()
    committed = [await consumer.committed(each) for each in consumer.assignment()]
    await consumer.stop()
    return {"records": found, "committed": sum(each or 0 for each in committed)}


async def transactions(bootstrap: str, work: dict) -> dict:
    """Commit, abort, commit with consumer offsets; read the committed values back."""
    topic = f"{work['prefix']}-ledger"
    own = {"transactional_id": f"{work['prefix']}-tx"}
    producer = aiokafka.AIOKafkaProducer(**settings(bootstrap, work, **own))
    await producer.start()
    async with producer.transaction():
        for value in job.KEPT[:2]:
            await producer.send_and_wait(topic, value.encode(), partition=0)
    await producer.begin_transaction()
    await producer.send_and_wait(topic, b"dropped", partition=0)
    await producer.abort_transaction()
    partition = aiokafka.TopicPartition(topic, 0)
    async with producer.transaction():
        await producer.send_and_wait(topic, job.KEPT[2].encode(), partition=0)
        await producer.send_offsets_to_transaction({partition: 1}, f"{work['prefix']}-eos")
    await producer.stop()
    reader = aiokafka.AIOKafkaConsumer(
        **settings(bootstrap, work, isolation_level="read_committed", enable_auto_commit=False)
    )
    await reader.start()
    reader.assign([partition])
    await reader.seek_to_beginning(partition)
    values: list = []
    deadline = time.monotonic() + 20
    while job.KEPT[2] not in values and time.monotonic() < deadline:
        for batch in (await reader.getmany(timeout_ms=500)).values():
            values += [job.text(each.value) for each in batch]
    await reader.stop()
    return {"values": values}


async def administer(bootstrap: str, work: dict) -> dict:
    """Everything that AIOKafkaAdminClient offers."""
    topic, group_id = f"{work['prefix']}-records", f"{work['prefix']}-classic"
    client = AIOKafkaAdminClient(**settings(bootstrap, work))
    await client.start()
    of_topic = ConfigResource(ConfigResourceType.TOPIC, topic)
    changed = ConfigResource(ConfigResourceType.TOPIC, topic, {"retention.ms": "3600000"})
    first = aiokafka.TopicPartition(topic, 0)
    calls = {
        "list_topics": client.list_topics,
        "describe_cluster": client.describe_cluster,
        "describe_topics": lambda: client.describe_topics([topic]),
        "create_partitions": lambda: client.create_partitions({topic: NewPartitions(3)}),
        "describe_configs": lambda: client.describe_configs([of_topic], include_synonyms=True),
        "alter_configs": lambda: client.alter_configs([changed]),
        "delete_records": lambda: client.delete_records({first: RecordsToDelete(-1)}),
        "find_coordinator": lambda: client.find_coordinator(group_id),
        "list_groups": client.list_consumer_groups,
        "describe_groups": lambda: client.describe_consumer_groups([group_id]),
        "group_offsets": lambda: client.list_consumer_group_offsets(group_id),
        "delete_topics": lambda: client.delete_topics([topic]),
    }
    results = {}
    for name, call in calls.items():
        try:
            await call()
            results[name] = "ok"
        except Exception as error:
            results[name] = f"{type(error).__name__}: {error}"
    await client.close()
    return {"calls": results}


def step(work):
    """A coroutine function as a plain step."""
    return lambda bootstrap, job_: asyncio.run(work(bootstrap, job_))


if __name__ == "__main__":
    job.main(
        f"aiokafka {aiokafka.__version__}",
        {
            "connect": step(connect),
            "create": step(create),
            "steady": step(steady),
            "produce": step(produce),
            "group": step(group),
            "transactions": step(transactions),
            "admin": step(administer),
        },
    )
