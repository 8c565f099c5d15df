"""What clients make of faults: each experiment with real clients on a real broker.

::

    actor ─▶ kproxy run --fault … ─▶ broker ◀─ judge (past the proxy)

Three things are asserted of each: what the client's user sees, what the broker has in the end, and
what the recording says: that the fault fired, and what the client did then. `test_recorded` has
those that recordings can stand in for.
"""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tests.bed.actors import ACTORS, judge
from tests.bed.actors.verbs import Actor
from tests.bed.experiment import fired, read, running
from tests.versions import some

pytestmark = pytest.mark.broker

VALUES = [str(number) for number in range(20)]


@pytest.fixture
def topic(real_broker: str, prefix: str) -> str:
    """A topic with one partition."""
    judge.create(real_broker, prefix)
    return prefix


@pytest.fixture
def actor(request: pytest.FixtureRequest) -> Actor:
    """A client."""
    return ACTORS[request.param]


def clients(*few: str) -> pytest.MarkDecorator:
    """Try each of the clients; these, unless all is tested."""
    return pytest.mark.parametrize("actor", some(list(ACTORS), few), indirect=True)


# ── writing


@clients("aiokafka")
def test_a_topic_that_is_forbidden_fails_alone(
    actor: Actor, real_broker: str, topic: str, tmp_path: Path
) -> None:
    forbidden = f"{topic}-secret"
    judge.create(real_broker, forbidden)
    rule = f"api=Produce topic={forbidden} error=TOPIC_AUTHORIZATION_FAILED"
    with running(real_broker, tmp_path, rule) as proxy:
        done = actor.produce(proxy.bootstrap, [topic, forbidden], VALUES[:3], idempotent=False)
    assert sorted(done.delivered) == VALUES[:3]
    wrong = {f"{forbidden}/{value}": "TOPIC_AUTHORIZATION_FAILED" for value in VALUES[:3]}
    assert done.errors == wrong
    assert judge.values(real_broker, topic) == VALUES[:3]
    assert judge.values(real_broker, forbidden) == []


@pytest.mark.parametrize("client", ["confluent-kafka", "kafka-python"])
def test_a_client_that_is_throttled_knows_it(
    client: str, real_broker: str, topic: str, tmp_path: Path
) -> None:
    """librdkafka reports it, kafka-python keeps quiet for so long; aiokafka does neither."""
    rule = f"api=Produce topic={topic} throttle=300ms"
    with running(real_broker, tmp_path, rule) as proxy:
        done = ACTORS[client].produce(proxy.bootstrap, [topic], VALUES[:4], one_by_one=True)
    assert done.delivered == VALUES[:4]
    assert len(read(proxy.recording, "api:Produce")) == len(fired(proxy.recording)) == 4
    if client == "confluent-kafka":
        assert done.throttled_ms == 300
    else:
        assert all(0.25 < seconds < 0.9 for seconds in done.seconds[1:])


@clients("kafka-python")
def test_a_broker_that_falls_silent_is_left_after_the_clients_own_timeout(
    actor: Actor, real_broker: str, topic: str, tmp_path: Path
) -> None:
    rule = f"api=Produce topic={topic} skip=1 times=1 blackhole=true"
    with running(real_broker, tmp_path, rule) as proxy:
        done = actor.produce(
            proxy.bootstrap, [topic], VALUES[:3], request_timeout_ms=1000, one_by_one=True
        )
    assert done.delivered == VALUES[:3] and not done.errors
    assert judge.values(real_broker, topic) == VALUES[:3]
    assert 0.9 < done.seconds[1] < 5
    assert done.seconds[2] < 0.9


# ── the commit gap: the request is lost, or its response


@pytest.mark.parametrize(
    ("actor", "phase"),
    some(
        [(name, phase) for name in ACTORS for phase in ("before", "after")],
        [*zip(ACTORS, ("before", "after", "after"), strict=True)],
    ),
    indirect=["actor"],
)
def test_an_idempotent_producer_writes_once_whatever_is_lost(
    actor: Actor, phase: str, real_broker: str, topic: str, tmp_path: Path
) -> None:
    rule = f"api=Produce topic={topic} phase={phase} skip=2 times=2 disconnect=true"
    with running(real_broker, tmp_path, rule) as proxy:
        done = actor.produce(proxy.bootstrap, [topic], VALUES, one_by_one=True)
    assert done.delivered == VALUES and not done.errors
    assert judge.values(real_broker, topic) == VALUES
    assert len(fired(proxy.recording)) == 2


