"""Errors for parts of what was asked: they fail, and nothing else does.

A model broker answers every item that it is asked for, without an error; what the client gets is
compared with what it asked.
"""

from __future__ import annotations

import functools
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from kproxy.proxy.faults import Rule, Rules, errors
from kproxy.proxy.faults.errors import InjectedError
from kproxy.proxy.faults.items import elements, items, own_keys, shape
from kproxy.proxy.verdicts import Ending, Verdict
from kproxy.wire.protocol import codec, messages, schema
from kproxy.wire.protocol.plain import uuid_text
from tests.faults.making import (
    KINDS,
    TOPIC_IDS,
    TOPIC_NAMES,
    answer_body,
    ask,
    frame_of,
    hold_for,
    kind_name,
    request_body,
    request_frame,
    respond,
    response_body,
    response_frame,
    sample,
)
from tests.versions import kinds
from tests.wire.protocol.strategies import bodies

UNKNOWN = -1
FETCH, PRODUCE, METADATA, SHARE_FETCH = 1, 0, 3, 78


@functools.cache
def parts(level: str) -> list[tuple[int, int]]:
    """The versions with an error code for each topic, or for each partition, that are asked for."""
    found = []
    for kind in KINDS:
        depth = errors.depth(*kind, level, frozenset())
        known = shape(*kind)
        assert known is not None
        if depth is not None and depth <= known.echoed and known.requests:
            found.append(kind)
    return found


def named(api_key: int, version: int) -> Any:
    """A request for two topics (with two partitions each), whose ids have names."""
    body = sample(api_key, version)
    if api_key == PRODUCE:
        body.acks = -1
    if api_key == FETCH:
        body.session_id, body.session_epoch = 0, -1
        body.forgotten_topics_data = []
    if api_key == SHARE_FETCH:
        body.share_session_epoch = 0
    known = shape(api_key, version)
    assert known is not None
    for item in items(known, body):
        topic_id = item.keys.get("topic_id")
        if topic_id is not None:
            name = item.keys.get("topic") or f"t{topic_id.int}"
            TOPIC_NAMES.note({"topic_id": uuid_text(topic_id), "topic": name})
    return body


def broker(api_key: int, version: int, frame: bytes) -> bytes:
    """The response of a broker that has all that it is asked for."""
    request = codec.decode_request(frame)
    known = shape(api_key, version)
    assert known is not None
    response = schema.message(api_key, schema.RESPONSE)
    assert response is not None
    body: Any = messages.message_class(response.name)()
    failure = InjectedError(api_key, version, 0, "", known.echoed)
    errors.fail_items(failure, body, items(known, request.body), known.echoed)
    if hasattr(body, "throttle_time_ms"):
        body.throttle_time_ms = 77
    return response_frame(api_key, version, body, trailing=b"more")


def outcome(verdict: Verdict | None, api_key: int, version: int, frame: bytes) -> bytes:
    """The response that the client gets."""
    assert verdict is not None
    if verdict.own_response is not None:
        return frame_of(verdict.own_response)
    sent = frame if verdict.frames is None else verdict.frames[0]
    answered = broker(api_key, version, sent)
    return frame_of(respond(verdict, answered)) or answered


def topic_of(keys: dict[str, Any]) -> str:
    """The topic's name."""
    return keys.get("topic") or TOPIC_NAMES.name(keys["topic_id"])


@pytest.mark.parametrize("phase", ["before", "after"])
def test_only_the_topic_that_is_meant_fails(phase: str) -> None:
    hold_for(kinds({*parts("topic"), *parts("partition")}), _only_its_topic_fails, phase)


