"""What replay costs: its start, a consumer's test, records per second; beside a real broker.

    python -m tests.benchmarks.replay [--rounds 3] [--records 1000000] [--mebibytes 2048]
                                      [--only start|test|rate|large]

* start: from the call in Python to a listening port, imports apart, each time in a new process,
  for `recordings/demo.mcap`; beside it Kafka 4.3.1 from Maven artifacts, from its command to its
  port (its data folder is formatted before, and does not count).
* test: a consumer of each kind reads 100 records in a group: from its making to the last record,
  and until it is closed.
* rate: consumer-perf (the jar kafka-tools) reads the same records from that broker and from a
  recording of it, in turn; the best round counts. CPU time is that of broker or kproxy.
* large: a recording of that size in MiB (--mebibytes) opened for the first time, and again.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from tests.bed import needs, proxies, replays
from tests.benchmarks import kafka_perf
from tests.benchmarks.kafka_perf import Bed, Broker
from tests.benchmarks.proxies import cpu_seconds, resident_mib

DEMO = needs.REPOSITORY / "recordings" / "demo.mcap"
TEST_RECORDS = 100
_START = """
import sys, time
import trio
from kproxy.net.replaying import replay
from kproxy.replay.broker import ReplayBroker
from kproxy.replay.opening import Wanted, open_recorded
from kproxy.replay.report import Report
from kproxy.replay.settings import ReplaySettings

async def main(machine):
    stop = trio.Event()
    def ready(address):
        print(time.perf_counter() - started)
        stop.set()
    await replay(machine, "127.0.0.1", 0, None, ready, print, stop)

started = time.perf_counter()
recorded = open_recorded(sys.argv[1:], Wanted())
opened = time.perf_counter() - started
trio.run(main, ReplayBroker(recorded.loaded, ReplaySettings(), Report()))
print(opened)
"""


def starts(path: Path, environment: dict[str, str] | None = None) -> tuple[float, float]:
    """Milliseconds from the call to a listening port in a new process; those of opening alone."""
    command = [sys.executable, "-c", _START, str(path)]
    env = os.environ | (environment or {})
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
    listening, opened = done.stdout.split()
    return float(listening) * 1000, float(opened) * 1000


def measure_start(bed: Bed, options: argparse.Namespace) -> None:
    """A replay's start beside a broker's."""
    took = [starts(DEMO)[0] for _ in range(10 * options.rounds)]
    brokers = []
    for _ in range(options.rounds):
        bed.broker.stop()
        started = time.monotonic()
        bed.broker.start(bed.broker.port)
        brokers.append((time.monotonic() - started) * 1000)
    kafka, kproxy = statistics.median(brokers), statistics.median(took)
    print("\nstart, from the call to a listening port")
    print(f"  Kafka {kafka_perf.VERSION}    {kafka:7.0f} ms")
    print(f"  kproxy replay  {kproxy:7.1f} ms (least {min(took):.1f})   {kafka / kproxy:.0f}x")


# A consumer's test


def confluent(bootstrap: str, topic: str, group: str, protocol: str) -> tuple[float, float]:
    """Seconds that confluent-kafka takes to read, and to close."""
    started = time.perf_counter()
    settings = {"auto.offset.reset": "earliest", "group.protocol": protocol}
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, **settings})
    consumer.subscribe([topic])
    left = TEST_RECORDS
    while left:
        left -= len(consumer.consume(left, 0.05))
    read = time.perf_counter() - started
    consumer.close()
    return read, time.perf_counter() - started - read


def kafka_python(bootstrap: str, topic: str, group: str) -> tuple[float, float]:
    """The same for kafka-python."""
    from kafka import KafkaConsumer

    started = time.perf_counter()
    settings = {"bootstrap_servers": bootstrap, "group_id": group}
    consumer = KafkaConsumer(topic, auto_offset_reset="earliest", **settings)
    left = TEST_RECORDS
    while left > 0:
        left -= sum(map(len, consumer.poll(timeout_ms=1000).values()))
    read = time.perf_counter() - started
    consumer.close()
    return read, time.perf_counter() - started - read


def aiokafka(bootstrap: str, topic: str, group: str) -> tuple[float, float]:
    """The same for aiokafka."""
    from aiokafka import AIOKafkaConsumer

    async def consume() -> tuple[float, float]:
        started = time.perf_counter()
        settings = {"bootstrap_servers": bootstrap, "group_id": group}
        consumer = AIOKafkaConsumer(topic, auto_offset_reset="earliest", **settings)
        await consumer.start()
        left = TEST_RECORDS
        while left > 0:
            left -= sum(map(len, (await consumer.getmany(timeout_ms=1000)).values()))
        read = time.perf_counter() - started
        await consumer.stop()
        return read, time.perf_counter() - started - read

    return asyncio.run(consume())


def perf(bed: Bed, bootstrap: str, topic: str, records: int) -> list[str]:
    """What consumer-perf says of reading these records."""
    line = kafka_perf.consumer(bed, int(bootstrap.rpartition(":")[2]), topic, records, -1)
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    return done.stdout.strip().splitlines()[-1].split(", ")


CLIENTS: dict[str, Callable[[str, str, str], tuple[float, float]]] = {
    "confluent-kafka, classic": lambda *where: confluent(*where, "classic"),
    "confluent-kafka, consumer": lambda *where: confluent(*where, "consumer"),
    "kafka-python": kafka_python,
    "aiokafka": aiokafka,
}


def produce(bootstrap: str, topic: str, count: int) -> None:
    """Produce small records."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
    for number in range(count):
        producer.produce(topic, key=str(number), value=f"value {number}")
    assert producer.flush(30) == 0


