"""Faults of one broker among three, and of what clients are told of them.

The three are librdkafka's mock cluster: it needs no Java, and knows leaders and coordinators well
enough to refuse what it is asked at the wrong broker.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bed import mock_cluster
from tests.bed.actors import ACTORS, judge
from tests.bed.actors.verbs import Actor
from tests.bed.experiment import fired, read, running
from tests.versions import some

pytestmark = pytest.mark.broker

VALUES = [str(number) for number in range(12)]
PARTITIONS = 4


@pytest.fixture(params=some(["confluent-kafka", "aiokafka"], ["aiokafka"]))
def actor(request: pytest.FixtureRequest) -> Actor:
    """Two clients that get along with the mock cluster."""
    return ACTORS[request.param]


@pytest.fixture(scope="module")
def three_brokers() -> Iterator[str]:
    """A cluster of these tests' own."""
    with mock_cluster.running() as addresses:
        yield addresses


def test_one_slow_broker_of_three_slows_only_what_it_leads(
    actor: Actor, three_brokers: str, prefix: str, tmp_path: Path
) -> None:
    leaders = judge.leaders(three_brokers, prefix)
    slow = leaders[0]
    with running(three_brokers, tmp_path, f"api=Produce node_id={slow} latency=400ms") as proxy:
        done = actor.produce(
            proxy.bootstrap,
            [prefix],
            VALUES,
            idempotent=False,
            one_by_one=True,
            partitions=PARTITIONS,
        )
    assert sorted(done.delivered, key=int) == VALUES
    settled = list(zip(done.partitions, done.seconds, strict=True))[PARTITIONS:]
    for partition, seconds in settled:
        assert (0.38 < seconds < 0.9) if leaders[partition] == slow else seconds < 0.3
    assert {each.node_id for each in read(proxy.recording, "api:Produce fault:*")} == {slow}


def test_a_coordinator_that_is_said_to_be_elsewhere_is_found_in_the_end(
    actor: Actor, three_brokers: str, prefix: str, tmp_path: Path
) -> None:
    judge.leaders(three_brokers, prefix)
    judge.fill(three_brokers, prefix, VALUES)
    rule = f"api=FindCoordinator group={prefix} move_coordinator=true times=4"
    with running(three_brokers, tmp_path, rule) as proxy:
        found = actor.consume(proxy.bootstrap, prefix, len(VALUES), group=prefix)
    assert found.values == VALUES and found.committed == len(VALUES)
    assert fired(proxy.recording)
    joins = list(read(proxy.recording, "api:JoinGroup"))
    *_, last_lie = read(proxy.recording, "api:FindCoordinator is:faulted")
    asked_again = last_lie.number < joins[0].number  # until it was told right, before it joined
    assert len({each.node_id for each in joins}) > 1 or asked_again, "nobody went to the wrong one"


def test_a_leader_that_is_said_to_be_elsewhere_is_found_in_the_end(
    actor: Actor, three_brokers: str, prefix: str, tmp_path: Path
) -> None:
    judge.leaders(three_brokers, prefix)
    rule = f"api=Metadata topic={prefix} stale_leader=true times=2"
    with running(three_brokers, tmp_path, rule) as proxy:
        done = actor.produce(proxy.bootstrap, [prefix], VALUES, idempotent=False)
    assert sorted(done.delivered, key=int) == VALUES and not done.errors
    assert judge.values(three_brokers, prefix) == VALUES
    assert fired(proxy.recording)
    assert read(proxy.recording, "api:Produce error:NOT_LEADER_OR_FOLLOWER")
