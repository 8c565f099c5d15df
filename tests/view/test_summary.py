"""Exchanges in words: every API that has words of its own, and all the others."""

from __future__ import annotations

import re
import struct
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kproxy import protocol
from kproxy.exchange.entries import NO_RESPONSE
from kproxy.exchange.exchange import Exchange, pair
from kproxy.protocol import messages, schema
from kproxy.view import summary as summary_module
from kproxy.view.summary import summarise
from kproxy.view.wording import Names
from tests.exchange.making import answer, request, response, token
from tests.view.batches import batch, marker

M = messages
ORDERS = UUID("12345678-1234-5678-1234-567812345678")


def exchange(api: str, version: int, asked: object, answered: object | None = None) -> Exchange:
    """An exchange that has been on the wire."""
    frame = request(api, version, asked)
    if answered is None:
        (made,) = pair([frame])
    else:
        (made,) = pair([frame, response(frame, answered)])
    assert not made.opaque
    return made


def words(api: str, version: int, asked: object, answered: object | None = None) -> str:
    """What is said about it: `asked → answered`."""
    found = summarise(exchange(api, version, asked, answered), Names())
    return f"{found.asked} → {found.answered}"


def produce_request(sets: dict[int, bytes], topic: str = "orders", **fields):
    P = M.ProduceRequest
    partitions = [P.PartitionProduceData(index=index, records=data) for index, data in sets.items()]
    topics = [P.TopicProduceData(name=topic, partition_data=partitions)]
    return P(topic_data=topics, acks=-1, timeout_ms=1, **fields)


def produce_response(offsets: dict[int, int], error_code: int = 0):
    P = M.ProduceResponse
    partitions = [
        P.PartitionProduceResponse(index=index, base_offset=offset, error_code=error_code)
        for index, offset in offsets.items()
    ]
    return P(responses=[P.TopicProduceResponse(name="orders", partition_responses=partitions)])


def fetch_request(offsets: dict[int, int], topic: str = "orders", **fields):
    F = M.FetchRequest
    partitions = [
        F.FetchPartition(partition=index, fetch_offset=offset) for index, offset in offsets.items()
    ]
    topics = [F.FetchTopic(topic=topic, partitions=partitions)] if offsets else []
    return F(topics=topics, **fields)


def fetch_response(sets: dict[int, bytes], topic: str = "orders", **fields):
    F = M.FetchResponse
    partitions = [F.PartitionData(partition_index=i, records=data) for i, data in sets.items()]
    topics = [F.FetchableTopicResponse(topic=topic, partitions=partitions)]
    return F(responses=topics, **fields)


def test_produce():
    asked = produce_request({0: batch(3, value=b"x" * 100)})
    size = len(batch(3, value=b"x" * 100))
    assert words("Produce", 9, asked, produce_response({0: 41})) == (
        f"orders[0] 3 records, {size} B, acks=all → offset 41"
    )
    asked = produce_request({0: batch(1), 2: batch(2)}, transactional_id="tx")
    asked.acks = 1
    assert words("Produce", 9, asked, produce_response({0: 41, 2: 7})) == (
        f"orders[0,2] 3 records, {len(batch(1)) + len(batch(2))} B, acks=1, transaction tx"
        " → offsets 41, 7"
    )


def test_produce_that_failed_has_no_offset():
    asked = produce_request({0: batch(1)})
    failed = produce_response({0: -1}, error_code=6)
    assert words("Produce", 9, asked, failed).endswith("acks=all → ")


def test_fetch():
    answered = fetch_response({0: batch(3, offset=41), 1: b""})
    size = len(batch(3))
    assert words("Fetch", 11, fetch_request({0: 41, 1: 7}), answered) == (
        f"orders[0@41,1@7] → 3 records @41..43, {size} B"
    )
    answered = fetch_response({0: batch(3, offset=41), 1: batch(1, offset=7)})
    assert words("Fetch", 11, fetch_request({0: 41, 1: 7}), answered) == (
        f"orders[0@41,1@7] → 4 records from 2 partitions, {size + len(batch(1))} B"
    )
    assert words("Fetch", 11, fetch_request({0: 41}), fetch_response({0: b""})) == (
        "orders[0@41] → empty"
    )


