"""Fetch sessions: a client and a broker that keep one, with rules between them.

The broker is a small model of KIP-227: it answers an incremental Fetch only for the partitions of
the session that have something new. The client is a Java client: it says what has changed, and
begins anew after an error of the session.
"""

from __future__ import annotations

from typing import Any

import attrs
import hypothesis
import pytest
from hypothesis import strategies as st

from kproxy.proxy.faults import Rule, Rules
from kproxy.wire.protocol import codec, messages
from tests.faults.making import (
    TOPIC_IDS,
    ask,
    frame_of,
    request_body,
    request_frame,
    respond,
    response_body,
    response_frame,
)

FETCH, SHARE_FETCH = 1, 78
OK, NOT_LEADER, SESSION_NOT_FOUND, INVALID_EPOCH = 0, 6, 70, 71
SHARE_SESSION_NOT_FOUND = 122

Partition = tuple[str, int]
PARTITIONS = [(topic, number) for topic in ("a", "b", "c") for number in (0, 1)]


def grouped(partitions: Any) -> dict[str, list[int]]:
    """Topic → partitions."""
    found: dict[str, list[int]] = {}
    for topic, number in partitions:
        found.setdefault(topic, []).append(number)
    return found


@attrs.define
class Client:
    """A consumer's side of a session."""

    version: int
    session_id: int = 0
    epoch: int = 0
    asked: frozenset[Partition] = frozenset()
    """What the broker was told."""

    def request(self, wanted: frozenset[Partition]) -> bytes:
        """Ask for these partitions, saying only what is new."""
        full = self.epoch <= 0
        news = wanted if full else wanted - self.asked
        gone = frozenset() if full else self.asked - wanted
        self.asked = wanted
        cls = messages.FetchRequest
        body = cls(
            max_wait_ms=500,
            session_id=self.session_id,
            session_epoch=self.epoch,
            topics=[
                cls.FetchTopic(
                    topic=topic,
                    topic_id=TOPIC_IDS[topic],
                    partitions=[cls.FetchPartition(partition=n) for n in numbers],
                )
                for topic, numbers in grouped(sorted(news)).items()
            ],
            forgotten_topics_data=[
                cls.ForgottenTopic(topic=topic, topic_id=TOPIC_IDS[topic], partitions=numbers)
                for topic, numbers in grouped(sorted(gone)).items()
            ],
        )
        return request_frame(FETCH, self.version, body)

    def receive(self, frame: bytes) -> dict[Partition, int]:
        """Read a response: partition → error code. After an error the session begins anew."""
        body = response_body(frame, FETCH, self.version)
        if body.error_code:
            self.session_id = self.epoch = 0
            return {}
        self.session_id = body.session_id
        self.epoch = self.epoch + 1 if body.session_id else 0
        return dict(partitions(body))


def partitions(body: Any) -> list[tuple[Partition, int]]:
    """The partitions of a response with their error codes."""
    names = {value: name for name, value in TOPIC_IDS.items()}
    return [
        ((topic.topic or names[topic.topic_id], each.partition_index), each.error_code)
        for topic in body.responses
        for each in topic.partitions
    ]


@attrs.define
class Broker:
    """A broker's side of its sessions."""

    version: int
    sessions: dict[int, tuple[int, set[Partition]]] = attrs.field(factory=dict)
    waits: list[int] = attrs.field(factory=list)
    """How long it was asked to wait for data, request by request."""

    def respond(self, frame: bytes, news: frozenset[Partition]) -> bytes:
        """Answer a Fetch; of a session only those that have something new."""
        body = request_body(frame)
        self.waits.append(body.max_wait_ms)
        names = {value: name for name, value in TOPIC_IDS.items()}
        said = [
            (topic.topic or names[topic.topic_id], each.partition)
            for topic in body.topics
            for each in topic.partitions
        ]
        if body.session_id == 0 or body.session_epoch <= 0:
            self.sessions.pop(body.session_id, None)
            session_id = 0
            if body.session_epoch == 0:
                session_id = len(self.waits) + 100
                self.sessions[session_id] = (1, set(said))
            return self._frame(said, session_id)
        if body.session_id not in self.sessions:
            return self._frame([], 0, SESSION_NOT_FOUND)
        epoch, kept = self.sessions[body.session_id]
        if epoch != body.session_epoch:
            return self._frame([], 0, INVALID_EPOCH)
        kept.update(said)
        for topic in body.forgotten_topics_data:
            name = topic.topic or names[topic.topic_id]
            kept.difference_update((name, number) for number in topic.partitions)
        self.sessions[body.session_id] = (epoch + 1, kept)
        return self._frame(sorted(kept & news), body.session_id)

    def _frame(self, found: list[Partition], session_id: int, error: int = 0) -> bytes:
        cls = messages.FetchResponse
        body = cls(
            error_code=error,
            session_id=session_id,
            responses=[
                cls.FetchableTopicResponse(
                    topic=topic,
                    topic_id=TOPIC_IDS[topic],
                    partitions=[
                        cls.PartitionData(partition_index=n, high_watermark=9, records=b"")
                        for n in numbers
                    ],
                )
                for topic, numbers in grouped(found).items()
            ],
        )
        return response_frame(FETCH, self.version, body)


