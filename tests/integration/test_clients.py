"""Every client works through kproxy unchanged, and the recording has all that it did.

One test per pair of client and broker: the client's program does its whole job through
`kproxy run`; then its own account of it is judged, and the recording.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from kproxy.exchange.exchange import Exchange
from kproxy.look.lines import jsonl
from kproxy.wire.protocol import consumer_protocol, schema
from kproxy.wire.protocol.consumer_protocol import ASSIGNMENT, SUBSCRIPTION
from tests.bed import brokers, console, kafka, programs, proxies, recorded
from tests.bed.actors import judge, with_confluent
from tests.bed.clients.job import COMPRESSIONS, KEPT, records
from tests.bed.programs import CLIENTS, Client
from tests.integration.conftest import Record
from tests.versions import some

pytestmark = pytest.mark.broker

# What librdkafka's mock cluster answers with malformed bytes: the error to an ApiVersions version
# that it does not know lacks a field, and LeaveGroup 3+ lacks the members.
MOCK_MALFORMED = {"ApiVersions": 3, "LeaveGroup": 3}

# Admin calls that one broker can only refuse.
REFUSED = {
    "alterReplicaLogDirs": "LogDirNotFound",
    "unregisterBroker": "BrokerIdNotRegistered",
}

_MARKS = {"java": pytest.mark.java, "kafkajs": pytest.mark.node}

EVERY = [(client, broker) for client in CLIENTS for broker in client.steps]
FEW = [
    (client, broker)
    for client, broker in EVERY
    if (broker == "4.3.1" and client.name not in ("java-3.9.2", "java-4.3.1"))
    or (client.name, broker) in (("java-3.9.2", "3.9.2"), ("confluent-kafka", "mock"))
]
"""Every client, of Java the newest, with the newest broker; the older one with one of its days."""
PAIRS = [
    pytest.param(client, broker, id=f"{client.name}-{broker}", marks=_MARKS.get(family, ()))
    for client, broker in some(EVERY, FEW)
    for family in [client.name.partition("-")[0]]
]


@pytest.fixture
def address(request: pytest.FixtureRequest, broker: str) -> str:
    """The bootstrap address of the broker that a test is parametrized with."""
    return request.getfixturevalue(f"kafka_{broker.replace('.', '')}").address


@pytest.mark.parametrize(("client", "broker"), PAIRS)
def test_a_client_works_unchanged_and_all_of_it_is_recorded(
    client: Client, broker: str, record: Record
) -> None:
    worked = record(client.name, broker)
    judge_work(worked.results, aborts_are_hidden=broker != "mock")

    malformed = MOCK_MALFORMED if broker == "mock" else {}
    found = recorded.exchanges(worked.path, malformed)
    judge_recording(found, client.steps[broker], worked.prefix)


@pytest.mark.java
@pytest.mark.parametrize("broker", some(kafka.VERSIONS, kafka.VERSIONS[:1]))
def test_kafkas_own_topics_mean_what_kafkas_own_tool_prints(
    broker: str, address: str, prefix: str, tmp_path: Path
) -> None:
    commit_a_transaction(address, prefix)
    assert with_confluent.consume(address, prefix, 1, group=prefix).committed == 1
    with proxies.running(address, tmp_path) as proxy:
        judge.read_to_end(proxy.bootstrap, "__consumer_offsets", "__transaction_state")

    found = [
        record
        for exchange in recorded.exchanges(proxy.recording)
        if exchange.api == "Fetch"
        for record in exchange.records
    ]
    printed = console.printed([(each.topic, each.key, each.value) for each in found])
    values: list[tuple[str, Any]] = []
    for record, theirs in zip(found, printed, strict=True):
        assert theirs is not None
        assert record.meaning("key").value == theirs["key"]["data"]
        meaning = record.meaning("value")
        if record.value is None:
            assert meaning is None and theirs["value"] is None
            continue
        values.append((meaning.by, meaning.value))
        version = theirs["value"]["version"]
        name = meaning.by.removeprefix("Kafka's ").removesuffix(f", version {version}")
        ours = console.as_printed(meaning.value, schema.named(name).fields, version)
        assert ours == with_subscriptions(theirs["value"]["data"], ours)
    for each in WRITTEN[broker]:
        assert any(name == f"Kafka's {each}" for name, _ in values), each
    members = [
        each["members"] for name, each in values if name.startswith("Kafka's GroupMetadataValue")
    ]
    subscriptions = [each["subscription"] for group in members for each in group]
    assert any(each["topics"] == [prefix] for each in subscriptions if isinstance(each, dict))


WRITTEN = {
    "4.3.1": ("OffsetCommitValue, version 4", "TransactionLogValue, version 1"),
    "3.9.2": ("OffsetCommitValue, version 3", "TransactionLogValue, version 0"),
}


def commit_a_transaction(address: str, topic: str) -> None:
    """Produce a record in a transaction whose id is the topic's name."""
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": address, "transactional.id": topic, "log_level": 0}
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, "a")
    producer.commit_transaction(30)


