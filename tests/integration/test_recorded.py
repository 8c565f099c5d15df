"""What clients make of faults and transactions, with recordings for brokers: without a cluster.

They were recorded before a broker of Apache Kafka (`pytest --kproxy-mode=rewrite` on this file does
it again); `tests/testing/test_own_recordings.py` compares them with what one does today.
"""

from __future__ import annotations

import contextlib

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient

from kproxy.testing.broker import Broker
from tests.bed.actors import ACTORS, judge
from tests.bed.actors.verbs import PATIENCE_SECONDS, Actor

VALUES = [str(number) for number in range(20)]


@pytest.fixture(params=ACTORS)
def actor(request: pytest.FixtureRequest) -> Actor:
    """Each of the clients."""
    return ACTORS[request.param]


@pytest.fixture
def topic(kproxy: Broker, request: pytest.FixtureRequest) -> str:
    """A topic with one partition, new also to a broker that has seen this test before."""
    name = request.node.name.removeprefix("test_").replace("[", "-").strip("]")
    if kproxy.mode != "replay":
        admin = AdminClient({"bootstrap.servers": request.getfixturevalue("kproxy_broker")})
        topics, groups = admin.delete_topics([name]), admin.delete_consumer_groups([name])
        for each in (topics[name], groups[name]):
            with contextlib.suppress(KafkaException):  # there is none
                each.result(PATIENCE_SECONDS)
    judge.create(kproxy.bootstrap, name)
    return name


def apis_after(kproxy: Broker, wanted: str) -> list[str | None]:
    """The APIs that were asked for after the first exchange that a filter means."""
    first = kproxy.exchanges(wanted)[0].number
    return [each.api for each in kproxy.exchanges() if each.number > first]


def test_a_leader_that_moves_is_looked_for(actor: Actor, kproxy: Broker, topic: str) -> None:
    error = "NOT_LEADER_OR_FOLLOWER"
    with kproxy.fault(api="Produce", topic=topic, error=error, skip=3, times=2) as fault:
        done = actor.produce(kproxy.bootstrap, [topic], VALUES, one_by_one=True)
    assert done.delivered == VALUES and not done.errors
    assert judge.values(kproxy.bootstrap, topic) == VALUES, "nothing is lost, nothing comes twice"
    assert fault.fired == 2
    assert "Metadata" in apis_after(kproxy, f"api:Produce error:{error}")


@pytest.mark.parametrize("actor", ["aiokafka", "kafka-python"], indirect=True)
def test_a_coordinator_that_moves_is_looked_for(actor: Actor, kproxy: Broker, topic: str) -> None:
    judge.fill(kproxy.bootstrap, topic, VALUES)
    error = "NOT_COORDINATOR"
    with kproxy.fault(api="OffsetCommit", group=topic, error=error, times=2) as fault:
        found = actor.consume(kproxy.bootstrap, topic, len(VALUES), group=topic)
    assert found.values == VALUES and found.committed == len(VALUES)
    assert judge.committed(kproxy.bootstrap, topic, topic) == len(VALUES)
    assert fault.fired == 2
    assert "FindCoordinator" in apis_after(kproxy, f"api:OffsetCommit error:{error}")


def test_what_is_aborted_is_not_read(kproxy: Broker, topic: str) -> None:
    settings = {"bootstrap.servers": kproxy.bootstrap, "transactional.id": topic}
    producer = Producer(settings)
    producer.init_transactions(PATIENCE_SECONDS)
    for number, end in enumerate([producer.commit_transaction, producer.abort_transaction] * 2):
        producer.begin_transaction()
        producer.produce(topic, str(number), key="k", partition=0)
        assert producer.flush(PATIENCE_SECONDS) == 0
        end(PATIENCE_SECONDS)
    assert judge.values(kproxy.bootstrap, topic) == ["0", "2"]
    assert [each.value for each in kproxy.produced(topic)] == [b"0", b"1", b"2", b"3"]
    assert [each.value for each in kproxy.consumed(topic)] == [b"0", b"2"]