def exchange(
    rules: Rules, client: Client, broker: Broker, wanted: frozenset[Partition], news: Any
) -> dict[Partition, int]:
    """One Fetch from the client through the rules to the broker, and back."""
    frame = client.request(wanted)
    verdict = ask(rules, frame)
    if verdict is not None and verdict.own_response is not None:
        return client.receive(frame_of(verdict.own_response))
    sent = frame if verdict is None or verdict.frames is None else verdict.frames[0]
    answered = broker.respond(sent, frozenset(news))
    return client.receive(frame_of(respond(verdict, answered)) or answered)


STEPS = st.lists(
    st.tuples(
        st.frozensets(st.sampled_from(PARTITIONS), min_size=1),
        st.frozensets(st.sampled_from(PARTITIONS)),
    ),
    min_size=1,
    max_size=12,
)


@pytest.mark.parametrize("version", [7, 12, 18])
@pytest.mark.parametrize("phase", ["before", "after"])
@hypothesis.given(steps=STEPS, every=st.integers(1, 3))
@hypothesis.settings(max_examples=30)
def test_whoever_is_meant_fails_and_the_session_goes_on(
    version: int, phase: str, steps: Any, every: int
) -> None:
    rule = Rule(api="Fetch", topic="a", error="NOT_LEADER_OR_FOLLOWER", phase=phase, every=every)
    rules = Rules([rule])
    client, broker = Client(version), Broker(version)
    for wanted, news in steps:
        was_new = client.epoch == 0
        fired = rules.rules[0].fired
        found = exchange(rules, client, broker, wanted, news)
        meant = {partition for partition in wanted if partition[0] == "a"}
        if rules.rules[0].fired > fired:
            assert {each for each, code in found.items() if code == NOT_LEADER} == meant
        else:
            assert set(found.values()) <= {OK}
        others = wanted - meant if rules.rules[0].fired > fired else wanted
        expected = others if was_new else others & news
        if not (rules.rules[0].fired > fired and meant == wanted and was_new and phase == "before"):
            assert {each for each, code in found.items() if code == OK} == expected
        if client.session_id:
            assert broker.sessions[client.session_id] == (client.epoch, set(wanted))


def test_the_broker_does_not_wait_for_data_where_a_part_fails() -> None:
    rules = Rules([Rule(api="Fetch", topic="a", error="NOT_LEADER_OR_FOLLOWER", every=2)])
    client, broker = Client(13), Broker(13)
    for _ in range(3):
        exchange(rules, client, broker, frozenset(PARTITIONS), [])
    assert broker.waits == [500, 0, 500]


def test_a_session_that_was_not_followed_begins_anew() -> None:
    rules = Rules()
    client, broker = Client(12), Broker(12)
    wanted = frozenset(PARTITIONS)
    exchange(rules, client, broker, wanted, [])
    exchange(rules, client, broker, wanted, [])
    assert client.epoch == 2
    rules.add(Rule(api="Fetch", topic="b", error="NOT_LEADER_OR_FOLLOWER"))
    assert exchange(rules, client, broker, wanted, []) == {}
    assert client.epoch == 0
    found = exchange(rules, client, broker, wanted, [])
    assert {each for each, code in found.items() if code} == {("b", 0), ("b", 1)}
    assert len(found) == len(PARTITIONS)


def test_a_gap_in_what_was_seen_is_noticed() -> None:
    rules = Rules([Rule(name="x", api="Fetch", topic="b", latency="1ms")])
    client, broker = Client(12), Broker(12)
    wanted = frozenset(PARTITIONS)
    exchange(rules, client, broker, wanted, [])
    rules.enable("x", False)
    exchange(rules, client, broker, wanted - {("a", 0)}, [])
    rules.enable("x")
    assert exchange(rules, client, broker, wanted, []) == {}
    assert client.epoch == 0


