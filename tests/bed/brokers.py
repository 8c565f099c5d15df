"""Which broker the tests talk to where any will do: the most real one that the machine has.

In this order: the address in KPROXY_TEST_BROKER, an apache/kafka container where a Docker engine
answers within 3 s, Kafka from Maven artifacts, and librdkafka's mock cluster, which is always
there.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator

import attrs

from tests.bed import kafka
from tests.bed.waiting import free_ports

IMAGE = "apache/kafka:4.3.1"
_DOCKER_TIMEOUT_SECONDS = 3


@attrs.frozen
class Found:
    """A broker, or a cluster, and what is known of it."""

    kind: str
    """"given", "docker", "maven" or "mock"."""
    address: str
    """Its bootstrap addresses."""


@contextlib.contextmanager
def found(maven_broker: Callable[[], kafka.Kafka], mock: Callable[[], str]) -> Iterator[Found]:
    """The most real broker that is there; the last two kinds come from those who have them."""
    given = os.environ.get("KPROXY_TEST_BROKER")
    if given:
        yield Found("given", given)
    elif docker_answers():
        with container() as address:
            yield Found("docker", address)
    elif all(shutil.which(each) for each in ("java", "mvn")):
        yield Found("maven", maven_broker().address)
    else:
        yield Found("mock", mock())


def docker_answers() -> bool:
    """Whether a Docker engine is there, and quick."""
    try:
        asked = subprocess.run(
            ["docker", "version"], capture_output=True, timeout=_DOCKER_TIMEOUT_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return asked.returncode == 0


@contextlib.contextmanager
def container() -> Iterator[str]:
    """Kafka in a container; its address on this machine."""
    from testcontainers.core.container import DockerContainer
    from testcontainers.core.wait_strategies import LogMessageWaitStrategy

    # The broker tells clients its own address, so the port must be the same inside and outside.
    (port,) = free_ports(1)
    settings = {
        "KAFKA_NODE_ID": "1",
        "KAFKA_PROCESS_ROLES": "broker,controller",
        "KAFKA_CONTROLLER_QUORUM_VOTERS": "1@localhost:29093",
        "KAFKA_LISTENERS": f"PLAINTEXT://:{port},CONTROLLER://:29093",
        "KAFKA_ADVERTISED_LISTENERS": f"PLAINTEXT://localhost:{port}",
        "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
        "KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR": "1",
        "KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR": "1",
        "KAFKA_TRANSACTION_STATE_LOG_MIN_ISR": "1",
        "KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
    }
    broker = DockerContainer(IMAGE).with_bind_ports(port, port).with_envs(**settings)
    broker.waiting_for(LogMessageWaitStrategy("Kafka Server started"))
    with broker:
        yield f"localhost:{port}"