def with_subscriptions(theirs: Any, ours: Any) -> Any:
    """What Kafka's tool prints, with the bytes decoded that ours are decoded of."""
    if isinstance(theirs, dict):
        return {name: with_subscriptions(each, ours.get(name)) for name, each in theirs.items()}
    if isinstance(theirs, list):
        return [with_subscriptions(*each) for each in zip(theirs, ours, strict=True)]
    if isinstance(ours, dict):
        name = SUBSCRIPTION if "topics" in ours else ASSIGNMENT
        return consumer_protocol.plain(name, base64.b64decode(theirs))[0]
    return theirs


def judge_work(results: dict[str, Any], aborts_are_hidden: bool = True) -> None:
    """What a client says of its work is what every client must be able to say."""
    expected = sorted(json.dumps(each) for kind in COMPRESSIONS for each in records(kind))
    if "produce" in results:
        assert results["produce"]["produced"] == len(expected)
    for step in ("group", "group848"):
        if step in results:
            assert sorted(map(json.dumps, results[step]["records"])) == expected
            assert results[step]["committed"] == len(expected)
    if "transactions" in results:
        dropped = [] if aborts_are_hidden else ["dropped"]
        assert results["transactions"]["values"] == [*KEPT[:2], *dropped, KEPT[2]]
    for name, outcome in results.get("admin", {}).get("calls", {}).items():
        assert outcome == "ok" or outcome.startswith(REFUSED.get(name, "ok")), (
            name,
            outcome,
        )


def judge_recording(found: list[Exchange], steps: tuple[str, ...], prefix: str) -> None:
    """A recording of those steps has their exchanges, and the very records."""
    count = recorded.count(found)
    produced = list(produced_batches(found, f"{prefix}-records"))
    assert {batch["compression"] for batch in produced} == set(COMPRESSIONS)
    # as sets: clients produce again what a broker refuses for a moment (a leader not yet known)
    expected = {each[:2] for kind in COMPRESSIONS for each in records(kind)}
    sent = [each for batch in produced for each in batch["records"]]
    assert {(each["key"], each["value"]) for each in sent} == expected
    assert all(batch["crc_ok"] for batch in produced)

    assert count["Produce"] >= len(COMPRESSIONS)
    assert count["Fetch"] >= 1 and count["OffsetCommit"] >= 1
    assert count["JoinGroup"] >= 1 and count["SyncGroup"] >= 1
    if "group848" in steps:
        assert count["ConsumerGroupHeartbeat"] >= 2  # joining and leaving
    if "transactions" in steps:
        assert count["EndTxn"] == 3 and count["TxnOffsetCommit"] >= 1
    if "admin" in steps:
        assert count["CreateTopics"] == 1 and count["DeleteTopics"] == 1
    assert len(found) < 400, "far more exchanges than the client had reason to make"


def produced_batches(found: list[Exchange], topic: str) -> Iterator[dict[str, Any]]:
    """The record batches that were produced to a topic, as `show --json` has them."""
    for each in found:
        if each.api == "Produce" and each.topics == [topic]:
            for data in jsonl.to_json(each)["request"]["topic_data"]:
                for partition in data["partition_data"]:
                    yield from partition["records"]


def test_whatever_broker_there_is_can_be_recorded(
    any_broker: brokers.Found, prefix: str, tmp_path: Path
) -> None:
    client = programs.named("confluent-kafka")
    with proxies.running(any_broker.address, tmp_path) as proxy:
        results = programs.work(client, proxy.bootstrap, prefix, ("produce", "group"))
    judge_work(results)
    recorded.exchanges(proxy.recording, MOCK_MALFORMED if any_broker.kind == "mock" else {})
