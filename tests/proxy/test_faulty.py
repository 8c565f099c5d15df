"""Rules beside secrets, limits, half-closes and versions: what they must not break."""

from __future__ import annotations

import json
import time

import pytest

from kproxy.exchange import notes
from kproxy.exchange.entries import UNANSWERED, Side
from kproxy.proxy.cluster import Cluster
from kproxy.proxy.faults import Rule, Rules
from kproxy.proxy.settings import Settings
from kproxy.proxy.verdicts import Ending, Verdict
from kproxy.wire.payloads.schemas import Schema, note_of
from kproxy.wire.protocol import messages
from kproxy.wire.protocol.record_batch import Record
from kproxy.wire.protocol.records import encode_batch
from tests.exchange.bodies import produce_request
from tests.proxy.playing import (
    BROKER,
    Player,
    end,
    heartbeat,
    heartbeat_answer,
    metadata,
    produce,
    request,
    response,
)
from tests.proxy.test_verdicts import (
    SECOND,
    ByCorrelationId,
    answers,
    heartbeats,
    ours,
    player,
    wait,
)

SECRET = b"hunter2-is-secret"


def faulty(*rules: Rule, **settings) -> Player:
    """A proxy with fault rules, and one connection."""
    limits = Settings([BROKER], listen_port=19092, **settings)
    found = Player(cluster=Cluster(limits, Rules(rules)))
    found.connect()
    return found


def recorded(play: Player) -> bytes:
    """All bytes that the recording has, splices included."""
    frames = play.frames()
    changes = [change for frame in frames for _, _, change in frame.splices]
    return b"|".join([frame.data for frame in frames] + changes)


def topics(*names: str) -> bytes:
    """A request that creates topics with a secret in their configs."""
    kind = messages.CreateTopicsRequest
    config = kind.CreatableTopicConfig(name="sasl.jaas.config", value=SECRET.decode())
    made = [
        kind.CreatableTopic(name=name, num_partitions=1, replication_factor=1, configs=[config])
        for name in names
    ]
    return request(19, 7, kind(topics=made))


@pytest.mark.parametrize(
    "rule",
    [
        Rule(api="CreateTopics", duplicate=True),
        Rule(api="CreateTopics", topic="b", error="TOPIC_ALREADY_EXISTS"),
        Rule(api="CreateTopics", latency="1s"),
    ],
)
def test_no_rule_brings_a_secret_into_the_recording(rule: Rule) -> None:
    play = faulty(rule)
    play.client(topics("a", "b", "ccccc"))
    wait(play, SECOND)
    assert SECRET in play.to_broker() and SECRET not in recorded(play)


def test_much_leaves_at_a_rate_in_linear_time() -> None:
    play = faulty(Rule(api="Produce", bandwidth="1MiB", phase="before"))
    play.client(produce(1, size=8 << 20))
    started = time.process_time()
    wait(play, 9 * SECOND)
    assert len(play.to_broker()) > 8 << 20
    assert time.process_time() - started < 20, "it took quadratic time"


@pytest.mark.parametrize("action", [{"latency": "20min"}, {"slow_close": "20min"}])
def test_what_a_rule_holds_back_is_not_idle(action: dict[str, str]) -> None:
    play = faulty(Rule(api="Heartbeat", **action), idle_seconds=600)
    play.client(heartbeat(1))
    play.broker(heartbeat_answer(1))
    wait(play, 19 * 60 * SECOND)
    assert play.to_client() == b"" and not play.closed
    wait(play, 2 * 60 * SECOND)
    assert play.to_client() == heartbeat_answer(1) if "latency" in action else play.closed
    wait(play, 10 * 60 * SECOND)
    assert play.closed, "from then on it is"


def test_own_responses_beyond_what_may_be_pending_all_leave() -> None:
    play = faulty(Rule(api="Heartbeat", error="REBALANCE_IN_PROGRESS"), pending_requests_max=2)
    play.client(heartbeats(*range(50)))
    assert play.to_client() == b"".join(heartbeat_answer(n, 27) for n in range(50))
    assert play.paused == set()


def test_none_leave_behind_the_end_of_the_broker_and_nothing_waits_for_them() -> None:
    play = faulty(Rule(api="Heartbeat", error="REBALANCE_IN_PROGRESS"), pending_requests_max=2)
    end(play, Side.BROKER)
    play.client(heartbeats(*range(50)))
    assert play.to_client() == b"" and play.paused == set()
    unanswered = [frame for frame in play.frames(Side.BROKER) if frame.flags & UNANSWERED]
    assert len(unanswered) == 50


def test_many_requests_under_a_rule_let_others_have_their_turn() -> None:
    play = faulty(Rule(api="Produce", latency="60s", phase="before"))
    play.client(produce(0) * 3000)
    due = play.cluster.next_wake
    assert due is not None and due <= play.now + 1, "it goes on when others had their turn"
    assert play.paused == {(1, Side.CLIENT)}
    wait(play, 61 * SECOND)
    assert play.to_broker() == produce(0) * 3000 and play.paused == set()


def test_connections_that_wait_for_a_turn_together_each_get_it_at_once() -> None:
    play = faulty(Rule(api="Produce", client_id="nobody", error="NOT_LEADER_OR_FOLLOWER"))
    for number in (2, 3):
        play.connect(number)
    for number in (1, 2, 3):
        play.client(produce(0) * (50 + 50 * number), number)
    play.advance(play.now + SECOND)  # it asks each time for a later time than it was woken at
    for number in (1, 2, 3):
        assert play.to_broker(number) == produce(0) * (50 + 50 * number)


