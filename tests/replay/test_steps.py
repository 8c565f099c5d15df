"""Requests that name very many things are answered in steps, between those of others."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from kproxy.exchange.entries import Side
from kproxy.replay.loaded import Committed
from kproxy.replay.steps import AT_ONCE, STEPS_MAX, finished, release
from kproxy.wire import protocol
from kproxy.wire.protocol import messages
from tests.replay.making import Client, Playing, Recorded, batch, fetch

MANY = 20 * STEPS_MAX


def playing(**more: Any) -> Playing:
    """A broker with one record."""
    return Playing(Recorded().metadata().fetched(batch("a")).loaded, **more)


def offsets(count: int) -> Any:
    """A ListOffsets for so many partitions."""
    kind = messages.ListOffsetsRequest
    partitions = [
        kind.ListOffsetsPartition(partition_index=each, timestamp=-1) for each in range(count)
    ]
    return kind(topics=[kind.ListOffsetsTopic(name="orders", partitions=partitions)])


def names(count: int) -> list[str]:
    """So many names of topics that there are not."""
    return [f"topic-{number}" for number in range(count)]


def wake(broker: Playing) -> None:
    """Wake it once, when it wants."""
    assert broker.broker.next_wake is not None
    broker.now = max(broker.now, broker.broker.next_wake)
    broker.perform(broker.broker.wake(broker.now))


def wakes_until_answered(broker: Playing, client: Client, other: Client) -> int:
    """Wake it until a client has its answer; another asks in between, and is answered at once."""
    count = 0
    while not broker.sent[client.number]:
        assert client.number not in broker.closed, broker.logs[-1]
        assert other.ask(4, messages.ApiVersionsRequest()).api_keys
        wake(broker)
        count += 1
    return count


def many_partitions() -> tuple[int, Any]:
    """A Fetch that finds nothing."""
    return 11, fetch(dict.fromkeys(range(1, MANY), 0), max_wait_ms=0)


def many_topics() -> tuple[int, Any]:
    """A Metadata for topics that there are not."""
    kind = messages.MetadataRequest
    return 12, kind(topics=[kind.MetadataRequestTopic(name=name) for name in names(MANY)])


def many_indexes() -> tuple[int, Any]:
    """An OffsetFetch, whose elements are mere numbers."""
    kind = messages.OffsetFetchRequest
    topic = kind.OffsetFetchRequestTopics(name="orders", partition_indexes=[*range(MANY)])
    return 8, kind(groups=[kind.OffsetFetchRequestGroup(group_id="g", topics=[topic])])


def many_described() -> tuple[int, Any]:
    """A DescribeTopicPartitions, whose answer is in order."""
    kind = messages.DescribeTopicPartitionsRequest
    topics = [kind.TopicRequest(name=name) for name in reversed(names(MANY))]
    return 0, kind(topics=topics, response_partition_limit=2000)


@pytest.mark.parametrize(
    "made", [many_partitions, many_topics, many_indexes, many_described, lambda: (7, offsets(MANY))]
)
def test_others_are_answered_between_the_steps(made: Any) -> None:
    broker = playing()
    client, other = broker.connect(), broker.connect()
    client.send(*made())
    assert wakes_until_answered(broker, client, other) >= 3 * MANY / STEPS_MAX
    (answer,) = client.answers
    assert repr(answer).count("error_code") >= MANY - 1, "each has its part of the answer"


def test_a_smaller_request_does_not_wait_for_a_larger_one() -> None:
    broker = playing()
    first, second, other = (broker.connect() for _ in range(3))
    first.send(7, offsets(MANY))
    second.send(7, offsets(MANY // 4))
    wakes_until_answered(broker, second, other)
    assert not broker.sent[first.number]
    wakes_until_answered(broker, first, other)


def test_neither_freeing_nor_collecting_many_elements_holds_up_others() -> None:
    kind = messages.OffsetCommitRequest
    one = kind.OffsetCommitRequestPartition
    partitions = [one(partition_index=each, committed_offset=1) for each in range(MANY)]
    topics = [kind.OffsetCommitRequestTopic(name="orders", partitions=partitions)]
    client, before = playing().connect(), gc.get_threshold()
    try:
        gc.set_threshold(MANY // 10, 10, 10)  # whatever a command that ran here has set
        client.send(8, kind(group_id="g", generation_id_or_member_epoch=-1, topics=topics))
        client.playing.pass_ms(1)
        assert gc.isenabled() and not any(isinstance(each, Committed) for each in gc.get_objects())
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
    finished(release(topics[0]))
    assert partitions == []


def test_others_are_answered_while_a_small_request_gets_a_large_answer() -> None:
    broker = Playing(Recorded().metadata(partitions=MANY).loaded)
    client, other = broker.connect(), broker.connect()
    client.send(12, messages.MetadataRequest(topics=None))
    assert wakes_until_answered(broker, client, other) >= 2 * MANY / STEPS_MAX
    (answer,) = client.answers
    assert len(answer.topics[0].partitions) == MANY


def test_requests_of_the_same_connection_wait_for_a_large_one() -> None:
    broker = playing()
    client = broker.connect()
    client.send(7, offsets(MANY))
    client.send(4, messages.ApiVersionsRequest())
    assert client.frames == []
    broker.pass_ms(1)
    assert [int.from_bytes(frame[4:8], "big") for frame in client.frames] == [1, 2]


def test_very_many_small_requests_take_turns_with_those_of_others() -> None:
    broker = playing()
    client, other = broker.connect(), broker.connect()
    client.send(0, messages.ApiVersionsRequest())
    assert len(client.frames) == 1
    client.bytes(client.sent_last * 1000)
    answered = len(client.frames)
    assert 0 < answered < 200
    while answered < 1000:
        assert other.ask(4, messages.ApiVersionsRequest()).api_keys
        wake(broker)
        found = len(client.frames)
        assert 0 < found < 200
        answered += found


def test_a_fetch_of_very_many_partitions_waits_until_its_time_is_up() -> None:
    partitions = 2 * STEPS_MAX
    broker = Playing(Recorded().metadata(partitions=partitions).loaded)
    client, other = broker.connect(), broker.connect()
    client.send(11, fetch(dict.fromkeys(range(partitions), 0), max_wait_ms=500))
    broker.pass_ms(400)
    other.produce(batch("a"))
    assert client.frames == [], "each record would have all partitions looked at again"
    broker.pass_ms(101)
    (answer,) = client.answers
    assert [len(each.records) > 0 for each in answer.responses[0].partitions].count(True) == 1


def test_a_large_request_that_is_not_answered_in_steps_is_refused_by_name() -> None:
    broker = playing()
    client = broker.connect()
    kind = messages.JoinGroupRequest
    protocols = [kind.JoinGroupRequestProtocol(name=name) for name in names(50_001)]
    client.send(5, kind(group_id="g", protocol_type="consumer", protocols=protocols))
    broker.pass_ms(1)
    assert client.number in broker.closed
    assert "a JoinGroup with 50002 elements is not served; 50000 are" in broker.logs[-1]


def test_what_the_broker_knows_is_answered_again_and_again() -> None:
    recorded = Recorded().metadata(partitions=MANY // 10)
    kind = messages.DescribeConfigsRequest
    wanted = [
        kind.DescribeConfigsResource(
            resource_type=2, resource_name=f"t{n}" * 40, configuration_keys=None
        )
        for n in range(MANY // 50)
    ]
    asked, found = kind(resources=wanted), messages.DescribeConfigsResponse
    results = [
        found.DescribeConfigsResult(resource_type=2, resource_name=each.resource_name)
        for each in wanted
    ]
    broker = Playing(recorded.add(4, asked, found(results=results)).loaded)
    for each in broker.broker.state.cluster.topics["orders"].partitions.values():
        each.replicas = [1, 2, 3]
    client = broker.connect()
    for version, body in ((12, messages.MetadataRequest(topics=None)), (4, asked)):
        for _ in range(2):
            client.send(version, body)
            broker.pass_ms(1)
        first, second = client.answers[-2:]
        assert first == second and (first.topics if version == 12 else first.results)


def test_a_large_request_counts_until_it_is_done_though_its_client_goes() -> None:
    broker = playing()
    client = broker.connect()
    client.send(7, offsets(MANY))
    broker.perform(broker.broker.closed(client.number, Side.CLIENT, "reset", "gone", broker.now))
    budget = broker.broker._budget
    assert budget.used_bytes > 8 * MANY
    broker.pass_ms(1)
    assert budget.used_bytes == 0


def test_few_large_requests_go_on_at_once_and_those_of_clients_that_went_do_not_begin() -> None:
    broker = playing()
    clients = [broker.connect() for _ in range(AT_ONCE + 2)]
    for client in clients:
        client.send(7, offsets(MANY))
    gone, last = clients[-2:]
    broker.perform(broker.broker.closed(gone.number, Side.CLIENT, "reset", "gone", broker.now))
    wakes = 0
    answered: dict[int, int] = {}
    while last.number not in answered:
        wake(broker)
        wakes += 1
        answered |= {
            each.number: answered.get(each.number, wakes) for each in clients if each.frames
        }
    turns = -(-answered[clients[0].number] // AT_ONCE)  # of one request
    assert wakes <= (AT_ONCE + 2) * turns, "that of the client that went took turns, too"
    assert answered[last.number] - answered[clients[AT_ONCE - 1].number] > turns // 2
    assert broker.broker._budget.used_bytes == 0


def test_a_defect_on_the_way_ends_its_connection_alone(monkeypatch) -> None:
    broker = playing()
    client, other = broker.connect(), broker.connect()
    client.send(7, offsets(MANY))
    wake(broker)
    assert not gc.isenabled() and not client.frames

    def broken(*_: object) -> None:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr(type(broker.broker.state.cluster), "partition", broken)
    broker.pass_ms(1)
    monkeypatch.undo()
    assert broker.closed == {client.number: True} and gc.isenabled()
    assert "defect" in broker.logs[-1] and "ZeroDivisionError" in broker.logs[-1]
    assert other.ask(4, messages.ApiVersionsRequest()).api_keys
    assert broker.broker._budget.used_bytes == 0


def test_a_request_of_megabytes_that_comes_in_pieces_is_answered() -> None:
    broker = playing()
    client = broker.connect()
    value = "v" * (5 << 20)
    request = messages.ProduceRequest
    data = batch(value)
    one = request.PartitionProduceData(index=0, records=data)
    each = request.TopicProduceData(name="orders", partition_data=[one])
    frame = _frame(9, request(acks=-1, timeout_ms=1000, topic_data=[each]))
    client.asked.append((0, 9))
    for start in range(0, len(frame), 1 << 20):
        client.bytes(frame[start : start + (1 << 20)])
    (answer,) = client.answers
    assert answer.responses[0].partition_responses[0].base_offset == 1
    assert client.values(1) == [value]


def _frame(version: int, body: Any) -> bytes:
    key = protocol.api_key(type(body).__name__.removesuffix("Request")) or 0
    header = messages.RequestHeader(api_key=key, api_version=version, client_id="app")
    return protocol.encode_request(protocol.Request(header, body))
