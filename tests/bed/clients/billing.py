"""Makes invoices of orders (orders.py) with aiokafka.

`billing.py once|atleast PREFIX [CHANGE]`. once: invoices and offsets are in a transaction for each
batch; atleast: offsets are committed behind invoices. SIGTERM ends it.
"""

from __future__ import annotations

import asyncio
import datetime
import json
import os
import signal
import sys
import uuid
from collections.abc import Sequence
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord, TopicPartition

guarantee, prefix, change = sys.argv[1], sys.argv[2], "".join(sys.argv[3:])
GROUP = f"{prefix}billing"
NO_OFFSETS = ("commit-first", "no-commit")


async def bill(producer: AIOKafkaProducer, read: ConsumerRecord) -> None:
    order = json.loads(read.value)
    made: dict[str, Any] = {"key": read.key, "value": read.value, "headers": list(read.headers)}
    if order["total"] < 0 and change != "topic":
        await producer.send_and_wait(f"{prefix}rejected", **made)
        return
    at = datetime.datetime.now(datetime.UTC).isoformat()
    invoice = {"id": str(uuid.uuid4()), "order": order["id"], "at": at, "total": order["total"]}
    made["value"] = json.dumps(invoice).encode()
    changed = change if order["customer"] == "c0" else ""
    made |= {"wrong-key": {"key": b"c0x"}, "header-missing": {"headers": []}}.get(changed, {})
    for _ in range({"drop": 0, "double": 2}.get(changed, 1)):
        await producer.send_and_wait(f"{prefix}invoices", **made)


async def bill_once(
    producer: AIOKafkaProducer, offsets: dict[TopicPartition, int], read: Sequence[ConsumerRecord]
) -> None:
    await producer.begin_transaction()
    for each in read:
        await bill(producer, each)
    if change not in NO_OFFSETS:
        await producer.send_offsets_to_transaction(offsets, GROUP)
    is_aborted = change == "abort" and any(each.key == b"c0" for each in read)
    await (producer.abort_transaction() if is_aborted else producer.commit_transaction())


async def work(
    consumer: AIOKafkaConsumer, producer: AIOKafkaProducer, ended: asyncio.Event
) -> None:
    while not ended.is_set():
        for partition, read in (await consumer.getmany(timeout_ms=200)).items():
            offsets = {partition: read[-1].offset + 1}
            if change == "commit-first":
                await consumer.commit(offsets)
            if guarantee == "once":
                await bill_once(producer, offsets, read)
                continue
            for each in read:
                await bill(producer, each)
            if change not in NO_OFFSETS:
                await consumer.commit(offsets)


async def main() -> None:
    settings: dict[str, Any] = {"bootstrap_servers": os.environ["KAFKA_BOOTSTRAP_SERVERS"]}
    settings["client_id"] = "billing"
    transactional = {"transactional_id": GROUP} if guarantee == "once" else {}
    how = {"isolation_level": "read_committed", "auto_offset_reset": "earliest"}
    consumer = AIOKafkaConsumer(
        f"{prefix}orders", group_id=GROUP, enable_auto_commit=False, **how, **settings
    )
    async with consumer, AIOKafkaProducer(**transactional, **settings) as producer:
        ended = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
        await work(consumer, producer, ended)


asyncio.run(main())