def test_no_event_has_rules_decide_on_more_than_a_few_requests() -> None:
    rules = ByCorrelationId(dict.fromkeys(range(1500), ours(0)))
    play = player(rules)
    play.connect(2)
    shown = []

    def decided() -> int:
        """How many requests the last event has shown to rules, over all connections."""
        shown.append(len(rules.shown))
        return shown[-1] - (shown[-2] if len(shown) > 1 else 0)

    for number in (1, 2):
        play.client(heartbeats(*range(1500)), number)
        assert 0 < decided() <= 100, "one chunk"
    turns = 0
    while play.cluster.next_wake is not None and play.cluster.next_wake <= play.now + 1:
        play.perform(play.cluster.wake(play.now + 1))
        assert decided() <= 100, "one wake"
        turns += 1
        play.client(heartbeats(0), 1 + turns % 2)
        assert decided() <= 100, "what arrives meanwhile"
    assert len(play.to_client()) + len(play.to_client(2)) == (3000 + turns) * len(answers(0))
    assert play.paused == set()


def test_large_requests_under_a_rule_count_for_more() -> None:
    rules = ByCorrelationId(api_key=0)
    play = player(rules)
    play.client(b"".join(produce(1, correlation_id=n, size=1 << 16) for n in range(40)))
    assert 0 < len(rules.shown) < 10
    wait(play, SECOND)
    assert len(rules.shown) == 40


def test_what_is_parked_counts_as_held_and_pauses_its_broker() -> None:
    settings = Settings([BROKER], listen_port=19092, held_bytes_max=100_000)
    play = Player(settings, hold_listeners=True)
    body = metadata(*((n, "kafka.example", 9092) for n in range(900)))
    for number in (1, 2, 3, 4, 5):
        play.connect(number)
        play.client(request(3, 9, messages.MetadataRequest()), number)
        play.broker(response(3, 9, body), number)
    assert (1, Side.BROKER) in play.paused
    assert play.closed and "--held-bytes-max" in play.logs[-1]


def test_lowered_versions_under_a_rule_are_recorded_as_they_left() -> None:
    play = faulty(Rule(api="ApiVersions", latency="1ms"))
    kind = messages.ApiVersionsResponse
    body = kind(api_keys=[kind.ApiVersion(api_key=3, min_version=0, max_version=99)])
    play.client(request(18, 3, messages.ApiVersionsRequest()))
    play.broker(response(18, 3, body))
    wait(play, SECOND)
    assert play.frames(Side.BROKER)[0].sent == play.to_client()


def test_after_a_black_hole_no_rule_fires() -> None:
    play = faulty(Rule(name="hole", api="Heartbeat", blackhole=True, times=1), Rule(error=27))
    play.client(heartbeats(1))
    fired = [rule.fired for rule in play.cluster._interests.rules.rules]
    play.client(heartbeats(2, 3))
    end(play, Side.CLIENT)
    assert [rule.fired for rule in play.cluster._interests.rules.rules] == fired == [1, 0]


def test_a_client_that_goes_on_sending_into_a_black_hole_costs_others_nothing() -> None:
    hole = ByCorrelationId({1: Verdict(ending=Ending.BLACKHOLE)})
    limits = Settings([BROKER], pending_requests_max=10, held_bytes_max=1 << 20)
    play = Player(cluster=Cluster(limits, hole))
    play.connect(1)
    play.connect(2)
    play.client(heartbeat(1))
    for _ in range(100):
        if (1, Side.CLIENT) not in play.paused:
            play.client(heartbeats(*range(1000)))
    assert (1, Side.CLIENT) in play.paused
    play.client(heartbeat(2) + produce(1, size=1 << 18)[:-1], 2)
    assert play.to_broker(2)[: len(heartbeat(2))] == heartbeat(2) and not play.closed


def test_a_client_that_takes_nothing_is_not_taken_for_a_silent_broker() -> None:
    play = player()
    play.client(heartbeat(1))
    play.wires[1].takes = False
    play.broker(heartbeat_answer(1))
    end(play, Side.CLIENT)
    wait(play, 15 * SECOND)
    assert not play.closed and play.logs == []
    wait(play, 600 * SECOND)
    assert play.closed and "nothing arrived for 600 s" in play.logs[-1]


@pytest.mark.parametrize("first", ["rule", "client"])
def test_a_slow_close_is_as_slow_where_the_client_has_ended(first: str) -> None:
    play = faulty(Rule(api="Heartbeat", phase="after", slow_close="20s"))
    play.client(heartbeat(1))
    if first == "client":
        end(play, Side.CLIENT)
    play.broker(heartbeat_answer(1))
    wait(play, 19 * SECOND)
    assert not play.closed
    wait(play, 2 * SECOND)
    assert play.closed == {1: False}


def test_a_rule_looks_into_records_whose_schema_is_known() -> None:
    play = faulty(Rule(api=["Produce"], where="value.state:PAID", error=87))
    paid = encode_batch([Record(0, 0, b"k", b"\0\0\0\0\x11\x08PAID")])
    asked = request(0, 9, produce_request({0: paid}), 1)
    play.client(asked)
    assert play.to_broker() == asked, "nobody knows yet what it means"
    fields = [{"name": "state", "type": "string"}]
    text = json.dumps({"type": "record", "name": "Order", "fields": fields})
    play.cluster.learn(notes.schema(1, note_of([17], Schema("AVRO", text))))
    play.client(asked)
    assert play.to_broker() == asked, "kproxy has answered the second one itself"
