"""Each action in each of its phases: what becomes of the request and of its response."""

from __future__ import annotations

import statistics
from typing import Any

import pytest

from kproxy.proxy.faults import Rule, Rules
from kproxy.proxy.verdicts import Ending, Verdict
from kproxy.wire.protocol import api_key, codec, messages, records
from kproxy.wire.protocol.message_sets import encode_message_set
from kproxy.wire.protocol.record_batch import Record
from tests.faults.making import (
    BROKERS,
    KINDS,
    TOPIC_IDS,
    ask,
    frame_of,
    hold_for,
    request_body,
    request_frame,
    respond,
    response_body,
    response_frame,
    sample,
)
from tests.versions import kinds

PRODUCE, FETCH, METADATA, FIND_COORDINATOR, HEARTBEAT, API_VERSIONS = 0, 1, 3, 10, 12, 18
BEAT = request_frame(HEARTBEAT, 4, messages.HeartbeatRequest(group_id="g"))
ANSWER = response_frame(HEARTBEAT, 4, messages.HeartbeatResponse())
WHOLE = len(BEAT)


def batch(*values: bytes) -> bytes:
    """The records of a partition."""
    return records.encode_batch([Record(n, 1000, None, value) for n, value in enumerate(values)])


def produce(acks: int = -1, topics: Any = ("a",)) -> bytes:
    """A request to write one batch to partition 0 of each topic."""
    cls = messages.ProduceRequest
    body = cls(
        acks=acks,
        topic_data=[
            cls.TopicProduceData(
                name=name,
                partition_data=[cls.PartitionProduceData(index=0, records=batch(b"x" * 40))],
            )
            for name in topics
        ],
    )
    return request_frame(PRODUCE, 9, body)


# ── what happens to connections ──────────────────────────────────────────────────────────────

_CASES = list[tuple[dict[str, Any], dict[str, Any]]]
BOTH: _CASES = [
    ({"latency": "3ms"}, {"delay_ns": 3_000_000}),
    ({"drop": True}, {"frames": ()}),
    ({"disconnect": True}, {"ending": Ending.DISCONNECT}),
    ({"reset": True}, {"ending": Ending.RESET}),
    ({"blackhole": True}, {"ending": Ending.BLACKHOLE}),
    ({"slow_close": "2s"}, {"ending": Ending.DISCONNECT, "ending_delay_ns": 2_000_000_000}),
    ({"truncate": 5}, {"ending": Ending.DISCONNECT, "ending_bytes": 5}),
]
BEFORE: _CASES = [
    *BOTH,
    ({"truncate": 5000}, {"ending": Ending.DISCONNECT, "ending_bytes": WHOLE}),
    ({"duplicate": True}, {"frames": (BEAT, BEAT)}),
    ({"bandwidth": "1KiB"}, {"bytes_per_second": 1024}),
]
AFTER: _CASES = [*BOTH, ({"bandwidth": 1024}, {"bytes_per_second": 1024})]


@pytest.mark.parametrize(("words", "expected"), BEFORE, ids=[str(words) for words, _ in BEFORE])
def test_before(words: dict[str, Any], expected: dict[str, Any]) -> None:
    verdict = ask(Rules([Rule(phase="before", **words)]), BEAT)
    without_report = {"fault_ids": verdict.fault_ids, "notes": verdict.notes}
    assert verdict == Verdict(**expected, **without_report)
    assert verdict.fault_ids == (1,)


@pytest.mark.parametrize(("words", "expected"), AFTER, ids=[str(words) for words, _ in AFTER])
def test_after(words: dict[str, Any], expected: dict[str, Any]) -> None:
    verdict = ask(Rules([Rule(phase="after", **words)]), BEAT)
    assert (verdict.frames, verdict.delay_ns, verdict.ending) == (None, 0, None)
    # It is known without the response.
    assert verdict.response == Verdict(**expected, fault_ids=(1,))
    assert respond(verdict, ANSWER) == verdict.response
    assert verdict.fault_ids == (1,)


@pytest.mark.parametrize(
    ("words", "phase"),
    [
        ({"latency": "1ms"}, "after"),
        ({"drop": True}, "after"),
        ({"truncate": 1}, "after"),
        ({"bandwidth": 1}, "after"),
        ({"disconnect": True}, "before"),
        ({"reset": True}, "before"),
        ({"blackhole": True}, "before"),
        ({"slow_close": "1s"}, "before"),
        ({"error": "REBALANCE_IN_PROGRESS", "api": "Heartbeat"}, "before"),
    ],
    ids=str,
)
def test_the_default_phase(words: dict[str, Any], phase: str) -> None:
    verdict = ask(Rules([Rule(**words)]), BEAT)
    assert verdict.notes[0].body["phase"] == phase


