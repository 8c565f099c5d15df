"""A topic that is deleted and created again: each of them has its own records."""

from __future__ import annotations

import uuid
from typing import Any

import attrs
import pytest

from kproxy.replay.settings import Mode, ReplaySettings, Visible
from kproxy.wire.protocol import codes, error_name, messages, records
from tests.replay.making import Playing, Recorded, batch, fetch, produce
from tests.replay.running import App, Live, Replayed, loaded_of

IDS = [uuid.UUID(int=number) for number in (21, 22, 23)]
ALL = ReplaySettings()
CAUSAL = ReplaySettings(visible=Visible.CAUSAL)


def created(was: Recorded, topic_id: uuid.UUID | None, partitions: int = 1) -> Recorded:
    """A client has created "orders"; with an id, or in a version that has none."""
    request, response = messages.CreateTopicsRequest, messages.CreateTopicsResponse
    asked = request(topics=[request.CreatableTopic(name="orders", num_partitions=partitions)])
    result = response.CreatableTopicResult(name="orders", num_partitions=partitions)
    if topic_id is not None:
        result.topic_id = topic_id
    return was.add(4 if topic_id is None else 7, asked, response(topics=[result]))


def deleted(was: Recorded, topic_id: uuid.UUID | None = None) -> Recorded:
    """A client has deleted "orders", by its name or by its id."""
    request, response = messages.DeleteTopicsRequest, messages.DeleteTopicsResponse
    result = response.DeletableTopicResult(name="orders")
    if topic_id is None:
        return was.add(4, request(topic_names=["orders"]), response(responses=[result]))
    result.topic_id = topic_id
    asked = request(topics=[request.DeleteTopicState(name=None, topic_id=topic_id)])
    return was.add(6, asked, response(responses=[result]))


def shown(was: Recorded, topic_id: uuid.UUID | None, partitions: int = 1) -> Recorded:
    """Metadata has shown "orders"."""
    kind = messages.MetadataResponse
    broker = kind.MetadataResponseBroker(node_id=1, host="kafka-1", port=9092)
    led = [
        kind.MetadataResponsePartition(
            partition_index=index, leader_id=1, replica_nodes=[1], isr_nodes=[1]
        )
        for index in range(partitions)
    ]
    topic = kind.MetadataResponseTopic(name="orders", partitions=led)
    if topic_id is not None:
        topic.topic_id = topic_id
    response = kind(brokers=[broker], topics=[topic])
    return was.add(12 if topic_id else 9, messages.MetadataRequest(topics=None), response)


def twice(ids: list[Any], by_id: bool = False) -> Recorded:
    """Created, a0 and a1 produced and read, deleted, created again, b0 produced and read."""
    was = created(Recorded().metadata("other"), ids[0])
    shown(was, ids[0]).produced(batch("a0", "a1")).fetched(batch("a0", "a1"))
    deleted(was, ids[0] if by_id else None)
    shown(created(was, ids[1]), ids[1]).produced(batch("b0")).fetched(batch("b0"))
    return was


def create(app: Any) -> str:
    request = messages.CreateTopicsRequest
    topic = request.CreatableTopic(name="orders", num_partitions=1, replication_factor=1)
    return error_name(app.ask(7, request(topics=[topic])).topics[0].error_code)


def delete(app: Any) -> str:
    answer = app.ask(4, messages.DeleteTopicsRequest(topic_names=["orders"]))
    return error_name(answer.responses[0].error_code)


def described(app: Any, automatic: bool = False) -> tuple[str, uuid.UUID]:
    request = messages.MetadataRequest
    asked = request(topics=[request.MetadataRequestTopic(name="orders")])
    asked.allow_auto_topic_creation = automatic
    (found,) = app.ask(12, asked).topics
    return error_name(found.error_code), found.topic_id


@pytest.mark.parametrize("ids", [IDS[:2], [None, None]], ids=["ids", "names"])
@pytest.mark.parametrize("by_id", [True, False])
@pytest.mark.parametrize("settings", [ALL, CAUSAL], ids=["all", "causal"])
def test_the_same_app_gets_the_same_records(
    ids: list[uuid.UUID | None], by_id: bool, settings: ReplaySettings
) -> None:
    broker = Playing(twice(ids, by_id and ids[0] is not None).loaded, settings)
    client = broker.connect()
    assert create(client) == "NONE"
    first = described(client)
    client.produce(batch("a0", "a1"))
    assert client.values() == ["a0", "a1"]
    assert delete(client) == "NONE"
    assert described(client)[0] == "UNKNOWN_TOPIC_OR_PARTITION"
    assert create(client) == "NONE"
    second = described(client)
    assert first[1] != second[1] and (None in ids or [first[1], second[1]] == ids)
    client.produce(batch("b0"))
    assert client.values() == ["b0"]
    broker.end()
    assert broker.report.findings == []


@pytest.mark.parametrize("ids", [IDS[:2], [None, None]], ids=["ids", "names"])
def test_a_consumer_alone_gets_the_records_of_the_first(ids: list[uuid.UUID | None]) -> None:
    loaded = twice(ids).loaded
    assert loaded.lacking == []
    client = Playing(loaded).connect()
    assert client.values() == ["a0", "a1"]
    assert client.fetch(0).high_watermark == 2