def test_fetch_in_a_session_says_what_came_from_where():
    asked = fetch_request({}, session_id=77, session_epoch=3)
    answered = fetch_response({0: batch(1, offset=5), 4: b""}, session_id=77)
    assert words("Fetch", 11, asked, answered) == (
        f"session 77 #3 → orders[0] 1 record @5, {len(batch(1))} B"
    )
    asked = fetch_request({}, session_id=77, session_epoch=-1)
    assert words("Fetch", 11, asked, M.FetchResponse()) == "session 77 ends → empty"


def test_markers_of_transactions_are_no_records():
    data = batch(2, offset=10) + marker(commit=True, offset=12)
    answered = fetch_response({0: data})
    assert words("Fetch", 11, fetch_request({0: 10}), answered) == (
        f"orders[0@10] → 2 records, COMMIT @10..12, {len(data)} B"
    )
    data = marker(commit=False, offset=12)
    assert words("Fetch", 11, fetch_request({0: 12}), fetch_response({0: data})) == (
        f"orders[0@12] → ABORT @12, {len(data)} B"
    )


def test_records_that_cannot_be_read_are_not_counted():
    data = b"\xff" * 40
    answered = fetch_response({0: data})
    assert words("Fetch", 11, fetch_request({0: 1}), answered) == "orders[0@1] → records, 40 B"
    # The broker cuts off the last batch.
    data = batch(3, offset=1) + batch(3, offset=4)[:50]
    answered = fetch_response({0: data})
    assert words("Fetch", 11, fetch_request({0: 1}), answered) == (
        f"orders[0@1] → 3 records @1..3, {len(data)} B"
    )


def test_share_fetch():
    F = M.ShareFetchRequest
    topic = F.FetchTopic(topic_id=ORDERS, partitions=[F.FetchPartition(partition_index=0)])
    asked = F(group_id="share", member_id="m", share_session_epoch=1, topics=[topic])
    R = M.ShareFetchResponse
    partition = R.PartitionData(
        partition_index=0,
        records=batch(3, offset=5),
        acquired_records=[R.AcquiredRecords(first_offset=5, last_offset=7, delivery_count=1)],
    )
    answered = R(responses=[R.ShareFetchableTopicResponse(topic_id=ORDERS, partitions=[partition])])
    assert words("ShareFetch", 1, asked, answered) == (
        f"group share, id:EjRWeBI0[0], session #1 → 3 records @5..7, {len(batch(3))} B, 3 acquired"
    )
    assert words("ShareFetch", 1, asked, R()).endswith(" → empty")


def test_list_offsets():
    L, R = M.ListOffsetsRequest, M.ListOffsetsResponse
    partitions = [
        L.ListOffsetsPartition(partition_index=index, timestamp=timestamp)
        for index, timestamp in enumerate((-1, -2, 1700000000000))
    ]
    asked = L(topics=[L.ListOffsetsTopic(name="orders", partitions=partitions)])
    found = [
        R.ListOffsetsPartitionResponse(partition_index=index, offset=offset)
        for index, offset in enumerate((42, 0, -1))
    ]
    answered = R(topics=[R.ListOffsetsTopicResponse(name="orders", partitions=found)])
    assert words("ListOffsets", 7, asked, answered) == (
        "orders[0@latest,1@earliest,2@time 1700000000000] → [0@42,1@0,2@–]"
    )
    old = R.ListOffsetsPartitionResponse(partition_index=0, old_style_offsets=[7, 3])
    answered = R(topics=[R.ListOffsetsTopicResponse(name="orders", partitions=[old])])
    asked = L(topics=[L.ListOffsetsTopic(name="orders", partitions=partitions[:1])])
    assert words("ListOffsets", 0, asked, answered) == "orders[0@latest] → [0@7]"


