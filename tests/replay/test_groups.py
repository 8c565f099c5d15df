"""Offsets that groups commit at the replaying broker."""

from __future__ import annotations

from kproxy.wire.protocol import error_name, messages
from tests.replay.making import ORDERS_ID, Client, Playing, Recorded, offset_fetch


def commit(client: Client, offset: int, version: int = 8, group: str = "g", **who):
    request = messages.OffsetCommitRequest
    one = request.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=offset, committed_metadata="note"
    )
    topic = request.OffsetCommitRequestTopic(name="orders", topic_id=ORDERS_ID, partitions=[one])
    answer = client.ask(version, request(group_id=group, topics=[topic], **who))
    return error_name(answer.topics[0].partitions[0].error_code)


def stands(client: Client, group: str = "g") -> int:
    (found,) = client.ask(8, offset_fetch(group)).groups[0].topics[0].partitions
    return found.committed_offset


def test_a_group_stands_where_it_stood_when_the_recording_began() -> None:
    client = Playing(Recorded().metadata().stood("g", 5).stood("g", 9).loaded).connect()
    assert stands(client) == 5
    assert stands(client, "other") == -1
    assert commit(client, 7) == "NONE"
    assert stands(client) == 7


def test_every_version_commits_and_fetches() -> None:
    client = Playing(Recorded().metadata().loaded).connect()
    request = messages.OffsetFetchRequest
    for version in range(11):
        assert commit(client, 100 + version, version) == "NONE"
        if version < 8:
            kind = request.OffsetFetchRequestTopic
            topics = [kind(name="orders", partition_indexes=[0])]
            answer = client.ask(version, request(group_id="g", topics=topics))
            found = answer.topics[0].partitions[0]
        else:
            kind = request.OffsetFetchRequestTopics
            topic = kind(name="orders", topic_id=ORDERS_ID, partition_indexes=[0])
            wanted = request.OffsetFetchRequestGroup(group_id="g", topics=[topic])
            answer = client.ask(version, request(groups=[wanted]))
            found = answer.groups[0].topics[0].partitions[0]
        assert (found.committed_offset, found.metadata) == (100 + version, "note")


def test_all_offsets_of_a_group_are_fetched_without_naming_topics() -> None:
    client = Playing(Recorded().metadata().stood("g", 5).loaded).connect()
    asked = offset_fetch("g")
    asked.groups[0].topics = None
    (topic,) = client.ask(10, asked).groups[0].topics
    assert topic.topic_id == ORDERS_ID
    assert topic.partitions[0].committed_offset == 5


def test_who_is_no_member_may_not_commit_for_one() -> None:
    client = Playing(Recorded().metadata().loaded).connect()
    who = {"member_id": "ghost", "generation_id_or_member_epoch": 3}
    assert commit(client, 7, **who) == "ILLEGAL_GENERATION"
    assert stands(client) == -1


def test_groups_of_the_recording_are_listed() -> None:
    recorded = Recorded().metadata()
    body = messages.HeartbeatRequest(group_id="g", member_id="m", generation_id=1)
    recorded.add(4, body, messages.HeartbeatResponse())
    request = messages.ConsumerGroupHeartbeatRequest
    recorded.add(
        1,
        request(group_id="new", member_id="m"),
        messages.ConsumerGroupHeartbeatResponse(member_id="m"),
    )
    client = Playing(recorded.loaded).connect()
    (found,) = client.ask(5, messages.ListGroupsRequest()).groups
    assert (found.group_id, found.group_state, found.group_type) == ("new", "Empty", "consumer")
