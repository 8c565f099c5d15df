"""Groups and transactions in words."""

from __future__ import annotations

import struct

from kproxy.wire.protocol import messages
from tests.exchange.bodies import ORDERS, words

M = messages


def subscription(*topics: str) -> bytes:
    named = b"".join(struct.pack(">h", len(topic)) + topic.encode() for topic in topics)
    return struct.pack(">hi", 0, len(topics)) + named + struct.pack(">i", -1)


def assignment(topic: str, *partitions: int, version: int = 0) -> bytes:
    numbers = struct.pack(f">{len(partitions)}i", *partitions)
    named = struct.pack(">h", len(topic)) + topic.encode()
    head = struct.pack(">hi", version, 1)
    return head + named + struct.pack(">i", len(partitions)) + numbers + struct.pack(">i", -1)


def test_join_group():
    J = M.JoinGroupRequest
    protocols = [
        J.JoinGroupRequestProtocol(name=name, metadata=subscription("orders", "payments"))
        for name in ("range", "cooperative-sticky")
    ]
    asked = J(group_id="checkout", protocol_type="consumer", protocols=protocols)
    member_id = "consumer-checkout-1-0b7cf2fd-37e1-4ccd"
    members = [M.JoinGroupResponse.JoinGroupResponseMember(member_id=member_id)] * 2
    answered = M.JoinGroupResponse(
        generation_id=3, protocol_name="range", leader=member_id, member_id=member_id
    )
    answered.members = members
    assert words("JoinGroup", 5, asked, answered) == (
        "checkout: new member, wants orders, payments, range, cooperative-sticky"
        " → generation 3, leader of 2 members, range"
    )
    asked.member_id = member_id
    answered.leader = "another"
    assert words("JoinGroup", 5, asked, answered) == (
        "checkout: consumer-chec…1-4ccd, wants orders, payments, range, cooperative-sticky"
        " → generation 3, follower, range"
    )
    asked.group_instance_id = "till-4"
    assert words("JoinGroup", 5, asked, M.JoinGroupResponse(error_code=79)).startswith(
        "checkout: till-4, wants"
    )


def test_join_group_of_a_connect_worker_is_not_a_consumer():
    J = M.JoinGroupRequest
    protocol = J.JoinGroupRequestProtocol(name="sessioned", metadata=b"\0\2whatever")
    asked = J(group_id="connect", protocol_type="connect", protocols=[protocol], member_id="w")
    assert words("JoinGroup", 5, asked) == "connect: w, sessioned → "


def test_sync_group():
    S = M.SyncGroupRequest
    some = [S.SyncGroupRequestAssignment(member_id="m", assignment=assignment("orders", 0))]
    asked = S(group_id="checkout", generation_id=3, member_id="m", assignments=some)
    answered = M.SyncGroupResponse(assignment=assignment("orders", 0, 1, 2))
    assert words("SyncGroup", 3, asked, answered) == (
        "checkout: generation 3, assigns 1 member → orders[0,1,2]"
    )
    # A version that we do not know is read as the newest that we do.
    answered = M.SyncGroupResponse(assignment=assignment("orders", 0, version=9))
    assert words("SyncGroup", 3, asked, answered).endswith(" → orders[0]")
    answered = M.SyncGroupResponse(assignment=b"")
    assert words("SyncGroup", 3, asked, answered).endswith(" → nothing assigned")
    answered = M.SyncGroupResponse(assignment=b"\0\0\xff\xff\xff", protocol_type="consumer")
    assert words("SyncGroup", 5, asked, answered).endswith(
        " → assignment 5 B (ConsumerProtocolAssignment v0 assigned_partitions at offset 2: needs 4"
        " more bytes, 3 are left)"
    )
    answered = M.SyncGroupResponse(assignment=b"abc", protocol_type="connect")
    assert words("SyncGroup", 5, asked, answered).endswith(" → assignment 3 B")


def test_heartbeat_and_leave_group():
    asked = M.HeartbeatRequest(group_id="checkout", generation_id=3, member_id="m-1")
    assert words("Heartbeat", 4, asked, M.HeartbeatResponse()) == "checkout: generation 3, m-1 → "
    asked = M.LeaveGroupRequest(group_id="checkout", member_id="m-1")
    assert words("LeaveGroup", 1, asked, M.LeaveGroupResponse()) == "checkout: m-1 → "
    members = [M.LeaveGroupRequest.MemberIdentity(member_id=name) for name in ("m-1", "m-2")]
    asked = M.LeaveGroupRequest(group_id="checkout", members=members)
    assert words("LeaveGroup", 4, asked) == "checkout: m-1, m-2 → "


def test_consumer_group_heartbeat():
    asked = M.ConsumerGroupHeartbeatRequest(
        group_id="checkout", member_id="m-1", member_epoch=0, subscribed_topic_names=["orders"]
    )
    R = M.ConsumerGroupHeartbeatResponse
    answered = R(member_epoch=4, assignment=R.Assignment())
    assert words("ConsumerGroupHeartbeat", 0, asked, answered) == (
        "checkout: m-1, joins, wants orders → epoch 4, nothing assigned"
    )
    asked = M.ConsumerGroupHeartbeatRequest(
        group_id="checkout", member_id="m-1", member_epoch=4, subscribed_topic_names=None
    )
    assert words("ConsumerGroupHeartbeat", 0, asked, R(member_epoch=4, assignment=None)) == (
        "checkout: m-1, epoch 4 → "
    )
    topic = R.TopicPartitions(topic_id=ORDERS, partitions=[0, 1])
    answered = R(member_epoch=5, assignment=R.Assignment(topic_partitions=[topic]))
    assert words("ConsumerGroupHeartbeat", 0, asked, answered).endswith(
        " → epoch 5, id:EjRWeBI0[0,1]"
    )
    asked.member_epoch = -1
    assert words("ConsumerGroupHeartbeat", 0, asked) == "checkout: m-1, leaves → "


