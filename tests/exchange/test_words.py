"""Exchanges in words, where the recordings of `test_lines_of_recordings` have none of the kind."""

from __future__ import annotations

from kproxy.exchange.pairing import pair
from kproxy.exchange.words import text_of
from kproxy.wire.protocol import messages
from tests.exchange.batches import batch, marker
from tests.exchange.bodies import (
    ORDERS,
    assignment,
    exchange,
    fetch_request,
    fetch_response,
    words,
)
from tests.exchange.making import answer, token

M = messages


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


def test_a_member_of_a_kip_848_group_says_what_it_owns():
    H = M.ConsumerGroupHeartbeatRequest
    asked = H(group_id="checkout", member_id="m-1", member_epoch=3)
    asked.topic_partitions = [H.TopicPartitions(topic_id=ORDERS, partitions=[0, 1])]
    assert words("ConsumerGroupHeartbeat", 1, asked) == (
        "checkout: m-1, epoch 3, owns id:EjRWeBI0[0,1] → "
    )
    asked.topic_partitions = []
    assert words("ConsumerGroupHeartbeat", 1, asked).endswith("epoch 3, owns nothing → ")


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


def test_bytes_that_are_no_records_are_named():
    data = b"\xff" * 40
    answered = fetch_response({0: data})
    text = words("Fetch", 11, fetch_request({0: 1}), answered)
    assert text == "orders[0@1] → bytes that cannot be read (batch length -1), 40 B"
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
        "group share, id:EjRWeBI0[0], session #1"
        f" → id:EjRWeBI0[0] 3 records @5..7, {len(batch(3))} B, 3 acquired"
    )
    assert words("ShareFetch", 1, asked, R()).endswith(" → empty")


def test_how_far_a_consumer_is_behind():
    F = M.FetchResponse

    def fetched(partitions):
        found = [
            F.PartitionData(partition_index=index, records=data, high_watermark=end)
            for index, (data, end) in partitions.items()
        ]
        return F(responses=[F.FetchableTopicResponse(topic="orders", partitions=found)])

    asked = fetch_request({0: 41, 1: 7})
    size = len(batch(3, offset=41))
    one = words("Fetch", 11, fetch_request({0: 41}), fetched({0: (batch(3, offset=41), 56)}))
    assert one.endswith(f"→ 3 records @41..43, {size} B, lag 12 of 56")
    both = words("Fetch", 11, asked, fetched({0: (batch(3, offset=41), 56), 1: (b"", 9)}))
    assert both.endswith("lag 14 in 2 partitions")
    # Read to the end, and nothing new.
    end = words("Fetch", 11, asked, fetched({0: (batch(3, offset=41), 44), 1: (b"", 7)}))
    assert "lag" not in end
    assert words("Fetch", 11, asked, fetched({1: (b"", 9)})).endswith("→ empty, lag 2 of 9")


def test_records_of_aborted_transactions_are_told_apart():
    F = M.FetchResponse
    data = batch(3, offset=41, producer_id=7) + marker(False, 44, producer_id=7)
    data += batch(2, offset=45, producer_id=7) + marker(True, 47, producer_id=7)
    partition = F.PartitionData(partition_index=0, records=data, high_watermark=48)
    partition.aborted_transactions = [F.AbortedTransaction(producer_id=7, first_offset=41)]
    body = F(responses=[F.FetchableTopicResponse(topic="orders", partitions=[partition])])
    found = exchange("Fetch", 11, fetch_request({0: 41}), body)
    assert "5 records, 3 aborted, ABORT, COMMIT @41..47" in found.text
    assert [record.aborted for record in found.records] == [True] * 3 + [False] * 2


def test_a_fetch_of_nothing_says_so():
    assert words("Fetch", 11, fetch_request({}), M.FetchResponse()) == "no topics → empty"


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
        "topic orders: retention.ms=1000 → "
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


def test_what_a_config_change_sets_and_to_what():
    A = M.IncrementalAlterConfigsRequest
    changes = [("a", 0, "1"), ("b", 1, None), ("c", 2, "x")]
    configs = [A.AlterableConfig(name=n, config_operation=o, value=v) for n, o, v in changes]
    topic = A.AlterConfigsResource(resource_type=2, resource_name="orders", configs=configs)
    assert words("IncrementalAlterConfigs", 1, A(resources=[topic])) == (
        "topic orders: a=1, b back to its default, c+=x → "
    )
    topic.configs = [A.AlterableConfig(name="ssl.key.password", value="****")]
    assert "ssl.key.password=(redacted)" in words(
        "IncrementalAlterConfigs", 1, A(resources=[topic])
    )


def test_none_is_an_answer():
    assert words("ListGroups", 4, M.ListGroupsRequest(), M.ListGroupsResponse()) == " → no groups"
    refused = M.ListGroupsResponse(error_code=15)
    assert words("ListGroups", 4, M.ListGroupsRequest(), refused) == " → "


def test_the_broker_says_what_is_wrong():
    C = M.CreateTopicsResponse
    results = [C.CreatableTopicResult(name="a b", error_code=17, error_message="not “a b”")]
    asked = M.CreateTopicsRequest(topics=[M.CreateTopicsRequest.CreatableTopic(name="a b")])
    found = exchange("CreateTopics", 5, asked, C(topics=results))
    assert "→ INVALID_TOPIC_EXCEPTION “not “a b””" in found.text


def test_apis_without_words_of_their_own_are_described_by_their_definition():
    ListedGroup = M.ListGroupsResponse.ListedGroup
    groups = [ListedGroup(group_id="checkout"), ListedGroup(group_id="billing")]
    asked, answered = M.ListGroupsRequest(states_filter=["Stable"]), M.ListGroupsResponse()
    answered.groups = groups
    assert words("ListGroups", 4, asked, answered) == "Stable → billing, checkout"
    assert words("DeleteGroups", 2, M.DeleteGroupsRequest(groups_names=["a", "b"])) == "a, b → "
    asked = M.DescribeProducersRequest(
        topics=[M.DescribeProducersRequest.TopicRequest(name="orders", partition_indexes=[0])]
    )
    assert words("DescribeProducers", 0, asked) == "orders → "
    asked = M.UnregisterBrokerRequest(broker_id=7)
    assert words("UnregisterBroker", 0, asked) == "broker_id 7 → "
    asked = M.BrokerHeartbeatRequest(broker_id=1, broker_epoch=2, want_fence=True)
    assert words("BrokerHeartbeat", 0, asked).startswith("broker_id 1, broker_epoch 2, ")


def test_a_sasl_token_without_a_header_has_its_size():
    raw = token(1, b"*" * 20)
    (exchange,) = pair([raw, answer(raw, b"\0\0\0\0", flags=raw.flags)])
    found = text_of(exchange)
    assert (found.request, found.response) == ("token 20 B", "token 0 B")