def test_offset_for_leader_epoch():
    L, R = M.OffsetForLeaderEpochRequest, M.OffsetForLeaderEpochResponse
    partition = L.OffsetForLeaderPartition(partition=2, leader_epoch=5)
    asked = L(topics=[L.OffsetForLeaderTopic(topic="orders", partitions=[partition])])
    end = R.EpochEndOffset(partition=2, end_offset=42)
    answered = R(topics=[R.OffsetForLeaderTopicResult(topic="orders", partitions=[end])])
    assert words("OffsetForLeaderEpoch", 3, asked, answered) == "orders[2 epoch 5] → [2@42]"


def test_metadata():
    R = M.MetadataResponse
    brokers = [R.MetadataResponseBroker(node_id=n, host="h", port=1) for n in (1, 2, 3)]

    def topic(name: str, partitions: int, error_code: int = 0):
        some = [R.MetadataResponsePartition(partition_index=n) for n in range(partitions)]
        return R.MetadataResponseTopic(name=name, partitions=some, error_code=error_code)

    asked = M.MetadataRequest(topics=[M.MetadataRequest.MetadataRequestTopic(name="orders")])
    answered = R(brokers=brokers, topics=[topic("orders", 4)])
    assert words("Metadata", 9, asked, answered) == "orders → 4 partitions, brokers 1,2,3"
    answered = R(brokers=brokers[:1], topics=[topic("orders", 0, error_code=3)])
    assert words("Metadata", 9, asked, answered) == "orders → broker 1"
    answered = R(brokers=[*brokers] * 3, topics=[topic("a", 4), topic("b", 2)])
    assert words("Metadata", 9, M.MetadataRequest(topics=None), answered) == (
        "all topics → 2 topics, 6 partitions, brokers 1,2,3,1,2,3 +3"
    )
    assert words("Metadata", 0, M.MetadataRequest(), R()) == " → no brokers"


def test_api_versions():
    asked = M.ApiVersionsRequest(client_software_name="librdkafka", client_software_version="2.6")
    keys = [M.ApiVersionsResponse.ApiVersion(api_key=key, max_version=4) for key in (18, 0)]
    assert words("ApiVersions", 3, asked, M.ApiVersionsResponse(api_keys=keys)) == (
        "librdkafka 2.6 → 2 APIs"
    )
    assert words("ApiVersions", 0, M.ApiVersionsRequest(), M.ApiVersionsResponse()) == " → 0 APIs"
    refused = M.ApiVersionsResponse(error_code=35, api_keys=keys[:1])
    assert words("ApiVersions", 0, M.ApiVersionsRequest(), refused) == " → ApiVersions 0 to 4"


def test_find_coordinator():
    answered = M.FindCoordinatorResponse(node_id=2, host="h", port=1)
    assert words("FindCoordinator", 2, M.FindCoordinatorRequest(key="checkout"), answered) == (
        "group checkout → node 2"
    )
    asked = M.FindCoordinatorRequest(key_type=1, coordinator_keys=["tx-1", "tx-2"])
    C = M.FindCoordinatorResponse.Coordinator
    found = [C(key="tx-1", node_id=1), C(key="tx-2", node_id=-1, error_code=15)]
    answered = M.FindCoordinatorResponse(coordinators=found)
    assert words("FindCoordinator", 4, asked, answered) == "transaction tx-1, tx-2 → node 1"


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
        "checkout new member, wants orders, payments, range, cooperative-sticky"
        " → generation 3, leader of 2 members, range"
    )
    asked.member_id = member_id
    answered.leader = "another"
    assert words("JoinGroup", 5, asked, answered) == (
        "checkout consumer-chec…1-4ccd, wants orders, payments, range, cooperative-sticky"
        " → generation 3, follower, range"
    )
    asked.group_instance_id = "till-4"
    assert words("JoinGroup", 5, asked, M.JoinGroupResponse(error_code=79)).startswith(
        "checkout till-4, wants"
    )


def test_join_group_of_a_connect_worker_is_not_a_consumer():
    J = M.JoinGroupRequest
    protocol = J.JoinGroupRequestProtocol(name="sessioned", metadata=b"\0\2whatever")
    asked = J(group_id="connect", protocol_type="connect", protocols=[protocol], member_id="w")
    assert words("JoinGroup", 5, asked) == "connect w, sessioned → "


