"""What a service once read is produced again, and another run of it meets the same."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kproxy import recording
from tests.bed import kafka, proxies
from tests.bed.proxies import KPROXY

PARTITIONS = 3
Row = tuple[bytes | None, bytes | None, tuple, int]
"""Key, value, headers, timestamp."""


def send(path: Path, bootstrap: str, *options: str, code: int = 0) -> subprocess.CompletedProcess:
    """Run `kproxy send` to its end."""
    command = [KPROXY, "send", str(path), "--bootstrap", bootstrap, "--timing", "fast", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return done


def create(bootstrap: str, *topics: str) -> None:
    """Create topics."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for each in admin.create_topics([NewTopic(each, PARTITIONS, 1) for each in topics]).values():
        each.result(20)


def produce(bootstrap: str, topic: str, other: str) -> list[list[Row]]:
    """Write to a topic, in transactions and not; return what is committed, by partition."""
    committed: list[list[Row]] = [[] for _ in range(PARTITIONS)]
    plain = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
    transactional = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"{topic}-t"})
    transactional.init_transactions(20)

    def write(producer: Producer, number: int, kept: bool) -> None:
        key = None if number % 5 == 0 else f"k{number}".encode()
        value = None if number % 7 == 3 else f"value {number}".encode() * 20
        headers = (("n", str(number).encode()), ("n", None)) if number % 2 else ()
        at_ms, partition = 1_790_000_000_000 + 7 * number, number % PARTITIONS
        producer.produce(topic, value, key, partition, headers=[*headers], timestamp=at_ms)
        if kept:
            committed[partition].append((key, value, headers, at_ms))

    for number in range(0, 60, 20):
        for each in range(number, number + 10):
            write(plain, each, True)
        plain.flush(20)
        for kept in (False, True):
            transactional.begin_transaction()
            for each in range(number + 10, number + 16):
                write(transactional, each, kept)
            transactional.flush(20)
            if kept:
                transactional.commit_transaction(20)
            else:
                transactional.abort_transaction(20)
    plain.produce(other, b"nothing that billing reads")
    plain.flush(20)
    return committed


def read(bootstrap: str, topic: str, count: int, **settings: str) -> list[list[Row]]:
    """Read so many records from the beginning, by partition; as a group if one is given."""
    asked = {"bootstrap.servers": bootstrap, "group.id": "g", "enable.auto.commit": False}
    asked |= {"auto.offset.reset": "earliest"}
    consumer = Consumer(asked | {name.replace("_", "."): each for name, each in settings.items()})
    if "group_id" in settings:
        consumer.subscribe([topic])
    else:
        consumer.assign([TopicPartition(topic, each, 0) for each in range(PARTITIONS)])
    found: list[list[Row]] = [[] for _ in range(PARTITIONS)]
    for _ in range(count):
        message = consumer.poll(20)
        assert message is not None and not message.error(), message and message.error()
        row = message.key(), message.value(), tuple(message.headers() or ()), message.timestamp()[1]
        found[message.partition() or 0].append(row)
    assert consumer.poll(0.3) is None
    consumer.close()
    return found


@pytest.mark.broker
def test_what_a_client_or_a_group_read_is_there_again_each_record_once(
    kafka_431: kafka.Kafka, tmp_path: Path
) -> None:
    topic, other = f"in-{tmp_path.name[-12:]}", f"other-{tmp_path.name[-12:]}"
    create(kafka_431.address, topic, other)
    with proxies.running(kafka_431.address, tmp_path) as proxy:
        committed = produce(proxy.bootstrap, topic, other)
        count = sum(map(len, committed))
        for group in ("first", "second"):  # one behind the other, both read all
            name = f"{group}-{topic}"
            settings = {"group_id": name, "client_id": "billing"}
            assert read(proxy.bootstrap, topic, count, **settings) == committed
        read(proxy.bootstrap, other, 1, group_id=f"audit-{topic}", client_id="audit")
    options = "--inputs", "client_id:billing", "--same-cluster", "--topic-prefix", "a-"
    lacking = send(proxy.recording, kafka_431.address, *options, code=2)
    assert f"the cluster lacks partitions: a-{topic}[0]" in lacking.stderr
    for prefix, term in (("a-", "client_id:bill*"), ("b-", f"group:second-{topic}")):
        options = "--same-cluster", "--topic-prefix", prefix, "--inputs", term
        new = tmp_path / f"{prefix}.mcap"
        more = "--create-topics", "--record", str(new)
        done = send(proxy.recording, kafka_431.address, *options, *more)
        assert f"{count} of {count} records were written" in done.stdout
        assert read(kafka_431.address, prefix + topic, count) == committed
        assert {each.api for each in recording.read(new)} == {"Produce"}
        topics = AdminClient({"bootstrap.servers": kafka_431.address}).list_topics().topics
        assert len(topics[prefix + topic].partitions) == PARTITIONS
        assert prefix + other not in topics


def test_an_early_end_says_what_was_written_and_what_is_refused_is_told(
    mock_brokers: str, tmp_path: Path
) -> None:
    topic, folder = f"in-{tmp_path.name[-12:]}", tmp_path / "again"
    topics = Producer({"bootstrap.servers": mock_brokers})
    for each in ("", "a-", "b-"):
        topics.list_topics(each + topic, 20)  # makes it
    with proxies.running(mock_brokers, tmp_path) as proxy:
        producer = Producer({"bootstrap.servers": proxy.bootstrap, "linger.ms": 0})
        for number in range(5):
            producer.produce(topic, f"{number}".encode(), partition=0)
            producer.flush(20)
        read(proxy.bootstrap, topic, 5, fetch_message_max_bytes="1", client_id="billing")
    rules = [f"api=Produce topic=a-{topic} skip=2 phase=before disconnect=true times=1"]
    rules += [f"api=Produce topic=b-{topic} skip=2 error=MESSAGE_TOO_LARGE times=1"]
    rules += [f"api=Produce topic=b-{topic} error=NOT_LEADER_OR_FOLLOWER times=1"]
    faults = [word for each in rules for word in ("--fault", each)]
    options = "--same-cluster", "--inputs", "client_id:billing", "--topic-prefix"
    with proxies.running(mock_brokers, folder, *faults) as again:
        ended = send(proxy.recording, again.bootstrap, *options, "a-", code=1)
        refused = send(proxy.recording, again.bootstrap, *options, "b-", code=1)
    print(ended.stderr, refused.stdout)
    assert "closed the connection: 3 of 5 requests were" in ended.stderr.splitlines()[-1]
    assert "1 of them were not answered; 2 of 5 records were written" in ended.stderr
    assert "4 of 5 records were written" in refused.stdout
    assert f"b-{topic}[0]" in refused.stdout and "MESSAGE_TOO_LARGE" in refused.stdout