def _only_its_topic_fails(kind: tuple[int, int], phase: str) -> None:
    api_key = kind[0]
    level = "partition" if kind in parts("partition") else "topic"
    depth = errors.depth(*kind, level, frozenset())
    known = shape(*kind)
    assert known is not None
    assert depth is not None
    request = named(*kind)
    asked = items(known, request)
    meant = topic_of(asked[0].keys)
    rules = Rules(
        [Rule(api=api_key, topic=meant, level=level, phase=phase, error="UNKNOWN_SERVER_ERROR")]
    )
    frame = request_frame(*kind, request, trailing=b"tail")
    verdict = ask(rules, frame)
    got = codec.decode_response(outcome(verdict, *kind, frame), *kind)

    found = []
    levels = known.response[:depth]
    code = errors.places(*kind).codes[depth]
    for keys, element in _at(got.body, levels, own_keys(known, request)):
        found.append((topic_of(keys), keys.get("partition"), getattr(element, code)))
    expected = [(topic_of(item.keys), item.keys.get("partition")) for item in asked]
    assert sorted(found) == sorted(
        (topic, partition, UNKNOWN if topic == meant else 0) for topic, partition in set(expected)
    )
    assert got.trailing == b"more"
    if hasattr(got.body, "throttle_time_ms"):
        assert got.body.throttle_time_ms in (77, 0)
    if phase == "before" and not known.reads:
        left = {topic_of(item.keys) for item in items(known, request_body(verdict.frames[0]))}
        assert left == {topic for topic, _ in expected} - {meant}
    elif api_key != FETCH:
        assert verdict.frames is None
    (rule,) = rules.rules
    assert (rule.matched, rule.fired) == (1, 1)


def _at(value: Any, levels: Any, keys: dict[str, Any]) -> Any:
    for element in getattr(value, levels[0].array):
        below = keys | levels[0].read(element)
        if len(levels) > 1:
            yield from _at(element, levels[1:], below)
        else:
            yield below, element


def test_a_rule_for_something_else_changes_nothing() -> None:
    hold_for(kinds(KINDS), _nothing_is_changed)


def _nothing_is_changed(kind: tuple[int, int]) -> None:
    words = {"topic": "elsewhere", "group": "elsewhere", "transactional_id": "elsewhere"}
    rules = Rules([{key: value, "latency": "1s"} for key, value in words.items()])
    frame = request_frame(*kind, named(*kind))
    verdict = ask(rules, frame)
    assert verdict is None or verdict.frames is None
    response = response_frame(*kind, sample(*kind, schema.RESPONSE))
    assert frame_of(respond(verdict, response)) is None
    assert respond(verdict, response).delay_ns == 0
    assert not any(rule.fired for rule in rules.rules)


@pytest.mark.parametrize("kind", kinds(parts("partition")), ids=kind_name)
@hypothesis.given(data=st.data())
@hypothesis.settings(max_examples=3)
def test_what_no_rule_touches_stays_byte_for_byte(
    kind: tuple[int, int], data: st.DataObject
) -> None:
    """A response of anything at all, unknown tags included: all but the one partition stays."""
    response = schema.message(kind[0], schema.RESPONSE)
    known = shape(*kind)
    assert response is not None
    assert known is not None
    body = data.draw(bodies(response, kind[1]))
    top = errors.places(*kind).codes[0]
    if top is not None:
        setattr(body, top, 0)
    request = named(*kind)
    keys = items(known, request)[0].keys
    topic, partition = topic_of(keys), keys["partition"]
    rules = Rules(
        [
            Rule(
                api=kind[0],
                topic=topic,
                partition=partition,
                level="partition",
                phase="after",
                error="UNKNOWN_SERVER_ERROR",
            )
        ]
    )
    frame = response_frame(*kind, body)
    verdict = ask(rules, request_frame(*kind, request))
    changed = frame_of(respond(verdict, frame))
    if changed is None:
        return
    before, after = codec.decode_response(frame, *kind), codec.decode_response(changed, *kind)
    _blank(kind, before.body, topic, partition)
    _blank(kind, after.body, topic, partition)
    assert before == after


def _blank(kind: tuple[int, int], body: Any, topic: str, partition: int) -> None:
    """Take the partition that is meant out, so that the rest can be compared."""
    depth = errors.depth(*kind, "partition", frozenset())
    known = shape(*kind)
    assert known is not None
    assert depth is not None
    *above, last = known.response[:depth]
    parents = [element for _, element in _at(body, above, {})] if above else [body]
    for parent in parents:
        kept = []
        for element in getattr(parent, last.array):
            keys = last.read(element)
            for level in above:
                keys |= level.read(parent)
            name = keys.get("topic") or TOPIC_NAMES.name(keys.get("topic_id"))
            if (name, keys.get("partition")) != (topic, partition):
                kept.append(element)
        setattr(parent, last.array, kept)
    if above:
        level = known.response[depth - 2]
        for holder in [body]:
            if depth == 2:
                kept = [e for e in getattr(holder, level.array) if getattr(e, last.array)]
                setattr(holder, level.array, kept)


