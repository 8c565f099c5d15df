"""`kproxy why number:N` of what went wrong between real clients and a real broker."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition, admin
from confluent_kafka.admin import AdminClient, NewTopic

from kproxy import recording
from kproxy.cli import main
from kproxy.look.why.number import number_story
from kproxy.look.why.source import StorySource
from kproxy.wire.protocol import decode_response, messages
from tests.bed import proxies
from tests.bed.kafka import Kafka
from tests.bed.waiting import until
from tests.proxy.playing import request

pytestmark = [pytest.mark.broker, pytest.mark.java]

RULE = "name=eaten api=Produce client_id=unlucky phase=after times=1 drop=true"
QUIET = {"log_level": 0}
SECONDS = 20


@pytest.fixture(scope="module")
def troubles(real_broker: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording of a mistyped topic, an offset past the end, an eaten
    response."""
    folder = tmp_path_factory.mktemp("troubles")
    with proxies.running(real_broker, folder, "--fault", RULE) as proxy:
        settings = {"bootstrap.servers": proxy.bootstrap, **QUIET}
        admin = AdminClient(settings)
        for made in admin.create_topics([NewTopic("troubles", 2, 1)]).values():
            made.result(SECONDS)
        _mistype(settings)
        _lose_an_answer(settings)
        _read_past_the_end(settings)
    return proxy.recording


def _mistype(settings: dict) -> None:
    errors: list[confluent_kafka.KafkaError] = []
    consumer = Consumer({**settings, "group.id": "typo", "client.id": "typo"})
    try:
        consumer.subscribe(["trouble"])

        def refused() -> bool:
            message = consumer.poll(0.1)
            errors.extend([] if message is None or not message.error() else [message.error()])
            return bool(errors)

        until(refused, "the topic is refused", SECONDS)
    finally:
        consumer.close()


def _read_past_the_end(settings: dict) -> None:
    own = {"group.id": "far", "client.id": "far", "auto.offset.reset": "earliest"}
    consumer = Consumer({**settings, **own})
    try:
        consumer.assign([TopicPartition("troubles", 1, 999)])
        until(lambda: consumer.poll(0.1), "the consumer goes back", SECONDS)
    finally:
        consumer.close()


def _lose_an_answer(settings: dict) -> None:
    own = {"client.id": "unlucky", "enable.idempotence": True, "socket.timeout.ms": 1000}
    producer = Producer({**settings, **own})
    producer.produce("troubles", b"kept", partition=1)
    assert producer.flush(SECONDS) == 0


def story_of(path: Path, wanted: str) -> list[str]:
    """The story of the first exchange that matches a filter."""
    first = next(iter(recording.read(path, wanted)))
    return list(number_story(StorySource([path], lambda done_bytes: None), str(first.number)))


def _limit(broker: str, user: str, bytes_per_second: float) -> None:
    """Set the quota of a user for what it produces."""
    kind = messages.AlterClientQuotasRequest
    op = kind.OpData(key="producer_byte_rate", value=bytes_per_second, remove=False)
    entity = kind.EntityData(entity_type="user", entity_name=user)
    body = kind(entries=[kind.EntryData(entity=[entity], ops=[op])])
    host, _, port = broker.rpartition(":")
    with socket.create_connection((host, int(port)), 10) as sock, sock.makefile("rb") as stream:
        sock.sendall(request(49, 1, body))
        size = stream.read(4)
        answer = decode_response(size + stream.read(int.from_bytes(size)), 49, 1)
    assert [each.error_code for each in answer.body.entries] == [0]


def test_which_user_is_refused_and_which_is_held(
    kafka_431: Kafka, prefix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By an ACL, and by a quota."""
    own, user = AdminClient({"bootstrap.servers": kafka_431.address}), f"billing-{prefix}"
    denied, held = f"{prefix}-denied", f"{prefix}-held"
    info = admin.ScramCredentialInfo(admin.ScramMechanism.SCRAM_SHA_256, 4096)
    account = admin.UserScramCredentialUpsertion(user, info, b"password-of-billing")
    Kind, Op = admin.ResourcePatternType.LITERAL, admin.AclOperation
    acls = [
        admin.AclBinding(
            admin.ResourceType.TOPIC, denied, Kind, f"User:{who}", "*", may,
            admin.AclPermissionType.ALLOW,
        )
        for who, may in (("nobody", Op.ALL), ("*", Op.DESCRIBE))
    ]  # fmt: skip
    made = own.create_topics([NewTopic(denied, 1, 1), NewTopic(held, 1, 1)])
    made |= own.create_acls(acls) | own.alter_user_scram_credentials([account])
    for each in made.values():
        each.result(SECONDS)
    _limit(kafka_431.address, user, 10_000)
    with proxies.running(kafka_431.sasl_address, tmp_path, "--record-users") as proxy:
        login = {"sasl.username": user, "sasl.password": "password-of-billing"}
        login |= {"sasl.mechanism": "SCRAM-SHA-256", "security.protocol": "SASL_PLAINTEXT"}
        settings = {"bootstrap.servers": proxy.bootstrap, "client.id": "shop", **login, **QUIET}
        producer = Producer(settings)
        for topic in (denied, held):
            producer.produce(topic, os.urandom(150_000))
        assert producer.flush(SECONDS) == 0
    path = str(proxy.recording)
    assert main(["why", path]) == 0
    told = capsys.readouterr().out
    assert (
        f"shop (127.0.0.1) as user {user} may not use topic {denied}: Produce was refused" in told
    )
    assert "Produce takes WRITE on the topic." in told
    assert f"The broker's quota held shop (127.0.0.1) as user {user} " in told
    (failed,) = recording.read(path, "api:Produce is:error")
    assert failed.user == user
    story = story_of(proxy.recording, f"api:Produce topic:{denied}")
    assert any(line.endswith(f" as user {user}.") for line in story)
    assert main(["why", path, "client_id:shop"]) == 0
    assert f"Its user is {user}." in capsys.readouterr().out


def test_which_name_was_meant(troubles):
    story = story_of(troubles, "api:Metadata error:UNKNOWN_TOPIC_OR_PARTITION client_id:typo")
    said = "Nothing in the recording shows that trouble exists (did you mean troubles?)."
    assert said in story


def test_where_the_log_ends(troubles):
    story = story_of(troubles, "api:Fetch error:OFFSET_OUT_OF_RANGE client_id:far")
    assert "It asks for offset 999 of troubles[1]." in story
    assert [each for each in story if each.startswith("The log begins at offset 0, as ")]


def test_whose_answer_was_eaten(troubles):
    story = story_of(troubles, "api:Produce client_id:unlucky")
    assert "Fault rule eaten dropped the response: the client was never told." in story
    (again,) = (each for each in story if "sent the same batch again with Produce #" in each)
    assert again.endswith("which succeeded.")
    assert [each for each in story if "on a new connection to broker" in each]
