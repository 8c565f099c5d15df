"""A recording is the broker: every client gets from it what every other one has recorded.

Each client works once through kproxy before the real broker; afterwards nobody talks to that any
more. Where all is tested (see `tests.versions`), every pair of them meets, ten times.
"""

from __future__ import annotations

import itertools
import json
import threading
import time
from pathlib import Path
from typing import Any

import attrs
import pytest

from tests.bed import programs, proxies, replays
from tests.bed.clients.job import COMPRESSIONS, KEPT, records
from tests.bed.programs import Client
from tests.integration.conftest import Record
from tests.versions import ALL, some

pytestmark = pytest.mark.broker

TIMES = 10 if ALL else 1
NAMES = ["confluent-kafka", "aiokafka", "kafka-python", "java-4.4.0", "kafkajs"]
FEW = [("java-4.4.0", "kafkajs"), ("aiokafka", "confluent-kafka")]
"""Others read in `test_clients_log_in` what confluent-kafka recorded."""
MECHANISMS = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
FEW_LOGINS = [*zip(["kafka-python", "aiokafka", "kafkajs"], MECHANISMS, strict=True)]
WITHOUT_LZ4 = tuple(each for each in COMPRESSIONS if each != "lz4")
"""KafkaJS's codec package cannot read the LZ4 frames of aiokafka, not from a real broker either."""


def mark(name: str) -> list[Any]:
    """What the machine must have for a client."""
    marks = {"java": pytest.mark.java, "kafkajs": pytest.mark.node}
    family = name.partition("-")[0]
    return [marks[family]] if family in marks else []


def reading(client: Client) -> tuple[str, ...]:
    """The steps in which a client only reads."""
    return tuple(each for each in client.steps["4.3.1"] if each.startswith("group"))


def judge(results: dict[str, Any], compressions: tuple[str, ...]) -> None:
    """Every record was read, and every offset committed."""
    expected = sorted(json.dumps(each) for kind in compressions for each in records(kind))
    for step in ("group", "group848"):
        if step in results:
            assert sorted(map(json.dumps, results[step]["records"])) == expected
            assert results[step]["committed"] == len(expected)
    if "transactions" in results:
        assert results["transactions"]["values"] == KEPT


@pytest.mark.parametrize(
    ("recorder", "reader"),
    [
        pytest.param(recorder, reader, marks=[*mark(recorder), *mark(reader)])
        for recorder, reader in some([*itertools.product(NAMES, NAMES)], FEW)
    ],
)
def test_what_one_client_recorded_every_client_reads(
    recorder: str, reader: str, record: Record, tmp_path: Path
) -> None:
    odd = (recorder, reader) == ("aiokafka", "kafkajs")
    recorded = record(recorder, compressions=WITHOUT_LZ4 if odd else COMPRESSIONS)
    client = programs.named(reader)
    for _ in range(TIMES):
        with replays.running(recorded.path, tmp_path) as replay:
            results = programs.work(
                client,
                replay.bootstrap,
                recorded.prefix,
                reading(client),
                compressions=recorded.compressions,
            )
        judge(results, recorded.compressions)


@pytest.mark.parametrize("name", [pytest.param(name, marks=mark(name)) for name in NAMES])
def test_a_client_does_all_of_its_work_again(name: str, record: Record, tmp_path: Path) -> None:
    recorded = record(name)
    client = programs.named(name)
    with replays.running(recorded.path, tmp_path, "--visible", "causal") as replay:
        results = programs.work(client, replay.bootstrap, recorded.prefix, client.steps["4.3.1"])
    judge(results, recorded.compressions)
    failed = {call: how for call, how in results["admin"]["calls"].items() if how != "ok"}
    assert failed.keys() <= {"alterReplicaLogDirs", "unregisterBroker"}, failed


@pytest.mark.parametrize(
    ("name", "mechanism"),
    [
        pytest.param(name, mechanism, marks=mark(name))
        for name, mechanism in some([*itertools.product(NAMES, MECHANISMS)], FEW_LOGINS)
    ],
)
def test_clients_log_in(name: str, mechanism: str, record: Record, tmp_path: Path) -> None:
    recorded = record("confluent-kafka")
    client = programs.named(name)
    login = programs.Login(mechanism, "bob", "its-password")
    with replays.running(recorded.path, tmp_path, "--user", "bob:its-password") as replay:
        steps = ("group",)
        results = programs.work(client, replay.bootstrap, recorded.prefix, steps, login)
    judge(results, COMPRESSIONS)


def test_three_brokers_are_replayed_as_three(
    mock_brokers: str, prefix: str, tmp_path: Path
) -> None:
    client = programs.named("confluent-kafka")
    with proxies.running(mock_brokers, tmp_path / "run") as proxy:
        programs.work(client, proxy.bootstrap, prefix, ("produce", "group"))
    for reader in some(("confluent-kafka", "kafka-python", "aiokafka"), ["kafka-python"]):
        with replays.running(proxy.recording, tmp_path / reader) as replay:
            results = programs.work(programs.named(reader), replay.bootstrap, prefix, ("group",))
        judge(results, COMPRESSIONS)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_two_consumers_share_a_group(protocol: str, record: Record, tmp_path: Path) -> None:
    recorded = record("confluent-kafka")
    expected = sum(len(records(each)) for each in COMPRESSIONS)
    with replays.running(recorded.path, tmp_path) as replay:
        first, second = consume_with_two(replay.bootstrap, recorded.prefix, protocol, expected)
    assert first.assigned and second.assigned
    assert first.assigned.isdisjoint(second.assigned)
    assert len(first.read | second.read) == expected


@attrs.define(eq=False)
class Consuming:
    """What one of two consumers has."""

    assigned: set[int] = attrs.Factory(set)
    read: set[tuple[int, int]] = attrs.Factory(set)


def consume_with_two(
    bootstrap: str, prefix: str, protocol: str, expected: int
) -> tuple[Consuming, Consuming]:
    """Two consumers of one group, until both have partitions and everything is read."""
    from confluent_kafka import Consumer

    states = Consuming(), Consuming()
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": f"{prefix}-two",
        "group.protocol": protocol,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }

    def done() -> bool:
        first, second = states
        shared = first.assigned and second.assigned and first.assigned.isdisjoint(second.assigned)
        return bool(shared) and len(first.read | second.read) == expected

    def consume(state: Consuming) -> None:
        consumer = Consumer(settings)
        consumer.subscribe([f"{prefix}-records"])
        deadline = time.monotonic() + 30
        while not done() and time.monotonic() < deadline:
            message = consumer.poll(0.1)
            if message is not None and not message.error():
                state.read.add((message.partition(), message.offset()))
            if not done():
                state.assigned = {each.partition for each in consumer.assignment()}
        consumer.close()

    threads = [threading.Thread(target=consume, args=(state,)) for state in states]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return states


def test_a_client_that_does_something_else_fails_the_replay(record: Record, tmp_path: Path) -> None:
    from confluent_kafka import Producer

    recorded = record("confluent-kafka")
    with replays.running(recorded.path, tmp_path) as replay:
        replay.code = 1
        producer = Producer({"bootstrap.servers": replay.bootstrap})
        producer.produce(f"{recorded.prefix}-records", key="key-none", value="other", partition=0)
        assert producer.flush(20) == 0
    assert "not recorded:" in replay.log
    assert "has value 'other', recorded " in replay.log
