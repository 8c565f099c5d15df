"""The clients of the soak: a producer and a group of two consumers of one library, again and again.

    python -m tests.benchmarks.soak_clients LIBRARY BOOTSTRAP SETTINGS   (`soak` starts one each)

Every client lives for a while, is closed in order, and is made anew. A record's value begins with
its number; the number of each record that the broker has acknowledged goes into the file
FOLDER/LIBRARY.acked, that of each record that a consumer was given into FOLDER/LIBRARY.seen, 8
bytes each. The producer writes to a topic that the consumers of all libraries read.

On stdin `finish` ends the producer, and the end of the input the consumers. On stdout there is a
line of JSON per error, `{"time", "who", "error", "known"}` (known: it happens without kproxy, too),
and `{"finished": true}` when the producer has flushed and closed.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import attrs

TICK_SECONDS = 0.05
"""How often records are sent: those that are due by then."""
POLL_SECONDS = 0.5
DELIVERY_SECONDS = 120
"""Longer than a broker takes to come back."""
STOP_SECONDS = 20
"""How long a client may take to end, where it can be given up."""
COMPRESSIONS = ["none", "lz4", "zstd", "gzip", "snappy"]
"""Of the first producer, of the second …"""
NUMBER = struct.Struct(">Q")


@attrs.frozen
class Settings:
    """What a library's clients are to do."""

    topic: str
    folder: str
    library_number: int
    """Which of the libraries this is: the upper bits of its records' numbers."""
    records_per_second: float
    record_bytes: int
    life_seconds: float
    """How long a client lives."""


class Run:
    """What the clients of a library share: which record is next, what is acknowledged and seen."""

    def __init__(self, library: str, bootstrap: str, settings: Settings) -> None:
        self.library = library
        self.bootstrap = bootstrap
        self.settings = settings
        self.producing_ends = threading.Event()
        self.consuming_ends = threading.Event()
        self.compressions = itertools.cycle(COMPRESSIONS)
        self._next = settings.library_number << 40
        self._credit = 0.0
        self._asked = time.monotonic()
        line = b'{"user": "u%06d", "state": "shipped", "amount": 17.25}\n'
        self._filling = b"".join(line % number for number in range(1000))
        self._files = {
            what: (Path(settings.folder) / f"{library}.{what}").open("ab")
            for what in ("acked", "seen")
        }

    def due(self) -> list[int]:
        """The numbers of the records to send now; after a pause not more than a second's."""
        now, rate = time.monotonic(), self.settings.records_per_second
        self._credit = min(self._credit + (now - self._asked) * rate, rate)
        self._asked = now
        count = int(self._credit)
        self._credit -= count
        first, self._next = self._next, self._next + count
        return list(range(first, self._next))

    def value(self, number: int) -> bytes:
        """A record's value."""
        start = number * 53 % 10_000
        length = self.settings.record_bytes - NUMBER.size
        return NUMBER.pack(number) + self._filling[start : start + length]

    def acked(self, number: int, error: object = None) -> None:
        """Note that a record was acknowledged, or was not."""
        if error is None:
            self._note("acked", [number])
        else:
            self.report("producer", error)

    def seen(self, values: Iterable[bytes]) -> None:
        """Note what a consumer was given."""
        self._note("seen", [NUMBER.unpack_from(value)[0] for value in values])

    def _note(self, what: str, numbers: list[int]) -> None:
        file = self._files[what]
        file.write(b"".join(map(NUMBER.pack, numbers)))
        file.flush()

    def report(self, who: str, error: object, known: bool = False) -> None:
        """Say that something went wrong."""
        text = f"{type(error).__name__}: {error}" if isinstance(error, Exception) else str(error)
        said = {"who": f"{self.library} {who}", "error": text[:300], "known": known}
        self._say({"time": time.time(), **said})

    def finished(self) -> None:
        """Say that all that will be acknowledged is."""
        self._say({"finished": True})

    def _say(self, what: dict[str, Any]) -> None:
        os.write(sys.stdout.fileno(), f"{json.dumps(what)}\n".encode())  # whole, from any thread


# One life of each client, until a deadline, or until its kind is to end


def produce_confluent(run: Run, deadline: float) -> None:
    """confluent-kafka (librdkafka)."""
    from confluent_kafka import Producer

    producer = Producer(
        {
            "bootstrap.servers": run.bootstrap,
            "enable.idempotence": True,
            "compression.codec": next(run.compressions),
            "message.timeout.ms": DELIVERY_SECONDS * 1000,
            "error_cb": lambda error: run.report("producer", error),
        }
    )
    while time.monotonic() < deadline and not run.producing_ends.wait(TICK_SECONDS):
        for number in run.due():
            producer.produce(
                run.settings.topic,
                run.value(number),
                on_delivery=lambda error, _, number=number: run.acked(number, error),
            )
        producer.poll(0)
    if producer.flush(DELIVERY_SECONDS):
        raise RuntimeError("not everything was delivered")


def consume_confluent(run: Run, deadline: float) -> None:
    """confluent-kafka, by the protocol of KIP-848."""
    from confluent_kafka import Consumer

    consumer = Consumer(
        {
            "bootstrap.servers": run.bootstrap,
            "group.id": f"soak-{run.library}",
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
            "error_cb": lambda error: run.report("consumer", error),
        }
    )
    consumer.subscribe([run.settings.topic])
    try:
        while time.monotonic() < deadline and not run.consuming_ends.is_set():
            messages = consumer.consume(500, POLL_SECONDS)
            for message in messages:
                if message.error():
                    run.report("consumer", message.error())
            run.seen(message.value() for message in messages if not message.error())
    finally:
        consumer.close()


