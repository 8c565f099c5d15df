"""`kproxy why number:N` of what went wrong between real clients and a real broker."""

from __future__ import annotations

from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kproxy import recording
from kproxy.look.why.number import number_story
from kproxy.look.why.source import StorySource
from tests.bed import proxies
from tests.bed.waiting import until

pytestmark = [pytest.mark.broker, pytest.mark.java]

RULE = "name=eaten api=Produce client_id=unlucky phase=after times=1 drop=true"
QUIET = {"log_level": 0}
SECONDS = 20


@pytest.fixture(scope="module")
def troubles(real_broker: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording of a fenced producer, a mistyped topic, an offset past the end, an eaten
    response."""
    folder = tmp_path_factory.mktemp("troubles")
    with proxies.running(real_broker, folder, "--fault", RULE) as proxy:
        settings = {"bootstrap.servers": proxy.bootstrap, **QUIET}
        admin = AdminClient(settings)
        for made in admin.create_topics([NewTopic("troubles", 2, 1)]).values():
            made.result(SECONDS)
        _fence(settings)
        _mistype(settings)
        _read_past_the_end(settings)
        _lose_an_answer(settings)
    return proxy.recording


def _fence(settings: dict) -> None:
    def begin(client_id: str) -> Producer:
        own = {"transactional.id": "payments", "client.id": client_id}
        producer = Producer({**settings, **own})
        producer.init_transactions(SECONDS)
        producer.begin_transaction()
        producer.produce("troubles", b"1", partition=0)
        producer.flush(SECONDS)
        return producer

    zombie = begin("zombie")
    begin("successor").commit_transaction(SECONDS)
    with pytest.raises(KafkaException):
        zombie.commit_transaction(SECONDS)


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
        consumer.assign([TopicPartition("troubles", 0, 999)])
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


def test_who_fenced_a_producer(troubles):
    story = story_of(troubles, "error:INVALID_PRODUCER_EPOCH,PRODUCER_FENCED client_id:zombie")
    (line,) = (each for each in story if "took transactional id payments" in each)
    assert line.startswith("InitProducerId #") and "successor (127.0.0.1:" in line
    assert not [each for each in story if "is not in the recording" in each]


def test_which_name_was_meant(troubles):
    story = story_of(troubles, "api:Metadata error:UNKNOWN_TOPIC_OR_PARTITION client_id:typo")
    said = "Nothing in the recording shows that trouble exists (did you mean troubles?)."
    assert said in story


def test_where_the_log_ends(troubles):
    story = story_of(troubles, "api:Fetch error:OFFSET_OUT_OF_RANGE client_id:far")
    assert "It asks for offset 999 of troubles[0]." in story
    assert [each for each in story if each.startswith("The log begins at offset 0, as ")]


def test_whose_answer_was_eaten(troubles):
    story = story_of(troubles, "api:Produce client_id:unlucky")
    assert "Fault rule eaten dropped the response: the client was never told." in story
    (again,) = (each for each in story if "sent the same batch again with Produce #" in each)
    assert again.endswith("which succeeded.")
    assert [each for each in story if "on a new connection to broker" in each]