@pytest.mark.parametrize("words", [words for words, _ in AFTER], ids=str)
def test_after_a_request_without_a_response(words: dict[str, Any]) -> None:
    rules = Rules([Rule(phase="after", api="Produce", **words)])
    frame = produce(acks=0)
    verdict = ask(rules, frame)
    if set(words) & {"disconnect", "reset", "blackhole", "slow_close"}:
        # The broker gets it, and then the connection ends.
        assert verdict.ending is not None
        assert verdict.ending_bytes == len(frame)
    else:
        assert verdict is None
        assert rules.rules[0].fired == 0


# ── latency ──────────────────────────────────────────────────────────────────────────────────


def delays(latency: Any, count: int = 1500, **more: Any) -> list[float]:
    """The delays of so many responses, in milliseconds."""
    rules = Rules([Rule(latency=latency)], **more)
    found = [ask(rules, BEAT) for _ in range(count)]
    return [respond(verdict, ANSWER).delay_ns / 1e6 for verdict in found]


def test_latencies_are_drawn_as_they_are_meant() -> None:
    uniform = delays({"uniform": ["10ms", "50ms"]})
    assert min(uniform) >= 10
    assert max(uniform) <= 50
    assert 29 < statistics.mean(uniform) < 31
    normal = delays({"normal": {"mean": "20ms", "sigma": "3ms"}})
    assert 19.5 < statistics.mean(normal) < 20.5
    assert 2.7 < statistics.stdev(normal) < 3.3
    lognormal = delays({"lognormal": {"median": "20ms", "sigma": 0.6}})
    assert 18.5 < statistics.median(lognormal) < 21.5
    assert min(delays({"normal": {"mean": "1ms", "sigma": "50ms"}})) == 0


def test_the_same_seed_draws_the_same() -> None:
    latency = {"uniform": ["0ms", "1s"]}
    assert delays(latency, 50, seed=3) == delays(latency, 50, seed=3)
    assert delays(latency, 50, seed=3) != delays(latency, 50, seed=4)


# ── throttle ─────────────────────────────────────────────────────────────────────────────────


def test_a_throttle_time_is_said_wherever_there_is_room_for_it() -> None:
    hold_for(kinds(KINDS), _throttle_time_is_said)


def _throttle_time_is_said(kind: tuple[int, int]) -> None:
    rules = Rules([Rule(throttle="90s")])
    request = sample(*kind)
    if kind[0] == PRODUCE:
        request.acks = 1
    before = response_frame(*kind, sample(*kind, "response"))
    verdict = ask(rules, request_frame(*kind, request))
    if verdict is None:
        assert "throttle_time_ms" not in _fields(*kind)
        return
    body = response_body(frame_of(respond(verdict, before)), *kind)
    assert body.throttle_time_ms == 90_000
    body.throttle_time_ms = codec.decode_response(before, *kind).body.throttle_time_ms
    assert response_frame(*kind, body) == before


def _fields(api_key: int, version: int) -> set[str]:
    from kproxy.wire.protocol import schema

    message = schema.message(api_key, schema.RESPONSE)
    assert message is not None
    return {field.name for field in message.fields if version in field.versions}


@pytest.mark.parametrize(
    ("api", "first"),
    [
        *[("Produce", 6), ("Fetch", 8), ("ListOffsets", 3), ("Metadata", 6), ("OffsetCommit", 4)],
        *[("OffsetFetch", 4), ("FindCoordinator", 2), ("JoinGroup", 3), ("Heartbeat", 2)],
        *[("LeaveGroup", 2), ("SyncGroup", 2), ("DescribeGroups", 2), ("ListGroups", 2)],
        *[("ApiVersions", 2), ("CreateTopics", 3), ("DeleteTopics", 2), ("DeleteRecords", 1)],
        *[("InitProducerId", 1), ("AddPartitionsToTxn", 1), ("EndTxn", 1), ("CreateAcls", 1)],
    ],
)
def test_clients_wait_by_themselves_from_the_version_of_kip_219_on(api: str, first: int) -> None:
    """`first` is where `shouldClientThrottle` of Kafka's response begins to say so."""
    key = api_key(api)
    assert key is not None
    held = []
    for version in (first - 1, first):
        request = sample(key, version)
        if key == PRODUCE:
            request.acks = 1
        verdict = ask(Rules([Rule(throttle="1s")]), request_frame(key, version, request))
        response = response_frame(key, version, sample(key, version, "response"))
        held.append(respond(verdict, response).delay_ns)
    assert held == [1_000_000_000, 0]


