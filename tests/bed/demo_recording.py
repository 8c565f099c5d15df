"""Makes recordings/demo.mcap: the clients of `kproxy demo`, recorded before three real brokers.

    python -m tests.bed.demo_recording

It needs Java and Maven, and replaces the file. To be run again when the format of recordings or
the clients of the demo have changed.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
from pathlib import Path

from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from kproxy import demo, recording
from tests.bed import kafka, needs, proxies

BROKERS = 3
PARTITIONS = 4
_VERSION = kafka.VERSIONS[0]


def main() -> None:
    """Start the brokers, record the clients, put the recording in its place."""
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        brokers: list[kafka.Kafka] = []
        for node_id in range(1, BROKERS + 1):
            controller = brokers[0] if brokers else None
            broker = kafka.Kafka(_VERSION, folder / str(node_id), node_id, controller=controller)
            stack.callback(broker.kill)
            broker.start()
            brokers.append(broker)
        prepare(brokers[0].address)
        with proxies.running(brokers[0].address, folder / "proxy") as proxy:
            delivered = demo.produce(proxy.bootstrap)
            consumed = demo.consume(proxy.bootstrap)
        assert delivered == len(consumed) == demo.RECORDS
        recording.verify(proxy.recording)
        target = needs.REPOSITORY / "recordings" / "demo.mcap"
        target.write_bytes(proxy.recording.read_bytes())
        print(f"{target}: {target.stat().st_size} bytes")


def prepare(bootstrap: str) -> None:
    """Create the topic, its leaders on different brokers, and what groups need."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    leaders = [[1 + partition % BROKERS] for partition in range(PARTITIONS)]
    topic = NewTopic(demo.TOPIC, PARTITIONS, replica_assignment=leaders)
    for each in admin.create_topics([topic]).values():
        each.result(30)
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "warm-up"})
    consumer.subscribe([demo.TOPIC])
    for _ in range(100):
        consumer.poll(0.1)
        if consumer.assignment():
            break
    else:
        sys.exit("no group could be formed")
    consumer.close()


if __name__ == "__main__":
    main()
