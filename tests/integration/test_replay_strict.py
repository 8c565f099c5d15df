"""Strict mode with a real client: librdkafka asks again what it asked when it was recorded."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Producer

from tests.bed import needs, proxies, replays

DEMO = needs.REPOSITORY / "recordings" / "demo.mcap"


def look(bootstrap: str, client_id: str = "strict", seconds: float = 10) -> dict[str, int]:
    """Ask librdkafka for Metadata; the topics with their numbers of partitions."""
    settings = {"bootstrap.servers": bootstrap, "client.id": client_id, "log_level": 0}
    topics = Producer(settings).list_topics(timeout=seconds).topics
    return {name: len(topic.partitions) for name, topic in topics.items()}


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    """What librdkafka asks for that, recorded."""
    with (
        replays.running(DEMO, tmp_path / "broker") as broker,
        proxies.running(broker.bootstrap, tmp_path / "proxy") as proxy,
    ):
        assert look(proxy.bootstrap) == {"orders": 4}
    return proxy.recording


def follows(recording: Path, folder: Path) -> bool:
    """Whether the same client finds no difference."""
    try:
        with replays.running(recording, folder, "--mode", "strict") as replay:
            return look(replay.bootstrap) == {"orders": 4}
    except (AssertionError, KafkaException):
        return False


def test_the_same_client_gets_what_it_got(recording: Path, tmp_path: Path) -> None:
    # One time in ten it connects to a broker more, or to one less, than when it was recorded.
    assert any(follows(recording, tmp_path / str(each)) for each in range(6))


def test_a_client_that_asks_otherwise_is_told_in_which_field(
    recording: Path, tmp_path: Path
) -> None:
    with replays.running(recording, tmp_path, "--mode", "strict") as replay:
        replay.code = 1
        with pytest.raises(KafkaException):
            look(replay.bootstrap, "another", seconds=2)
    (first, *_) = re.findall(r"differs: (.*)", replay.log)
    assert 'client_id "another", recorded "strict"' in first
    assert "request 1, ApiVersions" in first
