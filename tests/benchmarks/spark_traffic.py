"""Recordings for the benchmark of Spark.

Producers and consumers work through kproxy on librdkafka's mock cluster, until a recording has its
size.

`even`: four clients, each as fast as it can. `skewed`: one producer has one partition, and with it
one connection, and makes four fifths of all exchanges. `zstd`: the batches are compressed. `tiny`:
a batch has one record. `huge`: batches are as large as brokers take; `lz4`: those, compressed.
`calm`: a producer that pauses. `mixed`: small batches, small compressed ones and large ones of
records of 1 KB at once, and clients that come, ask and go.
"""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka

from tests.bed import mock_cluster, proxies

KINDS = ("even", "skewed", "zstd")
BATCHES = ("tiny", "huge", "lz4")
"""These differ in nothing but their batches."""
_RECORDS = {"tiny": 1, "huge": 10_000, "lz4": 10_000, "wide": 10_000}
"""In a batch; 20 in others."""
_NOISE = random.Random(1).randbytes(1 << 19).hex()
"""Parts of it are the notes of wide orders, of about 1 KB: no two within a batch are alike."""


def record(kind: str, folder: Path, size: int, rotate: str = "off") -> Path:
    """Make a recording of a kind, of about that many bytes in all its files; return the first."""
    options = ("--quiet", "--rotate", rotate)
    with mock_cluster.running() as cluster:
        with proxies.running(cluster, folder, *options) as proxy:
            with working(proxy.bootstrap, kind):
                while sum(each.stat().st_size for each in folder.glob("*.mcap")) < size:
                    time.sleep(0.1)
    return proxy.recording


def copies(recording: Path, folder: Path, count: int) -> list[str]:
    """Name a recording so many times: as large as so many, and each read from the page cache."""
    folder.mkdir(exist_ok=True)
    paths = [folder / f"copy-{number}.mcap" for number in range(count)]
    for path in paths:
        if not path.exists():
            os.link(recording, path)
    return list(map(str, paths))


@contextlib.contextmanager
def working(bootstrap: str, kind: str) -> Iterator[None]:
    """Let clients work meanwhile."""
    done = threading.Event()
    if kind == "skewed":
        work = [
            threading.Thread(target=_produce, args=(bootstrap, "one", kind, done)),
            threading.Thread(target=_produce, args=(bootstrap, "few", kind, done, 0.02)),
        ]
    elif kind == "calm":
        work = [threading.Thread(target=_produce, args=(bootstrap, "calm", kind, done, 0.02))]
    elif kind == "mixed":
        work = [
            threading.Thread(target=each, args=(bootstrap, name, name, done))
            for each in (_produce, _consume)
            for name in ("even", "zstd", "wide")
        ]
        work.append(threading.Thread(target=_visit, args=(bootstrap, done)))
    else:
        work = [
            threading.Thread(target=each, args=(bootstrap, name, kind, done))
            for each in (_produce, _consume)
            for name in ("a", "b")
        ]
    for each in work:
        each.start()
    try:
        yield
    finally:
        done.set()
        for each in work:
            each.join()


def _produce(
    bootstrap: str, name: str, kind: str, done: threading.Event, pause_seconds: float = 0
) -> None:
    settings = {
        "bootstrap.servers": bootstrap, "client.id": f"shop-{name}",
        "linger.ms": 50 if _RECORDS.get(kind, 0) > 20 else 1,
        "batch.num.messages": _RECORDS.get(kind, 20), "log_level": 2,
        "compression.type": {"zstd": "zstd", "lz4": "lz4", "wide": "lz4"}.get(kind, "none"),
    }  # fmt: skip
    producer = confluent_kafka.Producer(settings)
    where = {"partition": 0} if kind == "skewed" and not pause_seconds else {}
    count = 0
    while not done.wait(pause_seconds) if pause_seconds else not done.is_set():
        for _ in range(20 if pause_seconds else 1):
            count += 1
            at = count * 7919 % (len(_NOISE) - 1200)
            note = _NOISE[at : at + 600 + at % 600] if kind == "wide" else "x" * (count % 90)
            value = f'{{"order": {count}, "state": "new", "note": "{note}"}}'
            key = f"customer-{count % 1000}"
            try:
                producer.produce(f"orders-{name}", key=key, value=value, **where)
            except BufferError:
                producer.poll(0.05)
        producer.poll(0)
    producer.flush(10)


def _consume(bootstrap: str, name: str, kind: str, done: threading.Event) -> None:
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


def _visit(bootstrap: str, done: threading.Event) -> None:
    """Come, ask for the topics, and go, again and again."""
    count = 0
    while not done.wait(0.05):
        count += 1
        settings = {"bootstrap.servers": bootstrap, "client.id": f"cron-{count}", "log_level": 2}
        confluent_kafka.Consumer({**settings, "group.id": "cron"}).list_topics(timeout=10)