@clients("kafka-python")
def test_without_idempotence_a_lost_response_is_a_duplicate(
    actor: Actor, real_broker: str, topic: str, tmp_path: Path
) -> None:
    rule = f"api=Produce topic={topic} phase=after skip=2 times=1 disconnect=true"
    with running(real_broker, tmp_path, rule) as proxy:
        done = actor.produce(
            proxy.bootstrap, [topic], VALUES[:5], one_by_one=True, idempotent=False
        )
    assert done.delivered == VALUES[:5] and not done.errors
    assert judge.values(real_broker, topic) == ["0", "1", "2", "2", "3", "4"]


# ── reading


@clients("aiokafka")
def test_slow_fetches_show_in_the_p99_that_the_client_measures(
    actor: Actor, real_broker: str, topic: str, tmp_path: Path
) -> None:
    values = [str(number) for number in range(100)]
    judge.fill(real_broker, topic, values)
    rule = f"api=Fetch topic={topic} skip=30 every=20 latency=300ms"
    with running(real_broker, tmp_path, rule) as proxy:
        found = actor.consume(proxy.bootstrap, topic, len(values), fetch_bytes=1)
    assert found.values == values
    gaps = sorted(later - sooner for sooner, later in zip(found.at, found.at[1:], strict=False))
    p50, p99 = (gaps[math.ceil(len(gaps) * share) - 1] for share in (0.5, 0.99))
    assert p50 < 0.28 < p99
    assert sum(gap > 0.28 for gap in gaps) >= len(fired(proxy.recording)) >= 3


# ── groups


def test_a_coordinator_that_moves_is_looked_for_and_the_commit_arrives(
    real_broker: str, topic: str, tmp_path: Path
) -> None:
    """librdkafka, whose look-ups wait behind its own long polls; `test_recorded` has the others."""
    actor = ACTORS["confluent-kafka"]
    judge.fill(real_broker, topic, VALUES)
    rule = f"api=OffsetCommit group={topic} error=NOT_COORDINATOR times=2"
    with running(real_broker, tmp_path, rule) as proxy:
        found = actor.consume(proxy.bootstrap, topic, len(VALUES), group=topic)
    assert found.values == VALUES and found.committed == len(VALUES)
    assert judge.committed(real_broker, topic, topic) == len(VALUES)
    failed = read(proxy.recording, "api:OffsetCommit error:NOT_COORDINATOR")
    assert len(failed) == 2
    after = [each.api for each in read(proxy.recording) if each.number > failed[0].number]
    assert "FindCoordinator" in after


@clients("confluent-kafka")
def test_a_storm_of_rebalances_ends_and_all_is_read(
    actor: Actor, real_broker: str, topic: str, tmp_path: Path
) -> None:
    judge.fill(real_broker, topic, VALUES)
    rule = f"api=['SyncGroup', 'Heartbeat'] group={topic} error=REBALANCE_IN_PROGRESS times=4"
    with running(real_broker, tmp_path, rule) as proxy:
        found = actor.consume(proxy.bootstrap, topic, len(VALUES), group=topic)
    assert sorted(set(found.values), key=int) == VALUES and found.committed == len(VALUES)
    assert judge.committed(real_broker, topic, topic) == len(VALUES)
    joins = read(proxy.recording, "api:JoinGroup")
    assert len(joins) >= 3 and len(fired(proxy.recording)) >= 2


# ── versions


@clients("aiokafka")
def test_a_client_speaks_the_old_versions_that_it_is_offered(
    actor: Actor, real_broker: str, topic: str, tmp_path: Path
) -> None:
    capped = {"Produce": 5, "Fetch": 7, "Metadata": 4}
    versions = ", ".join(f"{api} = {version}" for api, version in capped.items())
    with running(real_broker, tmp_path, f"max_version={{{versions}}}") as proxy:
        done = actor.produce(proxy.bootstrap, [topic], VALUES)
        found = actor.consume(proxy.bootstrap, topic, len(VALUES))
    assert sorted(done.delivered, key=int) == VALUES == found.values
    for api, version in capped.items():
        assert {each.api_version for each in read(proxy.recording, f"api:{api}")} == {version}
