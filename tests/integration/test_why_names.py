"""`kproxy why` of what real clients did on a real broker: fenced, partitioned by two libraries."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from kafka import KafkaProducer

from kproxy.cli import main
from kproxy.exchange.partitioners import placements
from tests.bed.actors import judge
from tests.bed.experiment import running

pytestmark = pytest.mark.broker

PARTITIONS = 6
KEYS = [b"key-%d" % nth for nth in range(12)]


def transactional(bootstrap: str, name: str, client: str) -> Producer:
    settings = {"transactional.id": name, "client.id": client, "log_level": 0}
    producer = Producer({"bootstrap.servers": bootstrap, **settings})
    producer.init_transactions(20)
    return producer


def fence(bootstrap: str, topic: str) -> None:
    """Commit a transaction, begin another, and have a second producer take the id."""
    old = transactional(bootstrap, topic, "old")
    for _ in range(2):
        old.begin_transaction()
        old.produce(topic, b"paid", partition=0)
        assert old.flush(20) == 0
        if _ == 0:
            old.commit_transaction(20)
    new = transactional(bootstrap, topic, "new")
    with pytest.raises(KafkaException):
        old.commit_transaction(20)
    new.begin_transaction()
    new.produce(topic, b"paid again", partition=0)
    new.commit_transaction(20)


def write_keys(bootstrap: str, topic: str) -> None:
    c = Producer({"bootstrap.servers": bootstrap, "client.id": "c"})
    for key in KEYS:
        c.produce(topic, b"1", key)
    assert c.flush(20) == 0
    python = KafkaProducer(bootstrap_servers=bootstrap, client_id="python")
    for key in KEYS:
        python.send(topic, b"2", key)
    python.close(20)


def read_all(bootstrap: str, topic: str) -> None:
    settings = {"client.id": "reader", "group.id": topic, "auto.offset.reset": "earliest"}
    manual = {"enable.auto.commit": False, "isolation.level": "read_committed"}
    consumer = Consumer({"bootstrap.servers": bootstrap, **settings, **manual})
    consumer.subscribe([topic])
    for _ in range(2 * len(KEYS) + 2):
        message = consumer.poll(20)
        assert message is not None and message.error() is None
    consumer.commit(asynchronous=False)
    consumer.close()


@pytest.fixture(scope="module")
def recorded(real_broker: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A recording of all of it, and the name of its topic, group and transactional id."""
    folder = tmp_path_factory.mktemp("why")
    topic = f"why-{folder.name}"
    judge.create(real_broker, topic, PARTITIONS)
    with running(real_broker, folder) as proxy:
        fence(proxy.bootstrap, topic)
        write_keys(proxy.bootstrap, topic)
        read_all(proxy.bootstrap, topic)
        recording = proxy.recording
    return recording, topic


def told(recorded: tuple[Path, str], capsys: pytest.CaptureFixture[str], *terms: str) -> str:
    recording, topic = recorded
    typed = [term.format(topic) for term in terms]
    assert main(["why", str(recording), *typed]) == 0
    return capsys.readouterr().out


def test_who_fenced_a_producer(recorded, capsys):
    said = told(recorded, capsys, "transactional_id:{}")
    assert "2 producers in the recording; 3 transactions (2 committed, 1 aborted)" in said
    assert re.search(r"EndTxn #\d+ of old \(.*\) is refused: (PRODUCER_FENCED|INVALID_PROD)", said)
    assert re.search(r"; new \(.*\) took the transactional id at .* with InitProducerId #\d+", said)
    assert "is not in the recording" not in said


def test_which_partitioner_placed_a_key(recorded, capsys):
    key = next(k for k in KEYS if len(set(placements(k, PARTITIONS).values())) == 3)
    c, python = (placements(key, PARTITIONS)[name] for name in ("CRC32", "murmur2"))
    said = told(recorded, capsys, "topic:{}", f"key:{key.decode()}")
    _, topic = recorded
    assert f"sent it to {topic}[{c}], as CRC32 (" in said
    assert f"sent it to {topic}[{python}], as murmur2 (" in said
    assert said.count("; fetched by reader (") == 2 == said.count(f"; group {topic} committed ")


def test_what_was_found_in_a_topic(recorded, capsys):
    said = told(recorded, capsys, "topic:{}")
    _, topic = recorded
    assert f"Topic {topic} has 6 partitions (" in said
    assert re.search(rf"^Key key-\d+ was written to {topic}\[\d\] by ", said, re.MULTILINE)
    assert re.search(r"c \(.*\) places keys as CRC32 does", said)
    assert re.search(r"python \(.*\) places keys as murmur2 does", said)
    first = said.partition(f"Topic {topic} has")[0]  # what is wrong stands before what was
    found = re.findall(r"^(\w+ \w+)", first, re.MULTILINE)
    assert [each for each in found if not each.startswith(("Key key", "The last"))] == []


def test_the_life_of_a_real_client(recorded, capsys):
    said = told(recorded, capsys, "client_id:reader")
    assert "Its software is confluent-kafka-python" in said
    assert "It fetched from topics: " in said and "It named groups: " in said
