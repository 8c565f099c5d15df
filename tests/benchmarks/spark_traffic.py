"""A recording for the benchmark of Spark, of real clients on librdkafka's mock cluster.

Small batches, small compressed ones and large ones of records of 1 KB at once, and clients that
come, ask and go.
"""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path
from typing import Any

import confluent_kafka

from tests.bed import mock_cluster, proxies

_PRODUCERS: dict[str, dict[str, Any]] = {
    "even": {"linger.ms": 1, "batch.num.messages": 20},
    "zstd": {"linger.ms": 1, "batch.num.messages": 20, "compression.type": "zstd"},
    "wide": {"linger.ms": 50, "batch.num.messages": 10_000, "compression.type": "lz4"},
}
_NOISE = random.Random(1).randbytes(1 << 19).hex()
"""Parts of it are the notes of wide orders, of about 1 KB: no two within a batch are alike."""


def record(folder: Path, size: int, rotate: str) -> None:
    """Make a recording of about that many bytes in all its files."""
    with mock_cluster.running() as cluster:
        with proxies.running(cluster, folder, "--quiet", "--rotate", rotate) as proxy:
            done = threading.Event()
            works = [(each, name) for each in (_produce, _consume) for name in _PRODUCERS]
            works.append((_visit, "cron"))
            threads = [
                threading.Thread(target=work, args=(proxy.bootstrap, name, done))
                for work, name in works
            ]
            for each in threads:
                each.start()
            try:
                while sum(each.stat().st_size for each in folder.glob("*.mcap")) < size:
                    time.sleep(0.1)
            finally:
                done.set()
                for each in threads:
                    each.join()


def _produce(bootstrap: str, name: str, done: threading.Event) -> None:
    settings = {"bootstrap.servers": bootstrap, "client.id": f"shop-{name}", "log_level": 2}
    producer = confluent_kafka.Producer({**settings, **_PRODUCERS[name]})
    count = 0
    while not done.is_set():
        count += 1
        at = count * 7919 % (len(_NOISE) - 1200)
        note = _NOISE[at : at + 600 + at % 600] if name == "wide" else "x" * (count % 90)
        value = f'{{"order": {count}, "state": "new", "note": "{note}"}}'
        try:
            producer.produce(f"orders-{name}", key=f"customer-{count % 1000}", value=value)
        except BufferError:
            producer.poll(0.05)
        producer.poll(0)
    producer.flush(10)


def _consume(bootstrap: str, name: str, done: threading.Event) -> None:
    settings = {
        "bootstrap.servers": bootstrap, "client.id": f"billing-{name}", "group.id": name,
        "auto.offset.reset": "earliest", "fetch.wait.max.ms": 10, "log_level": 2,
        "fetch.message.max.bytes": 16_384,
    }  # fmt: skip
    consumer = confluent_kafka.Consumer(settings)
    consumer.subscribe([f"orders-{name}"])
    while not done.is_set():
        consumer.consume(1000, 0.1)
    consumer.close()


def _visit(bootstrap: str, name: str, done: threading.Event) -> None:
    """Come, ask for the topics, and go, again and again."""
    count = 0
    while not done.wait(0.05):
        count += 1
        settings = {"bootstrap.servers": bootstrap, "client.id": f"{name}-{count}", "log_level": 2}
        confluent_kafka.Consumer({**settings, "group.id": name}).list_topics(timeout=10)