# ── corrupt ──────────────────────────────────────────────────────────────────────────────────


def fetched(*contents: bytes, topic: str = "a") -> bytes:
    """A response to a Fetch with one partition for each of these."""
    cls = messages.FetchResponse
    partitions = [
        cls.PartitionData(partition_index=n, records=content) for n, content in enumerate(contents)
    ]
    topic_id = TOPIC_IDS[topic]
    response = cls.FetchableTopicResponse(topic=topic, topic_id=topic_id, partitions=partitions)
    return response_frame(FETCH, 13, cls(responses=[response]))


def fetch(topic: str = "a", partitions: int = 1) -> bytes:
    """A Fetch without a session."""
    cls = messages.FetchRequest
    wanted = [cls.FetchPartition(partition=n) for n in range(partitions)]
    topics = [cls.FetchTopic(topic=topic, topic_id=TOPIC_IDS[topic], partitions=wanted)]
    return request_frame(FETCH, 13, cls(session_id=0, session_epoch=-1, topics=topics))


def differing_bits(one: bytes, other: bytes) -> int:
    """How many bits differ."""
    assert len(one) == len(other)
    return sum((a ^ b).bit_count() for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("bits", [1, 7])
def test_bits_of_records_are_turned_over_and_the_checksum_shows_it(bits: int) -> None:
    rules = Rules([Rule(api="Fetch", corrupt=bits)])
    content = batch(b"one", b"two") + batch(b"three")
    changed = response_body(frame_of(respond(ask(rules, fetch()), fetched(content))), FETCH, 13)
    got = changed.responses[0].partitions[0].records
    assert differing_bits(content, got) == bits
    assert sorted(each.crc_ok for each in records.batches(got)) == [False, True]


def test_a_checksum_can_be_made_to_match() -> None:
    rules = Rules([Rule(api="Produce", corrupt={"bits": 2, "fix_crc": True})])
    verdict = ask(rules, produce())
    (sent,) = verdict.frames
    got = request_body(sent).topic_data[0].partition_data[0].records
    (found,) = records.batches(got)
    assert found.crc_ok
    assert got != batch(b"x" * 40)
    assert len(sent) == len(produce())


@pytest.mark.parametrize("magic", [0, 1])
def test_old_message_sets_are_damaged_too(magic: int) -> None:
    content = encode_message_set([Record(0, 1000, b"k", b"value")], magic=magic)
    for fix_crc in (False, True):
        rules = Rules([Rule(api="Fetch", corrupt={"bits": 1, "fix_crc": fix_crc})])
        body = response_body(frame_of(respond(ask(rules, fetch()), fetched(content))), FETCH, 13)
        (found,) = records.batches(body.responses[0].partitions[0].records)
        assert found.crc_ok is fix_crc


def test_only_the_records_that_are_meant_are_damaged() -> None:
    rules = Rules([Rule(api=["Produce", "Fetch"], topic="b", corrupt=1)])
    verdict = ask(rules, produce(topics=("a", "b")))
    a, b = (t.partition_data[0].records for t in request_body(verdict.frames[0]).topic_data)
    assert a == batch(b"x" * 40)
    assert b != a
    assert ask(rules, produce(topics=("a",))) is None
    rules = Rules([Rule(api="Fetch", partition=1, corrupt=1)])
    frame = fetched(batch(b"0"), batch(b"1"))
    body = response_body(frame_of(respond(ask(rules, fetch(partitions=2)), frame)), FETCH, 13)
    zero, one = (each.records for each in body.responses[0].partitions)
    assert (zero == batch(b"0"), one == batch(b"1")) == (True, False)


def test_where_there_are_no_records_there_is_nothing_to_damage() -> None:
    rules = Rules([Rule(api="Fetch", corrupt=1, times=1)])
    assert frame_of(respond(ask(rules, fetch()), fetched(b""))) is None
    assert frame_of(respond(ask(rules, fetch()), fetched(b"\xff" * 99))) is None
    assert rules.rules[0].fired == 0
    assert frame_of(respond(ask(rules, fetch()), fetched(batch(b"x")))) is not None


# ── the cluster ──────────────────────────────────────────────────────────────────────────────


def metadata(version: int = 12) -> bytes:
    """A response that names three brokers and two topics of two partitions."""
    cls = messages.MetadataResponse
    body = cls(
        controller_id=2,
        brokers=[
            cls.MetadataResponseBroker(node_id=node_id, host=host, port=port)
            for node_id, (host, port) in BROKERS.items()
        ],
        topics=[
            cls.MetadataResponseTopic(
                name=name,
                topic_id=TOPIC_IDS[name],
                partitions=[
                    cls.MetadataResponsePartition(
                        partition_index=n, leader_id=n + 1, leader_epoch=5, replica_nodes=[1, 2]
                    )
                    for n in (0, 1)
                ],
            )
            for name in ("a", "b")
        ],
    )
    return response_frame(METADATA, version, body)


def ask_metadata(rules: Rules, version: int = 12) -> Verdict | None:
    """Ask for all topics."""
    everything = [] if version == 0 else None
    return ask(rules, request_frame(METADATA, version, messages.MetadataRequest(topics=everything)))


def leaders(body: Any) -> dict[tuple[str, int], tuple[int, int, int]]:
    """Partition → leader, epoch, error."""
    return {
        (topic.name, each.partition_index): (each.leader_id, each.leader_epoch, each.error_code)
        for topic in body.topics
        for each in topic.partitions
    }


def test_a_hidden_node_is_nowhere() -> None:
    rules = Rules([Rule(hide_node=2)])
    body = response_body(frame_of(respond(ask_metadata(rules), metadata())), METADATA, 12)
    assert [broker.node_id for broker in body.brokers] == [1, 3]
    assert body.controller_id == -1
    assert leaders(body) == {
        ("a", 0): (1, 5, 0),
        ("a", 1): (-1, 5, 5),
        ("b", 0): (1, 5, 0),
        ("b", 1): (-1, 5, 5),
    }
    cluster = messages.DescribeClusterResponse
    frame = response_frame(
        60, 0, cluster(brokers=[cluster.DescribeClusterBroker(broker_id=n) for n in (1, 2)])
    )
    verdict = ask(rules, request_frame(60, 0, messages.DescribeClusterRequest()))
    found = response_body(frame_of(respond(verdict, frame)), 60, 0)
    assert [broker.broker_id for broker in found.brokers] == [1]


@pytest.mark.parametrize("version", [0, 3, 4, 6])
def test_a_hidden_node_is_no_coordinator(version: int) -> None:
    rules = Rules([Rule(hide_node=2)])
    body = response_body(
        frame_of(respond(find_coordinator(rules, version), coordinator(version))),
        FIND_COORDINATOR,
        version,
    )
    found = body.coordinators[0] if version >= 4 else body
    assert (found.node_id, found.host, found.port, found.error_code) == (-1, "", -1, 15)


def find_coordinator(rules: Rules, version: int, key: str = "g") -> Verdict | None:
    """Ask for the coordinator of a group."""
    request = messages.FindCoordinatorRequest(key=key, coordinator_keys=[key])
    return ask(rules, request_frame(FIND_COORDINATOR, version, request))


def coordinator(version: int, node_id: int = 2, key: str = "g") -> bytes:
    """A response that names it."""
    host, port = BROKERS[node_id]
    cls = messages.FindCoordinatorResponse
    one = cls.Coordinator(key=key, node_id=node_id, host=host, port=port)
    body = cls(node_id=node_id, host=host, port=port, coordinators=[one])
    return response_frame(FIND_COORDINATOR, version, body)


@pytest.mark.parametrize("version", range(7))
def test_another_node_is_named_as_coordinator(version: int) -> None:
    rules = Rules([Rule(group="g", move_coordinator=3, times=1)])
    frame = frame_of(respond(find_coordinator(rules, version), coordinator(version)))
    body = response_body(frame, FIND_COORDINATOR, version)
    found = body.coordinators[0] if version >= 4 else body
    assert (found.node_id, (found.host, found.port)) == (3, BROKERS[3])
    assert find_coordinator(rules, version) is None
    assert find_coordinator(Rules([Rule(group="h", move_coordinator=3)]), version) is None


def test_any_other_node_is_one_that_the_cluster_has() -> None:
    named = set()
    for seed in range(20):
        rules = Rules([Rule(move_coordinator=True)], seed=seed)
        body = response_body(
            frame_of(respond(find_coordinator(rules, 3), coordinator(3))), FIND_COORDINATOR, 3
        )
        named.add(body.node_id)
    assert named == {1, 3}
    rules = Rules([Rule(move_coordinator=77)])
    assert frame_of(respond(find_coordinator(rules, 3), coordinator(3))) is None
    assert rules.rules[0].fired == 0


@pytest.mark.parametrize("version", [0, 7, 12])
def test_a_stale_leader_is_another_replica_with_an_older_epoch(version: int) -> None:
    rules = Rules([Rule(topic="a", stale_leader=True)])
    body = response_body(
        frame_of(respond(ask_metadata(rules, version), metadata(version))), METADATA, version
    )
    epochs = (4, 5) if version >= 7 else (-1, -1)
    assert leaders(body) == {
        ("a", 0): (2, epochs[0], 0),
        ("a", 1): (1, epochs[0], 0),
        ("b", 0): (1, epochs[1], 0),
        ("b", 1): (2, epochs[1], 0),
    }


def test_a_stale_leader_can_be_named() -> None:
    rules = Rules([Rule(topic="b", partition=0, stale_leader=3)])
    body = response_body(frame_of(respond(ask_metadata(rules), metadata())), METADATA, 12)
    assert leaders(body)["b", 0] == (3, 4, 0)
    assert leaders(body)["b", 1] == (2, 5, 0)
    assert frame_of(respond(ask_metadata(Rules([Rule(stale_leader=77)])), metadata())) is None


def test_a_client_is_told_to_bootstrap_again() -> None:
    rules = Rules([Rule(rebootstrap=True)])
    verdict = ask_metadata(rules, 13)
    assert response_body(verdict.response.frames[0], METADATA, 13).error_code == 129
    assert ask_metadata(rules, 12) is None
    request = messages.ApiVersionsRequest(client_software_name="x", client_software_version="1")
    answered = ask(rules, request_frame(API_VERSIONS, 5, request)).response.frames[0]
    assert response_body(answered, API_VERSIONS, 5).error_code == 129


# ── versions ─────────────────────────────────────────────────────────────────────────────────


def versions(body_version: int = 4) -> bytes:
    """What a broker can."""
    cls = messages.ApiVersionsResponse
    entries = [(0, 3, 13), (1, 4, 18), (60, 0, 2)]
    body = cls(
        api_keys=[cls.ApiVersion(api_key=k, min_version=a, max_version=b) for k, a, b in entries]
    )
    return response_frame(API_VERSIONS, body_version, body)


def told(words: dict[str, Any], frame: bytes) -> list[tuple[int, int, int]] | None:
    """What a client of version 4 is told of the broker's APIs."""
    request = messages.ApiVersionsRequest(client_software_name="x", client_software_version="1")
    verdict = ask(Rules([Rule(**words)]), request_frame(API_VERSIONS, 4, request))
    changed = frame_of(respond(verdict, frame))
    if changed is None:
        return None
    body = codec.decode_response(changed, API_VERSIONS, 4).body
    return [(e.api_key, e.min_version, e.max_version) for e in body.api_keys]


def test_versions_are_capped() -> None:
    caps = {"Produce": 7, "Fetch": 99, "60": 0}
    assert told({"max_version": caps}, versions()) == [(0, 3, 7), (1, 4, 18), (60, 0, 0)]
    assert told({"max_version": {"Produce": 1}}, versions())[0] == (0, 3, 3)
    assert told({"max_version": {"Fetch": 18}}, versions()) is None


def test_apis_are_hidden() -> None:
    assert told({"hide_api": ["DescribeCluster", 1]}, versions()) == [(0, 3, 13)]
    assert told({"hide_api": "Vote"}, versions()) is None


def test_a_broker_that_answers_in_version_0_is_capped_too() -> None:
    cls = messages.ApiVersionsResponse
    entry = cls.ApiVersion(api_key=18, min_version=0, max_version=3)
    frame = response_frame(API_VERSIONS, 0, cls(error_code=35, api_keys=[entry]))
    assert told({"max_version": {"ApiVersions": 2}}, frame) == [(18, 0, 2)]