def produce_kafka_python(run: Run, deadline: float) -> None:
    """kafka-python."""
    from kafka import KafkaProducer

    compression = next(run.compressions)
    producer = KafkaProducer(
        bootstrap_servers=run.bootstrap,
        enable_idempotence=True,
        compression_type=None if compression == "none" else compression,
        delivery_timeout_ms=DELIVERY_SECONDS * 1000,
        max_block_ms=DELIVERY_SECONDS * 1000,
    )
    try:
        while time.monotonic() < deadline and not run.producing_ends.wait(TICK_SECONDS):
            for number in run.due():
                sent = producer.send(run.settings.topic, run.value(number))
                sent.add_callback(lambda _, number=number: run.acked(number))
                sent.add_errback(lambda error, number=number: run.acked(number, error))
        producer.flush(DELIVERY_SECONDS)
    finally:
        producer.close(timeout=DELIVERY_SECONDS)


def consume_kafka_python(run: Run, deadline: float) -> None:
    """kafka-python, in a classic group."""
    from kafka import KafkaConsumer

    consumer = KafkaConsumer(
        run.settings.topic,
        bootstrap_servers=run.bootstrap,
        group_id=f"soak-{run.library}",
        auto_offset_reset="earliest",
    )
    try:
        while time.monotonic() < deadline and not run.consuming_ends.is_set():
            for records in consumer.poll(timeout_ms=int(POLL_SECONDS * 1000)).values():
                run.seen(record.value for record in records)
    finally:
        consumer.close()


def produce_aiokafka(run: Run, deadline: float) -> None:
    """aiokafka."""
    import aiokafka

    async def live() -> None:
        compression = next(run.compressions)
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=run.bootstrap,
            enable_idempotence=True,
            compression_type=None if compression == "none" else compression,
            request_timeout_ms=DELIVERY_SECONDS * 1000,
        )
        await producer.start()

        def done(future: asyncio.Future, number: int) -> None:
            run.acked(number, "cancelled" if future.cancelled() else future.exception())

        try:
            while time.monotonic() < deadline and not run.producing_ends.is_set():
                for number in run.due():
                    sent = await producer.send(run.settings.topic, run.value(number))
                    sent.add_done_callback(lambda future, number=number: done(future, number))
                await asyncio.sleep(TICK_SECONDS)
        finally:
            await producer.stop()

    asyncio.run(live())


def consume_aiokafka(run: Run, deadline: float) -> None:
    """aiokafka, in a classic group."""
    import aiokafka

    async def live() -> None:
        consumer = aiokafka.AIOKafkaConsumer(
            run.settings.topic,
            bootstrap_servers=run.bootstrap,
            group_id=f"soak-{run.library}",
            auto_offset_reset="earliest",
        )
        try:
            await consumer.start()
            while time.monotonic() < deadline and not run.consuming_ends.is_set():
                batches = await consumer.getmany(timeout_ms=int(POLL_SECONDS * 1000))
                for records in batches.values():
                    run.seen(record.value for record in records)
        finally:
            # It waits for itself now and then when the broker has restarted, with or without a
            # proxy (aiokafka 0.14).
            try:
                await asyncio.wait_for(consumer.stop(), STOP_SECONDS)
            except TimeoutError:
                run.report("consumer", "stop() does not return", known=True)

    asyncio.run(live())


Life = Callable[[Run, float], None]

LIBRARIES: dict[str, tuple[Life, Life]] = {
    "confluent-kafka": (produce_confluent, consume_confluent),
    "kafka-python": (produce_kafka_python, consume_kafka_python),
    "aiokafka": (produce_aiokafka, consume_aiokafka),
}
"""By name: how a producer lives, and how a consumer does."""


def lives(run: Run, who: str, life: Life, seconds: float, ends: threading.Event) -> None:
    """Live again and again."""
    while not ends.is_set():
        try:
            life(run, time.monotonic() + seconds)
        except Exception as error:
            run.report(who, error)
            ends.wait(1)


class Reporting(logging.Handler):
    """Reports what a library logs as an error."""

    def __init__(self, run: Run) -> None:
        super().__init__(logging.ERROR)
        self._run = run

    def emit(self, record: logging.LogRecord) -> None:
        """Report one record."""
        self._run.report("log", record.getMessage())


def main() -> None:
    """Run the clients of the library on the command line until the input ends."""
    library, bootstrap, settings = sys.argv[1], sys.argv[2], Settings(**json.loads(sys.argv[3]))
    run = Run(library, bootstrap, settings)
    logging.getLogger().addHandler(Reporting(run))
    produce, consume = LIBRARIES[library]
    seconds = settings.life_seconds
    plan = [
        ("producer", produce, seconds, run.producing_ends),
        # At different times, so that the group changes more often.
        ("consumer", consume, seconds * 1.3, run.consuming_ends),
        ("consumer", consume, seconds * 1.9, run.consuming_ends),
    ]
    threads = [threading.Thread(target=lives, args=(run, *each)) for each in plan]
    for thread in threads:
        thread.start()
    for line in sys.stdin:
        if line.strip() == "finish":
            run.producing_ends.set()
            threads[0].join()
            run.finished()
    run.producing_ends.set()
    run.consuming_ends.set()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