def test_sync_group():
    S = M.SyncGroupRequest
    some = [S.SyncGroupRequestAssignment(member_id="m", assignment=assignment("orders", 0))]
    asked = S(group_id="checkout", generation_id=3, member_id="m", assignments=some)
    answered = M.SyncGroupResponse(assignment=assignment("orders", 0, 1, 2))
    assert words("SyncGroup", 3, asked, answered) == (
        "checkout generation 3, assigns 1 member → orders[0,1,2]"
    )
    # A version that we do not know is read as the newest that we do.
    answered = M.SyncGroupResponse(assignment=assignment("orders", 0, version=9))
    assert words("SyncGroup", 3, asked, answered).endswith(" → orders[0]")
    answered = M.SyncGroupResponse(assignment=b"")
    assert words("SyncGroup", 3, asked, answered).endswith(" → nothing assigned")
    answered = M.SyncGroupResponse(assignment=b"\0\0\xff\xff\xff", protocol_type="consumer")
    assert words("SyncGroup", 5, asked, answered).endswith(" → assignment 5 B")
    answered = M.SyncGroupResponse(assignment=b"abc", protocol_type="connect")
    assert words("SyncGroup", 5, asked, answered).endswith(" → assignment 3 B")


def test_heartbeat_and_leave_group():
    asked = M.HeartbeatRequest(group_id="checkout", generation_id=3, member_id="m-1")
    assert words("Heartbeat", 4, asked, M.HeartbeatResponse()) == "checkout generation 3, m-1 → "
    asked = M.LeaveGroupRequest(group_id="checkout", member_id="m-1")
    assert words("LeaveGroup", 1, asked, M.LeaveGroupResponse()) == "checkout m-1 → "
    members = [M.LeaveGroupRequest.MemberIdentity(member_id=name) for name in ("m-1", "m-2")]
    asked = M.LeaveGroupRequest(group_id="checkout", members=members)
    assert words("LeaveGroup", 4, asked) == "checkout m-1, m-2 → "


def test_consumer_group_heartbeat():
    asked = M.ConsumerGroupHeartbeatRequest(
        group_id="checkout", member_id="m-1", member_epoch=0, subscribed_topic_names=["orders"]
    )
    R = M.ConsumerGroupHeartbeatResponse
    answered = R(member_epoch=4, assignment=R.Assignment())
    assert words("ConsumerGroupHeartbeat", 0, asked, answered) == (
        "checkout m-1, joins, wants orders → epoch 4, nothing assigned"
    )
    asked = M.ConsumerGroupHeartbeatRequest(
        group_id="checkout", member_id="m-1", member_epoch=4, subscribed_topic_names=None
    )
    assert words("ConsumerGroupHeartbeat", 0, asked, R(member_epoch=4, assignment=None)) == (
        "checkout m-1, epoch 4 → "
    )
    topic = R.TopicPartitions(topic_id=ORDERS, partitions=[0, 1])
    answered = R(member_epoch=5, assignment=R.Assignment(topic_partitions=[topic]))
    assert words("ConsumerGroupHeartbeat", 0, asked, answered).endswith(
        " → epoch 5, id:EjRWeBI0[0,1]"
    )
    asked.member_epoch = -1
    assert words("ConsumerGroupHeartbeat", 0, asked) == "checkout m-1, leaves → "


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
        "checkout orders[0@41,1@7] → "
    )
    F, R = M.OffsetFetchRequest, M.OffsetFetchResponse
    wanted = F.OffsetFetchRequestTopic(name="orders", partition_indexes=[0, 1])
    found = [
        R.OffsetFetchResponsePartition(partition_index=index, committed_offset=offset)
        for index, offset in ((0, 41), (1, -1))
    ]
    answered = R(topics=[R.OffsetFetchResponseTopic(name="orders", partitions=found)])
    assert words("OffsetFetch", 5, F(group_id="checkout", topics=[wanted]), answered) == (
        "checkout orders[0,1] → orders[0@41,1@–]"
    )
    groups = [F.OffsetFetchRequestGroup(group_id="a", topics=None)]
    G = R.OffsetFetchResponseGroup
    partition = R.OffsetFetchResponsePartitions(partition_index=0, committed_offset=3)
    topic = R.OffsetFetchResponseTopics(name="orders", partitions=[partition])
    answered = R(groups=[G(group_id="a", topics=[topic])])
    assert words("OffsetFetch", 8, F(groups=groups), answered) == "a all → orders[0@3]"


