"""Brokers that are down, die, come back and move: clients see what they would see without kproxy.

Each test has a proxy and clients of its own; they share one broker that may be stopped and killed.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient

from tests.bed import kafka, proxies, recorded
from tests.bed.waiting import free_ports, until

pytestmark = [pytest.mark.broker, pytest.mark.java]

PATIENCE_SECONDS = 60


@pytest.fixture(scope="module")
def mortals(bed_folder: Path) -> Iterator[kafka.Kafka]:
    """The broker behind `mortal`, which the first that needs it starts."""
    broker = kafka.Kafka("4.3.1", bed_folder / "mortal")
    yield broker
    broker.kill()


@pytest.fixture
def mortal(mortals: kafka.Kafka) -> kafka.Kafka:
    """A running broker that the test may stop, kill and move."""
    if mortals.process is None:
        mortals.start()
    return mortals


def brokers_seen(bootstrap: str) -> dict[int, str]:
    """What a client's metadata says: address by node id."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    brokers = admin.list_topics(timeout=PATIENCE_SECONDS).brokers
    return {number: f"{each.host}:{each.port}" for number, each in brokers.items()}


class Producing:
    """A producer that keeps producing numbers until it is told to stop."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        settings = {"bootstrap.servers": bootstrap, "log_level": 0, "linger.ms": 1}
        backoff = {"reconnect.backoff.ms": 50, "reconnect.backoff.max.ms": 500}
        self.producer = confluent_kafka.Producer({**settings, **backoff})
        self.topic = topic
        self.sent = 0
        self.delivered: list[str] = []
        self.failures: list[str] = []
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self._run)

    def __enter__(self) -> Producing:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        self.thread.join()

    def goes_on(self) -> None:
        """Wait until something that was produced from now on is delivered."""
        first_new = str(self.sent + 1)
        until(lambda: first_new in self.delivered, "delivery goes on", PATIENCE_SECONDS)

    def finish(self) -> list[str]:
        """Stop, wait for all deliveries, and return what was delivered."""
        self.stopping.set()
        self.thread.join()
        assert self.producer.flush(PATIENCE_SECONDS) == 0, "not all was delivered"
        assert not self.failures
        return self.delivered

    def _run(self) -> None:
        while not self.stopping.wait(0.01):
            self.producer.produce(self.topic, str(self.sent), on_delivery=self._told)
            self.sent += 1
            self.producer.poll(0)

    def _told(self, error: object, message: confluent_kafka.Message) -> None:
        if error:
            self.failures.append(str(error))
        else:
            self.delivered.append(message.value().decode())


def everything_in(bootstrap: str, topic: str, count: int) -> list[str]:
    """The first `count` values of a topic with one partition."""
    settings = {"bootstrap.servers": bootstrap, "group.id": topic, "log_level": 0}
    consumer = confluent_kafka.Consumer({**settings, "auto.offset.reset": "earliest"})
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    values: list[str] = []

    def enough() -> bool:
        values.extend(each.value().decode() for each in consumer.consume(1000, timeout=0.5))
        return len(values) >= count

    try:
        until(enough, f"{count} records in {topic}", PATIENCE_SECONDS)
    finally:
        consumer.close()
    return values


def test_a_broker_that_is_down_at_first_is_waited_for(mortals: kafka.Kafka, tmp_path: Path) -> None:
    mortals.stop()
    (port,) = [mortals.port] if mortals.port else free_ports(1)
    with proxies.running(f"127.0.0.1:{port}", tmp_path) as proxy:
        line = proxy.says("no broker yet")
        assert f"127.0.0.1:{port}" in line and "refuses" in line
        mortals.start(port)
        assert list(brokers_seen(proxy.bootstrap)) == [1]
        proxy.says("answers now")
        assert proxy.log.count("no broker yet") == 1


def test_a_broker_that_is_killed_and_comes_back_loses_nothing(
    mortal: kafka.Kafka, prefix: str, tmp_path: Path
) -> None:
    with proxies.running(mortal.address, tmp_path) as proxy:
        with Producing(proxy.bootstrap, prefix) as producing:
            producing.goes_on()
            mortal.kill()
            mortal.start()
            producing.goes_on()
            delivered = producing.finish()
        values = everything_in(proxy.bootstrap, prefix, len(set(delivered)))
    # at least once: what was in flight when the broker died may be there twice
    assert set(values) == set(delivered) == {str(each) for each in range(len(set(delivered)))}
    found = recorded.exchanges(proxy.recording)
    assert recorded.count(found)["Produce"] > 2


def test_a_broker_that_moves_is_followed_under_the_same_address_of_ours(
    mortal: kafka.Kafka, prefix: str, tmp_path: Path
) -> None:
    (new_port,) = free_ports(1)
    bootstrap = f"{mortal.address},127.0.0.1:{new_port}"
    with proxies.running(bootstrap, tmp_path) as proxy:
        before = brokers_seen(proxy.bootstrap)
        with Producing(proxy.bootstrap, prefix) as producing:
            producing.goes_on()
            mortal.stop()
            mortal.start(port=new_port)
            producing.goes_on()
            delivered = producing.finish()
        assert brokers_seen(proxy.bootstrap) == before
        values = everything_in(proxy.bootstrap, prefix, len(delivered))
    assert set(values) == set(delivered)


def test_bootstrap_addresses_are_tried_in_turn(mortal: kafka.Kafka, tmp_path: Path) -> None:
    dead, also_dead = free_ports(2)
    bootstrap = f"127.0.0.1:{dead},127.0.0.1:{also_dead},{mortal.address}"
    with proxies.running(bootstrap, tmp_path) as proxy:
        assert list(brokers_seen(proxy.bootstrap)) == [1]
    assert "no broker yet" not in proxy.log


def test_one_broker_of_three_may_be_the_one_that_answers(mock_brokers: str, tmp_path: Path) -> None:
    (dead,) = free_ports(1)
    last = mock_brokers.rsplit(",", maxsplit=1)[-1]
    with proxies.running(f"127.0.0.1:{dead},{last}", tmp_path) as proxy:
        seen = brokers_seen(proxy.bootstrap)
        assert list(seen) == [1, 2, 3]
        # every broker of the cluster at an address of ours
        assert len({*seen.values(), *mock_brokers.split(",")}) == 6
