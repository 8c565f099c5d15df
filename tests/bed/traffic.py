"""Real traffic for the tests of tables and of Spark: clients work through kproxy, which breaks and
rotates.

librdkafka, aiokafka ─▶ kproxy run --fault … --rotate ─▶ mock cluster       rotated files
librdkafka ─ SASL ────▶ kproxy run ───────────────────▶ Kafka                with redactions
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka

from tests.bed import programs, proxies
from tests.bed.waiting import until

RULES = (
    "name=late api=JoinGroup error=COORDINATOR_LOAD_IN_PROGRESS times=2",
    "name=cut api=Fetch phase=after disconnect=true skip=20 times=1",
    "name=slow api=Fetch client_id=billing latency=30ms probability=0.2",
    "name=away api=OffsetCommit error=NOT_COORDINATOR times=1",
)


def broken(cluster: str, folder: Path, prefix: str) -> Path:
    """Record faults and several clients, in several files; return the folder."""
    options = [part for rule in RULES for part in ("--fault", rule)]
    with proxies.running(cluster, folder, *options, "--seed", "7", "--rotate", "64KiB,1h") as proxy:
        _produce(proxy.bootstrap, prefix)
        _consume(proxy.bootstrap, prefix, 400)
        for name in ("confluent-kafka", "aiokafka"):
            client = programs.named(name)
            programs.work(client, proxy.bootstrap, f"{prefix}{name}", client.steps["mock"])

        def rotated() -> bool:  # a busy machine writes more at once, so in fewer files
            if len(list(folder.glob("*.mcap"))) > 2:
                return True
            _produce(proxy.bootstrap, prefix)
            return False

        until(rotated, "it is rotated")
    return folder


@contextlib.contextmanager
def flowing(bootstrap: str, topic: str) -> Iterator[None]:
    """Have a producer work for as long as it takes."""
    done = threading.Event()

    def produce() -> None:
        producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
        while not done.wait(0.003):  # others want the machine, too
            producer.produce(topic, value=os.urandom(500))
            producer.flush(10)

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _produce(bootstrap: str, prefix: str) -> None:
    settings = {"bootstrap.servers": bootstrap, "client.id": "shop", "linger.ms": 0}
    producer = confluent_kafka.Producer(settings | {"log_level": 2})
    failed: list[object] = []
    for number in range(400):
        headers = [("trace", str(number).encode()), ("empty", None)]
        producer.produce(
            f"{prefix}orders",
            key=f"key-{number % 7}",
            value=f"{number} " + "x" * (number % 97) * 10,
            headers=headers,
            on_delivery=lambda error, _: failed.append(error) if error else None,
        )
        producer.flush(10)
    assert failed == []


def _consume(bootstrap: str, prefix: str, count: int) -> None:
    settings = {
        "bootstrap.servers": bootstrap, "client.id": "billing", "group.id": f"{prefix}billing",
        "auto.offset.reset": "earliest", "enable.auto.commit": False, "log_level": 2,
        "fetch.wait.max.ms": 10,
    }  # fmt: skip
    consumer = confluent_kafka.Consumer(settings)
    consumer.subscribe([f"{prefix}orders"])
    found = 0
    while found < count:
        message = consumer.poll(10)
        assert message is not None, f"{found} of {count} records arrived"
        if message.error() is None:
            found += 1
            if found % 100 == 0:
                _commit(consumer)
    consumer.close()


def _commit(consumer: confluent_kafka.Consumer) -> None:
    try:
        consumer.commit(asynchronous=False)
    except confluent_kafka.KafkaException:  # a fault: the coordinator has moved
        consumer.commit(asynchronous=False)