def test_described_groups():
    R = M.DescribeGroupsResponse
    members = [R.DescribedGroupMember(member_id="m")]
    groups = [
        R.DescribedGroup(group_id="checkout", group_state="Stable", members=members),
        R.DescribedGroup(group_id="secret", error_code=30),
    ]
    asked = M.DescribeGroupsRequest(groups=["checkout", "secret"])
    assert words("DescribeGroups", 3, asked, R(groups=groups)) == (
        "checkout, secret → checkout Stable, 1 member"
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
    assert words("AddPartitionsToTxn", 3, asked, answered) == "tx orders[0,1] → "
    asked = A(transactions=[A.AddPartitionsToTxnTransaction(transactional_id="tx", topics=topics)])
    assert words("AddPartitionsToTxn", 4, asked, answered) == "tx orders[0,1] → "
    asked = M.AddOffsetsToTxnRequest(transactional_id="tx", group_id="checkout")
    assert words("AddOffsetsToTxn", 3, asked) == "tx group checkout → "
    C = M.TxnOffsetCommitRequest
    partition = C.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=5)
    topic = C.TxnOffsetCommitRequestTopic(name="orders", partitions=[partition])
    asked = C(transactional_id="tx", group_id="checkout", topics=[topic])
    assert words("TxnOffsetCommit", 3, asked) == "checkout orders[0@5], transaction tx → "
    asked = M.EndTxnRequest(transactional_id="tx", committed=True)
    assert words("EndTxn", 3, asked, M.EndTxnResponse()) == "tx commit → "
    answered = M.EndTxnResponse(producer_id=1000, producer_epoch=3)
    asked = M.EndTxnRequest(transactional_id="tx", committed=False)
    assert words("EndTxn", 5, asked, answered) == "tx abort → producer 1000 epoch 3"


def test_topics_and_configs():
    C = M.CreateTopicsRequest
    topics = [
        C.CreatableTopic(name="orders", num_partitions=3, replication_factor=1),
        C.CreatableTopic(name="placed", num_partitions=-1, replication_factor=-1),
    ]
    topics[1].assignments = [C.CreatableReplicaAssignment(partition_index=0, broker_ids=[1])]
    assert words("CreateTopics", 5, C(topics=topics, validate_only=True)) == (
        "orders (3 partitions), placed (1 partition), only to validate → "
    )
    topics = [C.CreatableTopic(name="usual", num_partitions=-1, replication_factor=-1)]
    assert words("CreateTopics", 5, C(topics=topics)) == "usual (default partitions) → "
    D = M.DeleteTopicsRequest
    assert words("DeleteTopics", 4, D(topic_names=["orders"])) == "orders → "
    states = [D.DeleteTopicState(name="orders"), D.DeleteTopicState(name=None, topic_id=ORDERS)]
    assert words("DeleteTopics", 6, D(topics=states)) == "orders, id:EjRWeBI0 → "
    P = M.CreatePartitionsRequest
    topics = [P.CreatePartitionsTopic(name="orders", count=6, assignments=None)]
    assert words("CreatePartitions", 2, P(topics=topics)) == "orders to 6 → "
    R = M.DeleteRecordsRequest
    partitions = [R.DeleteRecordsPartition(partition_index=0, offset=41)]
    topics = [R.DeleteRecordsTopic(name="orders", partitions=partitions)]
    assert words("DeleteRecords", 1, R(topics=topics)) == "orders[0@41] → "
    A = M.IncrementalAlterConfigsRequest
    config = A.AlterableConfig(name="retention.ms", value="1000")
    resource = A.AlterConfigsResource(resource_type=2, resource_name="orders", configs=[config])
    assert words("IncrementalAlterConfigs", 1, A(resources=[resource])) == (
        "topic orders: retention.ms → "
    )
    D = M.DescribeConfigsRequest
    resources = [
        D.DescribeConfigsResource(resource_type=4, resource_name=""),
        D.DescribeConfigsResource(resource_type=99, resource_name="x"),
    ]
    R = M.DescribeConfigsResponse
    result = R.DescribeConfigsResult(configs=[R.DescribeConfigsResourceResult(name="a")])
    assert words("DescribeConfigs", 4, D(resources=resources), R(results=[result])) == (
        "broker default, type 99 x → 1 config"
    )