def test_offset_commit_and_fetch():
    C = M.OffsetCommitRequest
    partitions = [
        C.OffsetCommitRequestPartition(partition_index=index, committed_offset=offset)
        for index, offset in ((0, 41), (1, 7))
    ]
    asked = C(
        group_id="checkout",
        topics=[C.OffsetCommitRequestTopic(name="orders", partitions=partitions)],
    )
    assert words("OffsetCommit", 8, asked, M.OffsetCommitResponse()) == (
        "checkout: orders[0@41,1@7] → "
    )
    F, R = M.OffsetFetchRequest, M.OffsetFetchResponse
    wanted = F.OffsetFetchRequestTopic(name="orders", partition_indexes=[0, 1])
    found = [
        R.OffsetFetchResponsePartition(partition_index=index, committed_offset=offset)
        for index, offset in ((0, 41), (1, -1))
    ]
    answered = R(topics=[R.OffsetFetchResponseTopic(name="orders", partitions=found)])
    assert words("OffsetFetch", 5, F(group_id="checkout", topics=[wanted]), answered) == (
        "checkout: orders[0,1] → orders[0@41,1@–]"
    )
    groups = [F.OffsetFetchRequestGroup(group_id="a", topics=None)]
    G = R.OffsetFetchResponseGroup
    partition = R.OffsetFetchResponsePartitions(partition_index=0, committed_offset=3)
    topic = R.OffsetFetchResponseTopics(name="orders", partitions=[partition])
    answered = R(groups=[G(group_id="a", topics=[topic])])
    assert words("OffsetFetch", 8, F(groups=groups), answered) == "a: all → orders[0@3]"


def test_described_groups():
    R = M.DescribeGroupsResponse
    members = [R.DescribedGroupMember(member_id="m")]
    groups = [
        R.DescribedGroup(group_id="checkout", group_state="Stable", members=members),
        R.DescribedGroup(group_id="secret", error_code=30),
    ]
    asked = M.DescribeGroupsRequest(groups=["checkout", "secret"])
    assert words("DescribeGroups", 3, asked, R(groups=groups)) == (
        "checkout, secret → checkout: Stable, 1 member"
    )


def test_transactions():
    asked = M.InitProducerIdRequest(transactional_id="tx")
    answered = M.InitProducerIdResponse(producer_id=1000, producer_epoch=2)
    assert words("InitProducerId", 3, asked, answered) == ("transaction tx → producer 1000 epoch 2")
    asked = M.InitProducerIdRequest(transactional_id=None)
    assert words("InitProducerId", 3, asked, answered).startswith("idempotent → ")
    A = M.AddPartitionsToTxnRequest
    topics = [A.AddPartitionsToTxnTopic(name="orders", partitions=[0, 1])]
    asked = A(v3_and_below_transactional_id="tx", v3_and_below_topics=topics)
    answered = M.AddPartitionsToTxnResponse()
    assert words("AddPartitionsToTxn", 3, asked, answered) == "tx: orders[0,1] → "
    asked = A(transactions=[A.AddPartitionsToTxnTransaction(transactional_id="tx", topics=topics)])
    assert words("AddPartitionsToTxn", 4, asked, answered) == "tx: orders[0,1] → "
    asked = M.AddOffsetsToTxnRequest(transactional_id="tx", group_id="checkout")
    assert words("AddOffsetsToTxn", 3, asked) == "tx: group checkout → "
    C = M.TxnOffsetCommitRequest
    partition = C.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=5)
    topic = C.TxnOffsetCommitRequestTopic(name="orders", partitions=[partition])
    asked = C(transactional_id="tx", group_id="checkout", topics=[topic])
    assert words("TxnOffsetCommit", 3, asked) == "checkout: orders[0@5], transaction tx → "
    asked = M.EndTxnRequest(transactional_id="tx", committed=True)
    assert words("EndTxn", 3, asked, M.EndTxnResponse()) == "tx: commit → "
    answered = M.EndTxnResponse(producer_id=1000, producer_epoch=3)
    asked = M.EndTxnRequest(transactional_id="tx", committed=False)
    assert words("EndTxn", 5, asked, answered) == "tx: abort → producer 1000 epoch 3"


def test_members_say_why_they_join_and_leave():
    J, L = M.JoinGroupRequest, M.LeaveGroupRequest
    asked = J(group_id="checkout", member_id="m-1", reason="rebalance failed")
    assert words("JoinGroup", 8, asked) == "checkout: m-1, “rebalance failed” → "
    member = L.MemberIdentity(member_id="m-1", reason="the consumer is being closed")
    asked = L(group_id="checkout", members=[member])
    assert words("LeaveGroup", 5, asked) == "checkout: m-1, “the consumer is being closed” → "


def test_a_member_of_a_kip_848_group_says_what_it_owns():
    H = M.ConsumerGroupHeartbeatRequest
    asked = H(group_id="checkout", member_id="m-1", member_epoch=3)
    asked.topic_partitions = [H.TopicPartitions(topic_id=ORDERS, partitions=[0, 1])]
    assert words("ConsumerGroupHeartbeat", 1, asked) == (
        "checkout: m-1, epoch 3, owns id:EjRWeBI0[0,1] → "
    )
    asked.topic_partitions = []
    assert words("ConsumerGroupHeartbeat", 1, asked).endswith("epoch 3, owns nothing → ")
