"""Where clients are sent, and what is created for them."""

from __future__ import annotations

import uuid

from kproxy.replay.settings import ReplaySettings, Visible
from kproxy.wire.protocol import error_name, messages
from tests.replay.making import ORDERS_ID, Playing, Recorded, batch


def recorded() -> Recorded:
    return Recorded().metadata(partitions=2, nodes=2)


def test_brokers_are_where_we_listen_in_every_version() -> None:
    client = Playing(recorded().loaded).connect()
    for version in range(14):
        topics = [] if version == 0 else None
        answer = client.ask(version, messages.MetadataRequest(topics=topics))
        found = [(each.node_id, each.host, each.port) for each in answer.brokers]
        assert found == [(1, "127.0.0.1", 19_001), (2, "127.0.0.1", 19_002)]
        (topic,) = answer.topics
        assert [each.leader_id for each in topic.partitions] == [1, 2]


def test_the_advertised_host_is_the_users() -> None:
    broker = Playing(recorded().loaded, ReplaySettings(advertised_host="box"))
    answer = broker.connect().ask(12, messages.MetadataRequest(topics=None))
    assert {each.host for each in answer.brokers} == {"box"}


def test_topics_are_named_by_name_or_id_and_never_made() -> None:
    client = Playing(recorded().loaded).connect()
    request = messages.MetadataRequest
    topic = request.MetadataRequestTopic
    wanted = [
        topic(name="orders"),
        topic(name=None, topic_id=ORDERS_ID),
        topic(name="none"),
        topic(name=None, topic_id=uuid.UUID(int=1)),
    ]
    answer = client.ask(12, request(topics=wanted))
    assert [(each.name, error_name(each.error_code)) for each in answer.topics] == [
        ("orders", "NONE"),
        ("orders", "NONE"),
        ("none", "UNKNOWN_TOPIC_OR_PARTITION"),
        (None, "UNKNOWN_TOPIC_ID"),
    ]
    assert len(client.ask(12, request(topics=None)).topics) == 1


def absent(name: str) -> messages.MetadataResponse:
    kind = messages.MetadataResponse
    topic = kind.MetadataResponseTopic(error_code=3, name=name)
    return kind(brokers=[kind.MetadataResponseBroker(node_id=1, host="a", port=1)], topics=[topic])


def named(*names: str) -> messages.MetadataRequest:
    kind = messages.MetadataRequest
    return kind(topics=[kind.MetadataRequestTopic(name=name) for name in names])


def test_a_topic_that_the_recording_does_not_know_is_a_finding_once() -> None:
    was = recorded().add(12, named("gone"), absent("gone"))
    broker = Playing(was.loaded)
    client = broker.connect()
    for version in (1, 4, 12, 13):
        client.ask(version, named("ordrs", "gone", "orders"))
        client.ask(version, messages.MetadataRequest(topics=None))
    request = messages.DescribeTopicPartitionsRequest
    client.ask(0, request(topics=[request.TopicRequest(name="xyz")]))
    assert [each.text for each in broker.report.findings] == [
        "topic ordrs is not in the recording (closest: orders)",
        "topic xyz is not in the recording",
    ]
    assert {each.kind for each in broker.report.findings} == {"not recorded"}
    assert broker.report.count == 2


def test_coordinators_are_those_of_the_recording() -> None:
    kind = messages.FindCoordinatorResponse
    was = recorded().add(
        4,
        messages.FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]),
        kind(coordinators=[kind.Coordinator(key="g", node_id=2, host="x", port=1)]),
    )
    client = Playing(was.loaded).connect()
    for version in range(7):
        request = messages.FindCoordinatorRequest(key="g", coordinator_keys=["g", "h"])
        answer = client.ask(version, request)
        found = answer.coordinators or [answer]
        assert (found[0].node_id, found[0].port) == (2, 19_002)
        if version >= 4:
            assert found[1].node_id == 1


def test_the_cluster_and_its_topics_are_described() -> None:
    client = Playing(recorded().loaded).connect()
    answer = client.ask(2, messages.DescribeClusterRequest())
    assert [each.port for each in answer.brokers] == [19_001, 19_002]
    assert (answer.cluster_id, answer.controller_id) == ("a", 1)
    request = messages.DescribeTopicPartitionsRequest
    wanted = [request.TopicRequest(name="orders")]
    answer = client.ask(0, request(topics=wanted, response_partition_limit=1))
    assert [each.partition_index for each in answer.topics[0].partitions] == [0]
    cursor = request.Cursor(topic_name="orders", partition_index=1)
    assert answer.next_cursor.partition_index == 1
    answer = client.ask(0, request(topics=wanted, cursor=cursor))
    assert [each.partition_index for each in answer.topics[0].partitions] == [1]
    assert answer.next_cursor is None


def create(name: str):
    request = messages.CreateTopicsRequest
    topic = request.CreatableTopic(name=name, num_partitions=2, replication_factor=1)
    return request(topics=[topic], timeout_ms=1000)


def created() -> Recorded:
    kind = messages.CreateTopicsResponse
    result = kind.CreatableTopicResult(name="orders", topic_id=ORDERS_ID, num_partitions=2)
    was = Recorded().metadata("other").add(7, create("orders"), kind(topics=[result]))
    return was.metadata(partitions=2).produced(batch("a"))


def test_a_topic_that_was_created_is_created_again() -> None:
    broker = Playing(created().loaded, ReplaySettings(visible=Visible.CAUSAL))
    client = broker.connect()
    topic = messages.MetadataRequest.MetadataRequestTopic(name="orders")
    asked = messages.MetadataRequest(topics=[topic])
    assert error_name(client.ask(12, asked).topics[0].error_code) == "UNKNOWN_TOPIC_OR_PARTITION"
    assert client.ask(7, create("orders")).topics[0].error_code == 0
    assert len(client.ask(12, asked).topics[0].partitions) == 2
    again = client.ask(7, create("orders")).topics[0]
    assert error_name(again.error_code) == "TOPIC_ALREADY_EXISTS"
    assert client.produce(batch("a")).base_offset == 0
    assert broker.report.findings == []


def test_a_topic_that_was_not_created_is_refused() -> None:
    broker = Playing(created().loaded)
    answer = broker.connect().ask(7, create("new")).topics[0]
    assert error_name(answer.error_code) == "POLICY_VIOLATION"
    assert "has no topic 'new'" in answer.error_message
    assert [each.kind for each in broker.report.findings] == ["not served"]


def test_partitions_that_were_added_are_added_again() -> None:
    request = messages.CreatePartitionsRequest
    kind = messages.CreatePartitionsResponse

    def add(count: int):
        topic = request.CreatePartitionsTopic(name="orders", count=count, assignments=None)
        return request(topics=[topic], timeout_ms=1000, validate_only=False)

    done = kind(results=[kind.CreatePartitionsTopicResult(name="orders")])
    was = recorded().add(3, add(3), done).metadata(partitions=3)
    broker = Playing(was.loaded, ReplaySettings(visible=Visible.CAUSAL))
    client = broker.connect()

    def partitions() -> int:
        answer = client.ask(12, messages.MetadataRequest(topics=None))
        return len(answer.topics[0].partitions)

    assert partitions() == 2
    assert client.ask(3, add(3)).results[0].error_code == 0
    assert partitions() == 3
    assert error_name(client.ask(3, add(9)).results[0].error_code) == "POLICY_VIOLATION"
    assert len(Playing(was.loaded).broker.state.cluster.topics["orders"].partitions) == 3