def test_describe_cluster():
    R = M.DescribeClusterResponse
    brokers = [R.DescribeClusterBroker(broker_id=n, host="h", port=1) for n in (1, 2)]
    answered = R(brokers=brokers, controller_id=2)
    assert words("DescribeCluster", 0, M.DescribeClusterRequest(), answered) == (
        " → brokers 1,2, controller 2"
    )


def test_sasl():
    asked = M.SaslHandshakeRequest(mechanism="PLAIN")
    offered = M.SaslHandshakeResponse(mechanisms=["SCRAM-SHA-256"])
    assert words("SaslHandshake", 1, asked, offered) == "PLAIN → "
    offered.error_code = 33
    assert words("SaslHandshake", 1, asked, offered) == "PLAIN → offers SCRAM-SHA-256"
    asked = M.SaslAuthenticateRequest(auth_bytes=b"*" * 20)
    answered = M.SaslAuthenticateResponse(auth_bytes=b"", session_lifetime_ms=60_000)
    assert words("SaslAuthenticate", 2, asked, answered) == "token 20 B → token 0 B, session 60 s"
    raw = token(1, b"*" * 20)
    (exchange,) = pair([raw, answer(raw, b"\0\0\0\0", flags=raw.flags)])
    found = summarise(exchange, Names())
    assert (found.asked, found.answered) == ("token 20 B", "token 0 B")


# ---- all the others


def test_apis_without_words_of_their_own_are_described_by_their_definition():
    ListedGroup = M.ListGroupsResponse.ListedGroup
    groups = [ListedGroup(group_id="checkout"), ListedGroup(group_id="billing")]
    asked, answered = M.ListGroupsRequest(states_filter=["Stable"]), M.ListGroupsResponse()
    answered.groups = groups
    assert words("ListGroups", 4, asked, answered) == "Stable → 2 groups: checkout, billing"
    assert words("DeleteGroups", 2, M.DeleteGroupsRequest(groups_names=["a", "b"])) == "a, b → "
    asked = M.DescribeProducersRequest(
        topics=[M.DescribeProducersRequest.TopicRequest(name="orders", partition_indexes=[0])]
    )
    assert words("DescribeProducers", 0, asked) == "1 topic: orders → "
    asked = M.UnregisterBrokerRequest(broker_id=7)
    assert words("UnregisterBroker", 0, asked) == "broker_id 7 → "
    asked = M.BrokerHeartbeatRequest(broker_id=1, broker_epoch=2, want_fence=True)
    assert words("BrokerHeartbeat", 0, asked).startswith("broker_id 1, broker_epoch 2, ")


def test_every_message_of_every_version_can_be_worded():
    """With one element in every list, so that all fields are looked at."""
    looked_at = 0
    for key, version in schema.known_versions():
        asked, answered = schema.message(key, schema.REQUEST), schema.message(key, schema.RESPONSE)
        frame = request(protocol.api_name(key), version, filled(asked.name, asked.fields, version))
        reply = response(frame, filled(answered.name, answered.fields, version))
        (made,) = pair([frame, reply])
        assert not made.opaque, made
        found = summarise(made, Names())
        # No Python values by accident.
        assert not re.search(r"[<>\\]|None|object", found.asked + found.answered), made
        looked_at += 1
    assert looked_at > 300