def measure_test(bed: Bed, options: argparse.Namespace) -> None:
    """Reading 100 records, by each client, from a broker and from its recording."""
    topic = kafka_perf.create(bed)
    with proxies.running(bed.broker.address, bed.folder / "test") as proxy:
        produce(proxy.bootstrap, topic, TEST_RECORDS)
        confluent(proxy.bootstrap, topic, "recorded", "classic")
    print(f"\ntest, {TEST_RECORDS} records read in a group (and the consumer closed), ms")
    with replays.running(proxy.recording, bed.folder / "test") as replay:
        for name, read in CLIENTS.items():
            for where, bootstrap in (("Kafka", bed.broker.address), ("replay", replay.bootstrap)):
                took = [
                    read(bootstrap, topic, f"{name} {where} {each}")
                    for each in range(options.rounds + 1)
                ][1:]  # the first time what it needs is imported
                least, closed = min(took)
                print(f"  {name:26} {where:6} {least * 1000:6.0f} (+{closed * 1000:.0f})")
        for where, bootstrap in (("Kafka", bed.broker.address), ("replay", replay.bootstrap)):
            fields = perf(bed, bootstrap, topic, TEST_RECORDS)
            print(f"  {'consumer-perf (Java)':26} {where:6} {int(fields[6]) + int(fields[7]):6}")


# Records per second


@contextlib.contextmanager
def serving(bed: Bed, recording: Path) -> Iterator[tuple[int, int]]:
    """The recording as a broker: its port, and its process."""
    with replays.running(recording, bed.folder / "rate") as replay:
        yield int(replay.bootstrap.rpartition(":")[2]), replay.process.pid


def measure_rate(bed: Bed, options: argparse.Namespace) -> None:
    """consumer-perf, from the broker and from its recording in turn."""
    topic, records = kafka_perf.create(bed), options.records
    line = kafka_perf.producer(bed, bed.broker.port, topic, records, -1)
    subprocess.run(line, capture_output=True, check=True)
    with proxies.running(bed.broker.address, bed.folder / "rate", "--rotate", "off") as proxy:
        perf(bed, proxy.bootstrap, topic, records)
    assert bed.broker.process
    ways = {
        "Kafka": lambda: contextlib.nullcontext((bed.broker.port, bed.broker.process.pid)),
        "kproxy replay": lambda: serving(bed, proxy.recording),
    }
    print(f"\nrate, {records} records of {kafka_perf.RECORD_BYTES} bytes by consumer-perf")
    found: dict[str, list[tuple[float, float, float]]] = {}
    for _ in range(options.rounds):
        for way, start in ways.items():
            with start() as (port, pid):
                before = cpu_seconds(pid)
                fields = perf(bed, f"127.0.0.1:{port}", topic, records)
                used = cpu_seconds(pid) - before
                each = float(fields[9]), used, resident_mib(pid)
                found.setdefault(way, []).append(each)
    best = max(each for each, _, _ in found["Kafka"])
    gigabytes = records * kafka_perf.RECORD_BYTES / 1e9
    for way, figures in found.items():
        rate, used, resident = max(figures)
        print(
            f"  {way:14} {rate:9.0f} records/s {rate / best:5.2f}x"
            f"  {used / gigabytes:.2f} CPU s/GB  {resident:4.0f} MiB"
            f"  ({' '.join(f'{each:.0f}' for each, _, _ in figures)})"
        )
    kafka_perf.delete(bed, topic)
    proxy.recording.unlink()


# A large recording


def measure_large(bed: Bed, options: argparse.Namespace) -> None:
    """The first start of a large recording, and the second."""
    topic = kafka_perf.create(bed)
    records = options.mebibytes * (1 << 20) // kafka_perf.RECORD_BYTES
    with proxies.running(bed.broker.address, bed.folder / "large", "--rotate", "off") as proxy:
        line = kafka_perf.producer(bed, proxy.port, topic, records, -1)
        subprocess.run(line, capture_output=True, check=True)
    size = proxy.recording.stat().st_size >> 20
    print(f"\nlarge, a recording of {size} MiB: opened, and listening, ms")
    cache = {"XDG_CACHE_HOME": str(bed.folder / "cache")}
    for name in ("the first time", "again"):
        listening, opened = starts(proxy.recording, cache)
        print(f"  {name:15} {opened:9.1f} {listening:9.1f}")
    print(f"  {'the demo':15} {starts(DEMO)[1]:9.1f} {starts(DEMO)[0]:9.1f}")
    kafka_perf.delete(bed, topic)
    proxy.recording.unlink()


MEASURED = {
    "start": measure_start,
    "test": measure_test,
    "rate": measure_rate,
    "large": measure_large,
}


def main() -> None:
    """Parse what was typed, start the broker, run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--mebibytes", type=int, default=2048)
    parser.add_argument("--only", choices=list(MEASURED))
    parser.add_argument("--folder", default=None, help="where data and recordings go meanwhile")
    options = parser.parse_args()
    os.environ.update(kafka_perf.HOTSPOT)
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        payload = folder / "records.txt"
        payload.write_text(kafka_perf.json_lines(2000))
        broker = Broker(kafka_perf.VERSION, folder / "broker")
        try:
            broker.start()
            admin = AdminClient({"bootstrap.servers": broker.address, "log_level": 2})
            bed = Bed(broker, admin, payload, folder)
            for only, measured in MEASURED.items():
                if options.only in (None, only):
                    measured(bed, options)
        finally:
            broker.kill()


if __name__ == "__main__":
    main()