# ── Produce ──────────────────────────────────────────────────────────────────────────────────


def produce(topics: dict[str, list[int]], acks: int = -1) -> messages.ProduceRequest:
    """A request to write to these partitions."""
    cls = messages.ProduceRequest
    return cls(
        acks=acks,
        timeout_ms=1000,
        topic_data=[
            cls.TopicProduceData(
                name=name,
                partition_data=[cls.PartitionProduceData(index=n, records=b"r") for n in indexes],
            )
            for name, indexes in topics.items()
        ],
    )


def test_of_one_topic_one_partition_fails() -> None:
    rules = Rules([Rule(api="Produce", topic="a", partition=3, error="NOT_LEADER_OR_FOLLOWER")])
    frame = request_frame(PRODUCE, 9, produce({"a": [0, 3], "b": [3]}))
    verdict = ask(rules, frame)
    sent = request_body(verdict.frames[0])
    assert [(t.name, [p.index for p in t.partition_data]) for t in sent.topic_data] == [
        ("a", [0]),
        ("b", [3]),
    ]
    body = response_body(outcome(verdict, PRODUCE, 9, frame), PRODUCE, 9)
    found = [(t.name, p.index, p.error_code) for t in body.responses for p in t.partition_responses]
    assert sorted(found) == [("a", 0, 0), ("a", 3, 6), ("b", 3, 0)]


def test_after_the_broker_has_written_the_client_is_told_otherwise() -> None:
    rules = Rules([Rule(api="Produce", phase="after", error="REQUEST_TIMED_OUT")])
    frame = request_frame(PRODUCE, 9, produce({"a": [0]}))
    verdict = ask(rules, frame)
    assert verdict.frames is None
    body = response_body(outcome(verdict, PRODUCE, 9, frame), PRODUCE, 9)
    (partition,) = body.responses[0].partition_responses
    assert (partition.error_code, partition.base_offset) == (7, -1)


@pytest.mark.parametrize(("phase", "sent"), [("before", False), ("after", True)])
def test_without_a_response_an_error_closes_the_connection(phase: str, sent: bool) -> None:
    rules = Rules([Rule(api="Produce", phase=phase, error="NOT_LEADER_OR_FOLLOWER")])
    frame = request_frame(PRODUCE, 9, produce({"a": [0]}, acks=0))
    verdict = ask(rules, frame)
    assert verdict.ending is Ending.DISCONNECT
    assert verdict.ending_bytes == (len(frame) if sent else 0)


# ── Metadata and others ──────────────────────────────────────────────────────────────────────


def metadata(*names: str) -> messages.MetadataResponse:
    """A response that knows these topics, of two partitions each."""
    cls = messages.MetadataResponse
    partition = cls.MetadataResponsePartition
    return cls(
        brokers=[cls.MetadataResponseBroker(node_id=n, host=f"h{n}", port=9092) for n in (1, 2)],
        topics=[
            cls.MetadataResponseTopic(
                name=name,
                topic_id=TOPIC_IDS[name],
                partitions=[
                    partition(partition_index=n, leader_id=1, replica_nodes=[1, 2], isr_nodes=[1])
                    for n in (0, 1)
                ],
            )
            for name in names
        ],
    )


@pytest.mark.parametrize("version", range(14))
def test_all_topics_were_asked_for_and_one_fails(version: int) -> None:
    everything = messages.MetadataRequest(topics=[] if version == 0 else None)
    rules = Rules([Rule(api="Metadata", topic="b", error="LEADER_NOT_AVAILABLE")])
    verdict = ask(rules, request_frame(METADATA, version, everything))
    assert not any(rule.matched for rule in rules.rules)  # only the response can tell
    response = response_frame(METADATA, version, metadata("a", "b"))
    found = respond(verdict, response)
    body = response_body(frame_of(found), METADATA, version)
    assert len(body.brokers) == 2
    assert [(t.name, t.error_code, len(t.partitions)) for t in body.topics] == [
        ("a", 0, 2),
        ("b", 5, 0),
    ]
    assert found.fault_ids == (1,)
    assert [note.body["rule"] for note in found.notes] == [rules.rules[0].name]