def filled(owner: str, fields, version: int, cls: type | None = None):
    """A value with something in every list and string, and every nullable struct."""
    made = (cls or getattr(M, owner))()
    for field in fields:
        if version not in field.versions:
            continue
        if field.fields:
            inner = filled(owner, field.fields, version, getattr(getattr(M, owner), field.element))
        elif field.element == "string":
            inner = "x"
        elif field.element in ("bytes", "records"):
            inner = b"\1\2\3"
        else:
            continue
        setattr(made, field.name, [inner] if field.is_array else inner)
    return made


@given(data=st.data())
def test_no_bytes_make_it_fail(data):
    """Damaged frames are opaque or have words; the words are text."""
    key = data.draw(st.sampled_from(sorted(protocol.api_key(api) for api in summary_module._WORDS)))
    message = schema.message(key, schema.REQUEST)
    version = data.draw(st.sampled_from(sorted(message.versions)))
    frame = request(protocol.api_name(key), version, filled(message.name, message.fields, version))
    answered = schema.message(key, schema.RESPONSE)
    reply = response(frame, filled(answered.name, answered.fields, version))
    for each, start in ((frame, 14), (reply, 8)):
        damaged = bytearray(each.data)
        for _ in range(data.draw(st.integers(0, 3))):
            position = data.draw(st.integers(start, len(damaged)))
            damaged[position : position + 1] = bytes([data.draw(st.integers(0, 255))])
        each.pieces = [bytes(damaged)]
    (made,) = pair([frame, reply])
    found = summarise(made, Names())
    assert isinstance(found.asked + found.answered, str)


# ---- topic names


def test_topic_ids_are_named_once_a_response_told_them():
    names = Names()
    asked = request("Fetch", 13, fetch_request({0: 5}))
    asked_by_id = exchange("Fetch", 13, by_id({0: 5}))
    assert summarise(asked_by_id, names).asked == "id:EjRWeBI0[0@5]"
    T = M.MetadataResponse.MetadataResponseTopic
    told = M.MetadataResponse(topics=[T(name="orders", topic_id=ORDERS), T(name=None)])
    summarise(exchange("Metadata", 12, M.MetadataRequest(topics=None), told), names)
    assert summarise(asked_by_id, names).asked == "orders[0@5]"
    assert asked.number == asked_by_id.number


def by_id(offsets: dict[int, int]):
    made = fetch_request(offsets)
    made.topics[0].topic_id = ORDERS
    return made


@pytest.mark.parametrize(("api", "version"), [("CreateTopics", 7), ("DescribeTopicPartitions", 0)])
def test_other_responses_tell_topic_ids_too(api, version):
    names = Names()
    message = schema.message(protocol.api_key(api), schema.RESPONSE)
    body = getattr(M, message.name)()
    field = next(field for field in message.fields if field.name == "topics")
    topic = getattr(getattr(M, message.name), field.element)(name="orders", topic_id=ORDERS)
    body.topics = [topic]
    asked = getattr(M, schema.message(protocol.api_key(api), schema.REQUEST).name)()
    summarise(exchange(api, version, asked, body), names)
    assert summarise(exchange("Fetch", 13, by_id({0: 5})), names).asked == "orders[0@5]"


# ---- noise


def test_what_is_noise():
    empty = exchange("Fetch", 11, fetch_request({0: 1}), fetch_response({0: b""}))
    assert summarise(empty, Names()).noise == "empty"
    alive = exchange("Heartbeat", 4, M.HeartbeatRequest(), M.HeartbeatResponse())
    assert summarise(alive, Names()).noise == ""


def test_what_is_no_noise():
    some = exchange("Fetch", 11, fetch_request({0: 1}), fetch_response({0: batch(1)}))
    F = M.FetchResponse
    failed = exchange("Fetch", 11, fetch_request({0: 1}), F(error_code=70))
    rebalance = exchange("Heartbeat", 4, M.HeartbeatRequest(), M.HeartbeatResponse(error_code=27))
    unanswered = exchange("Heartbeat", 4, M.HeartbeatRequest())
    frame = request("Produce", 9, produce_request({0: batch(1)}), flags=NO_RESPONSE)
    (one_way,) = pair([frame])
    for each in (some, failed, rebalance, unanswered, one_way):
        assert summarise(each, Names()).noise is None
