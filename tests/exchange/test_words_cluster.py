"""The cluster, its topics and configs, and the beginnings of connections in words."""

from __future__ import annotations

from kproxy.exchange.pairing import pair
from kproxy.exchange.words import text_of
from kproxy.wire.protocol import messages
from tests.exchange.bodies import ORDERS, exchange, words
from tests.exchange.making import answer, token

M = messages


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
        "all topics → 2 topics, 6 partitions, brokers 1,1,1,2,2,2 +3"
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
    assert words("FindCoordinator", 4, asked, answered) == ("transaction tx-1, tx-2 → tx-1: node 1")


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
    found = text_of(exchange)
    assert (found.request, found.response) == ("token 20 B", "token 0 B")


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