@pytest.mark.parametrize("ids", [IDS[:2], [None, None]], ids=["ids", "names"])
def test_a_creation_that_was_refused_is_not_the_one_that_created(
    ids: list[uuid.UUID | None],
) -> None:
    was = twice(ids)
    request, response = messages.CreateTopicsRequest, messages.CreateTopicsResponse
    code = codes.TOPIC_ALREADY_EXISTS
    refused = response.CreatableTopicResult(name="orders", error_code=code, error_message="")
    asked = request(topics=[request.CreatableTopic(name="orders", num_partitions=1)])
    was.add(4, asked, response(topics=[refused]))
    client = Playing(was.loaded, CAUSAL).connect()
    assert [create(client), create(client)] == ["NONE", "TOPIC_ALREADY_EXISTS"]


def test_a_creation_that_was_only_ever_refused_is_refused_again() -> None:
    request, response = messages.CreateTopicsRequest, messages.CreateTopicsResponse
    code = codes.INVALID_REPLICATION_FACTOR
    refused = response.CreatableTopicResult(name="orders", error_code=code, error_message="")
    asked = request(topics=[request.CreatableTopic(name="orders", num_partitions=1)])
    was = Recorded().metadata("other").add(7, asked, response(topics=[refused]))
    client = Playing(was.loaded, CAUSAL).connect()
    assert [create(client) for _ in "ab"] == ["INVALID_REPLICATION_FACTOR"] * 2
    assert described(client)[0] == "UNKNOWN_TOPIC_OR_PARTITION"


def test_the_id_of_one_that_was_deleted_is_unknown() -> None:
    client = Playing(twice(IDS).loaded).connect()

    def fetched(topic_id: uuid.UUID) -> str:
        asked = fetch({0: 0}, max_wait_ms=0)
        asked.topics[0].topic, asked.topics[0].topic_id = "", topic_id
        return error_name(client.ask(13, asked).responses[0].partitions[0].error_code)

    assert [fetched(each) for each in IDS[:2]] == ["NONE", "UNKNOWN_TOPIC_ID"]
    assert (delete(client), create(client)) == ("NONE", "NONE")
    assert [fetched(each) for each in IDS[:2]] == ["UNKNOWN_TOPIC_ID", "NONE"]


def test_what_belongs_to_the_other_is_a_finding() -> None:
    broker = Playing(twice(IDS).loaded, CAUSAL)
    client = broker.connect()
    create(client)
    client.produce(batch("b0"))
    (found,) = broker.report.findings
    assert found.kind == "not recorded"


def test_a_topic_that_comes_by_itself_comes_when_it_would_be_created() -> None:
    was = shown(Recorded().metadata("other"), IDS[0]).produced(batch("a"))
    shown(deleted(was), IDS[1]).produced(batch("b"))
    client = Playing(was.loaded).connect()
    assert client.values() == ["a"]
    assert delete(client) == "NONE"
    assert described(client)[0] == "UNKNOWN_TOPIC_OR_PARTITION"
    assert described(client, automatic=True) == ("NONE", IDS[1])
    assert client.values() == ["b"]
    assert delete(client) == "NONE"
    assert described(client, automatic=True)[0] == "UNKNOWN_TOPIC_OR_PARTITION"


def test_where_nobody_is_seen_to_delete_it_the_last_is_served_and_that_is_said() -> None:
    was = shown(Recorded().metadata("other"), IDS[0]).produced(batch("a")).fetched(batch("a"))
    shown(was, IDS[1]).produced(batch("b"))
    loaded = was.loaded
    (line,) = loaded.lacking
    assert line == "orders: who did it: 1 batch of before it was deleted and created again"
    broker = Playing(loaded, CAUSAL)
    client = broker.connect()
    client.produce(batch("a"))
    client.produce(batch("b"))
    assert client.values() == ["a", "b"]
    broker.end()
    assert broker.report.findings == []


def test_what_an_old_metadata_shows_is_no_new_topic() -> None:
    was = shown(Recorded().metadata("other"), IDS[0]).produced(batch("a"))
    shown(deleted(was), IDS[0])
    shown(created(was, IDS[1]), IDS[0]).produced(batch("b"))
    assert [len(each) for each in was.loaded.cluster.generations.values()] == [1, 2]


def works(app: App) -> list[Any]:
    """What an app sees that creates a topic, uses it, deletes it, and so on."""
    seen: list[Any] = []
    for values in (["a0", "a1"], ["b0"], ["c0", "c1", "c2"]):
        seen.append(create(app))
        for value in values:
            answer = app.ask(9, produce(batch(value)))
            seen.append(answer.responses[0].partition_responses[0].base_offset)
        found = app.ask(11, fetch({0: 0}, max_wait_ms=0)).responses[0].partitions[0]
        seen += [each.value for part in records.batches(found.records) for each in part.records]
        seen += [found.high_watermark, delete(app), described(app)[0]]
    return seen


@pytest.mark.parametrize("mode", [Mode.STATE, Mode.SEMANTIC])
def test_a_replay_is_recorded_and_replayed_again(mode: Mode) -> None:
    was = Recorded().metadata("other")
    for number, topic_id in enumerate(IDS):
        shown(created(was, topic_id), topic_id)
        for value in range(3):
            was.produced(batch(f"{'abc'[number]}{value}"), value)
        deleted(was)
    live = Live(was.loaded)
    works(Replayed(was.loaded).app)
    seen = works(live.app)
    loaded = loaded_of(live.recorded(), mode)
    replayed = Replayed(loaded, attrs.evolve(CAUSAL, mode=mode))
    assert works(replayed.app) == seen
    assert replayed.findings() == []