def test_a_partition_without_a_leader_keeps_its_replicas() -> None:
    rules = Rules([Rule(api="Metadata", partition=1, error="REPLICA_NOT_AVAILABLE")])
    request = messages.MetadataRequest(
        topics=[messages.MetadataRequest.MetadataRequestTopic(name="a")]
    )
    verdict = ask(rules, request_frame(METADATA, 12, request))
    body = response_body(
        frame_of(respond(verdict, response_frame(METADATA, 12, metadata("a")))), METADATA, 12
    )
    found = [(p.error_code, p.leader_id, p.replica_nodes) for p in body.topics[0].partitions]
    assert found == [(0, 1, [1, 2]), (9, -1, [1, 2])]


def test_what_the_response_does_not_have_has_not_failed() -> None:
    rules = Rules([Rule(api="Metadata", topic="c", error="LEADER_NOT_AVAILABLE", times=1)])
    everything = request_frame(METADATA, 12, messages.MetadataRequest(topics=None))
    response = response_frame(METADATA, 12, metadata("a", "b"))
    assert frame_of(respond(ask(rules, everything), response)) is None
    assert (rules.rules[0].matched, rules.rules[0].fired) == (0, 0)


def test_one_group_of_two_fails() -> None:
    cls = messages.OffsetFetchRequest
    group = cls.OffsetFetchRequestGroup
    request = cls(groups=[group(group_id=name, topics=None) for name in ("billing", "other")])
    rules = Rules([Rule(api="OffsetFetch", group="billing", error="NOT_COORDINATOR")])
    verdict = ask(rules, request_frame(9, 8, request))
    answered = messages.OffsetFetchResponse
    response = answered(
        groups=[answered.OffsetFetchResponseGroup(group_id=name) for name in ("billing", "other")]
    )
    body = response_body(frame_of(respond(verdict, response_frame(9, 8, response))), 9, 8)
    assert [(one.group_id, one.error_code) for one in body.groups] == [
        ("billing", 16),
        ("other", 0),
    ]


@pytest.mark.parametrize(("kind", "matches"), [(0, True), (1, False)])
@pytest.mark.parametrize("version", range(7))
def test_a_coordinator_is_that_of_a_group_or_of_a_transaction(
    version: int, kind: int, matches: bool
) -> None:
    if version == 0 and kind:
        return  # knows groups only
    request = messages.FindCoordinatorRequest(key="x", key_type=kind, coordinator_keys=["x"])
    rules = Rules([Rule(api="FindCoordinator", group="x", error="COORDINATOR_NOT_AVAILABLE")])
    verdict = ask(rules, request_frame(10, version, request))
    assert (verdict is not None) is matches
    if matches:
        body = answer_body(verdict, 10, version)
        found = body.coordinators[0] if version >= 4 else body
        assert (found.error_code, found.node_id, found.host, found.port) == (15, -1, "", -1)


def test_an_unsupported_version_is_answered_in_version_0() -> None:
    rules = Rules([Rule(api="ApiVersions", error="UNSUPPORTED_VERSION")])
    request = messages.ApiVersionsRequest(client_software_name="x", client_software_version="1")
    verdict = ask(rules, request_frame(18, 4, request))
    response = codec.decode_response(verdict.response.frames[0], 18, 4)
    assert (response.body_version, response.body.error_code) == (0, 35)
    assert [(e.api_key, e.max_version) for e in response.body.api_keys] == [(18, 3)]


def test_the_error_of_describe_log_dirs_stands_where_the_version_has_it() -> None:
    rules = Rules([Rule(api="DescribeLogDirs", error="KAFKA_STORAGE_ERROR")])
    cls = messages.DescribeLogDirsResponse
    response = cls(results=[cls.DescribeLogDirsResult(log_dir="/d")])
    verdict = ask(rules, request_frame(35, 1, messages.DescribeLogDirsRequest(topics=None)))
    body = response_body(frame_of(respond(verdict, response_frame(35, 1, response))), 35, 1)
    assert [one.error_code for one in body.results] == [56]


def test_every_chain_has_the_same_response() -> None:
    # Elements are found by the one response chain of a shape.
    for kind in KINDS:
        known = shape(*kind)
        assert known is not None
        body = sample(*kind, schema.RESPONSE)
        assert [item.keys for item in elements(body, known.response, {})] or not known.response