def test_rules_that_do_not_look_at_partitions_leave_sessions_alone() -> None:
    client, broker = Client(12), Broker(12)
    exchange(Rules(), client, broker, frozenset(PARTITIONS), [])
    rules = Rules([Rule(api="Fetch", latency="1ms"), Rule(api="Fetch", times=1, drop=True)])
    assert exchange(rules, client, broker, frozenset(PARTITIONS), [("a", 1)]) == {("a", 1): OK}


def test_a_client_may_have_no_more_than_a_few_sessions() -> None:
    rules = Rules([Rule(api="Fetch", topic="b", error="NOT_LEADER_OR_FOLLOWER", skip=99)])
    broker = Broker(12)
    clients = [Client(12) for _ in range(20)]
    for client in clients:
        exchange(rules, client, broker, frozenset(PARTITIONS), [])
    exchange(rules, clients[0], broker, frozenset(PARTITIONS), [])
    exchange(rules, clients[-1], broker, frozenset(PARTITIONS), [])
    assert (clients[0].epoch, clients[-1].epoch) == (0, 2)


# ── share groups ─────────────────────────────────────────────────────────────────────────────


def share_fetch(epoch: int, topics: Any = (), forgotten: Any = ()) -> bytes:
    """A ShareFetch of the session of one member."""
    cls = messages.ShareFetchRequest
    body = cls(
        group_id="g",
        member_id="m",
        share_session_epoch=epoch,
        topics=[
            cls.FetchTopic(
                topic_id=TOPIC_IDS[name],
                partitions=[cls.FetchPartition(partition_index=n) for n in numbers],
            )
            for name, numbers in grouped(topics).items()
        ],
        forgotten_topics_data=[
            cls.ForgottenTopic(topic_id=TOPIC_IDS[name], partitions=numbers)
            for name, numbers in grouped(forgotten).items()
        ],
    )
    return request_frame(SHARE_FETCH, 1, body)


def shared(verdict: Any) -> list[tuple[Partition, int]]:
    """What the client gets where the broker has nothing new."""
    cls = messages.ShareFetchResponse
    frame = frame_of(respond(verdict, response_frame(SHARE_FETCH, 1, cls())))
    if frame is None:
        return []
    names = {value: name for name, value in TOPIC_IDS.items()}
    body = response_body(frame, SHARE_FETCH, 1)
    return [
        ((names[topic.topic_id], each.partition_index), each.error_code)
        for topic in body.responses
        for each in topic.partitions
    ]


def test_share_sessions_are_followed_too() -> None:
    rules = Rules([Rule(api="ShareFetch", topic="a", error="NOT_LEADER_OR_FOLLOWER")])
    first = ask(rules, share_fetch(0, [("a", 0), ("b", 0)]))
    assert shared(first) == [(("a", 0), NOT_LEADER)]
    second = ask(rules, share_fetch(1, [("a", 1)]))
    assert second.frames is None  # the broker counts the requests of a session
    assert shared(second) == [(("a", 0), NOT_LEADER), (("a", 1), NOT_LEADER)]
    third = ask(rules, share_fetch(2, forgotten=[("a", 0)]))
    assert shared(third) == [(("a", 1), NOT_LEADER)]
    ask(rules, share_fetch(-1))
    unknown = ask(rules, share_fetch(3))
    response = codec.decode_response(frame_of(unknown.own_response), SHARE_FETCH, 1)
    assert response.body.error_code == SHARE_SESSION_NOT_FOUND


def test_what_another_rule_decides_is_not_counted_where_a_session_begins_anew() -> None:
    parted, other = Rule(api="ShareFetch", drop=True), Rule(api="ShareFetch", topic="a", drop=True)
    rules = Rules([parted, other])
    found = ask(rules, share_fetch(3, [("a", 0)]))
    assert found.own_response is not None
    assert [rule.fired for rule in rules.rules] == [0, 0]
    (note,) = found.notes  # but the recording says why the client must begin anew
    assert (note.body["event"], note.body["rule"]) == ("session_refused", rules.rules[1].name)
    assert found.fault_ids == found.own_response.fault_ids == (rules.rules[1].fault_id,)
