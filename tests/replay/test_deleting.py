"""What is deleted is not there any more."""

from __future__ import annotations

from typing import Any

from kproxy.replay.settings import ReplaySettings, Visible
from kproxy.wire.protocol import error_name, messages
from tests.replay.making import ORDERS_ID, Client, Playing, Recorded, batch, fetch, offset_fetch


def recorded() -> Recorded:
    return Recorded().metadata().fetched(batch("a", "b", "c")).stood("g", 2)


def metadata(client: Client, name: str = "orders") -> str:
    """What Metadata says of a topic: the name of its error."""
    request = messages.MetadataRequest
    asked = request(topics=[request.MetadataRequestTopic(name=name)])
    return error_name(client.ask(12, asked).topics[0].error_code)


def delete_topic(client: Client, version: int = 5, **by: Any) -> str:
    request = messages.DeleteTopicsRequest
    if version < 6:
        asked = request(topic_names=["orders"])
    else:
        asked = request(topics=[request.DeleteTopicState(**by)])
    return error_name(client.ask(version, asked).responses[0].error_code)


def create_topic(client: Client) -> str:
    request = messages.CreateTopicsRequest
    topic = request.CreatableTopic(name="orders", num_partitions=1, replication_factor=1)
    return error_name(client.ask(7, request(topics=[topic])).topics[0].error_code)


def committed(client: Client) -> int:
    (group,) = client.ask(8, offset_fetch("g")).groups
    return group.topics[0].partitions[0].committed_offset


def test_a_topic_that_is_deleted_is_gone_with_its_offsets() -> None:
    client = Playing(recorded().loaded).connect()
    assert (metadata(client), committed(client)) == ("NONE", 2)
    assert delete_topic(client) == "NONE"
    assert metadata(client) == "UNKNOWN_TOPIC_OR_PARTITION"
    assert error_name(client.fetch(0).error_code) == "UNKNOWN_TOPIC_OR_PARTITION"
    assert delete_topic(client) == "UNKNOWN_TOPIC_OR_PARTITION"
    assert committed(client) == -1


def test_a_topic_is_deleted_by_its_id() -> None:
    client = Playing(recorded().loaded).connect()
    assert delete_topic(client, 6, name=None, topic_id=ORDERS_ID) == "NONE"
    assert delete_topic(client, 6, name=None, topic_id=ORDERS_ID) == "UNKNOWN_TOPIC_ID"


def test_a_topic_that_was_created_is_created_deleted_and_created() -> None:
    kind = messages.CreateTopicsResponse
    result = kind.CreatableTopicResult(name="orders", topic_id=ORDERS_ID, num_partitions=1)
    request = messages.CreateTopicsRequest
    asked = request(topics=[request.CreatableTopic(name="orders", num_partitions=1)])
    was = Recorded().metadata("other").add(7, asked, kind(topics=[result])).fetched(batch("a"))
    for visible in Visible:
        client = Playing(was.loaded, ReplaySettings(visible=visible)).connect()
        for _ in range(3):
            assert create_topic(client) == "NONE"
            assert metadata(client) == "NONE"
            assert client.values() == ["a"]
            assert create_topic(client) == "TOPIC_ALREADY_EXISTS"
            assert delete_topic(client) == "NONE"


def test_a_fetch_that_waits_is_told_that_its_topic_is_gone() -> None:
    playing = Playing(recorded().loaded)
    waiting, client = playing.connect(), playing.connect()
    waiting.send(11, fetch({0: 3}))
    assert delete_topic(client) == "NONE"
    playing.pass_ms(500)
    (answer,) = waiting.answers
    code = answer.responses[0].partitions[0].error_code
    assert error_name(code) == "UNKNOWN_TOPIC_OR_PARTITION"


def test_records_are_deleted_up_to_an_offset() -> None:
    client = Playing(recorded().loaded).connect()

    def delete(offset: int) -> tuple[str, int]:
        request = messages.DeleteRecordsRequest
        partition = request.DeleteRecordsPartition(partition_index=0, offset=offset)
        topic = request.DeleteRecordsTopic(name="orders", partitions=[partition])
        (found,) = client.ask(2, request(topics=[topic])).topics[0].partitions
        return error_name(found.error_code), found.low_watermark

    assert delete(1) == ("NONE", 1)
    assert error_name(client.fetch(0).error_code) == "OFFSET_OUT_OF_RANGE"
    assert client.values(1) == ["b", "c"]
    assert delete(4) == ("OFFSET_OUT_OF_RANGE", -1)
    assert delete(-1) == ("NONE", 3)
    assert client.values(3) == []


def test_a_group_is_deleted_when_nobody_is_in_it() -> None:
    client = Playing(recorded().loaded).connect()

    def delete(group: str) -> str:
        answer = client.ask(2, messages.DeleteGroupsRequest(groups_names=[group]))
        return error_name(answer.results[0].error_code)

    join = messages.JoinGroupRequest
    protocol = join.JoinGroupRequestProtocol(name="range", metadata=b"")
    joining = join(
        group_id="busy", session_timeout_ms=1000, protocol_type="consumer", protocols=[protocol]
    )
    client.send(3, joining)
    assert client.answers[0].error_code == 0
    assert delete("busy") == "NON_EMPTY_GROUP"
    assert delete("none") == "GROUP_ID_NOT_FOUND"
    listed = messages.ListGroupsRequest()
    commit = messages.OffsetCommitRequest
    offset = commit.OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
    topic = commit.OffsetCommitRequestTopic(name="orders", partitions=[offset])
    client.ask(8, commit(group_id="mine", topics=[topic], generation_id_or_member_epoch=-1))
    client.ask(8, commit(group_id="g", topics=[topic], generation_id_or_member_epoch=-1))
    assert delete("g") == "NONE"
    assert committed(client) == -1
    assert "g" not in [each.group_id for each in client.ask(4, listed).groups]


def test_offsets_of_a_group_are_deleted() -> None:
    client = Playing(recorded().loaded).connect()
    commit = messages.OffsetCommitRequest
    offset = commit.OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
    topic = commit.OffsetCommitRequestTopic(name="orders", partitions=[offset])
    client.ask(8, commit(group_id="g", topics=[topic], generation_id_or_member_epoch=-1))
    request = messages.OffsetDeleteRequest
    partition = request.OffsetDeleteRequestPartition(partition_index=0)
    wanted = request.OffsetDeleteRequestTopic(name="orders", partitions=[partition])
    answer = client.ask(0, request(group_id="g", topics=[wanted]))
    assert (answer.error_code, answer.topics[0].partitions[0].error_code) == (0, 0)
    assert committed(client) == -1
    unknown = client.ask(0, request(group_id="none", topics=[wanted]))
    assert error_name(unknown.error_code) == "GROUP_ID_NOT_FOUND"
