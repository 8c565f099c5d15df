"""`kproxy why number:N`: the causes that the recording shows, error by error."""

from __future__ import annotations

import pytest

from kproxy.exchange.entries import REWRITTEN
from kproxy.wire.protocol import error_code, messages
from tests.exchange.batches import TIMESTAMP, batch
from tests.exchange.bodies import fetch_request, fetch_response, produce_response
from tests.look.why.traffic import Traffic, body, join, metadata, numbered, produce

M = messages


def created(topic: str, error: str = "NONE", replicas: int = 1):
    wanted = {"name": topic, "num_partitions": 1, "replication_factor": replicas}
    result = {"name": topic, "error_code": error_code(error)}
    asked = body("CreateTopicsRequest", topics=[wanted])
    return "CreateTopics", 5, asked, body("CreateTopicsResponse", topics=[result])


def deleted(topic: str):
    told = body("DeleteTopicsResponse", responses=[{"name": topic}])
    return "DeleteTopics", 4, M.DeleteTopicsRequest(topic_names=[topic]), told


def committed(group: str, error: str = "NONE"):
    asked = M.OffsetFetchRequest(group_id=group, topics=[])
    return "OffsetFetch", 5, asked, M.OffsetFetchResponse(error_code=error_code(error))


def test_a_topic_that_was_deleted(tmp_path):
    traffic = Traffic()
    traffic.add(0, *metadata({0: 1, 1: 1}))
    traffic.add(50, *created("orders"))
    traffic.add(100, *deleted("orders"))
    traffic.add(150, *created("orders", "TOPIC_ALREADY_EXISTS"))
    traffic.add(200, *produce(batch(1), 0, "UNKNOWN_TOPIC_OR_PARTITION"))
    story = traffic.story(tmp_path, "number", "5")
    assert "DeleteTopics #3 of 22:13:20.100, 100 ms before, deleted orders." in story
    assert "Metadata #1 of 22:13:20.000, 200 ms before, knew orders, with 2 partitions." in story
    assert not [line for line in story if "Nothing in the recording" in line]


def test_a_topic_that_exists_already(tmp_path):
    traffic = Traffic()
    traffic.add(0, *created("orders"))
    traffic.add(100, *created("orders", "TOPIC_ALREADY_EXISTS"))
    story = traffic.story(tmp_path, "number", "2")
    (line,) = (each for each in story if "created orders" in each)
    assert line.startswith("CreateTopics #1 of 22:13:20.000, 100 ms before, created orders")


def test_more_replicas_than_brokers(tmp_path):
    traffic = Traffic()
    traffic.add(0, *metadata({0: 1}))
    traffic.add(100, *created("new", "INVALID_REPLICATION_FACTOR", replicas=3))
    story = traffic.story(tmp_path, "number", "2")
    assert "It asks for 3 replicas of new." in story
    assert "Metadata #1 of 22:13:20.000, 100 ms before, names 1 broker." in story


def test_replicas_that_are_not_in_sync(tmp_path):
    traffic = Traffic()
    traffic.add(0, *metadata({0: 2}))
    traffic.add(100, *produce(batch(1), 0, "NOT_ENOUGH_REPLICAS"))
    story = traffic.story(tmp_path, "number", "2")
    shown = (
        "Metadata #1 of 22:13:20.000, 100 ms before, shows 1 of 3 replicas of orders[0] in sync."
    )
    assert shown in story


def test_a_version_that_the_broker_does_not_take(tmp_path):
    keys = [{"api_key": 0, "min_version": 3, "max_version": 7}]
    traffic = Traffic()
    told = body("ApiVersionsResponse", api_keys=keys)
    traffic.add(0, "ApiVersions", 0, M.ApiVersionsRequest(), told)
    traffic.add(100, *produce(batch(1), 0, "UNSUPPORTED_VERSION"))
    story = traffic.story(tmp_path, "number", "2")
    assert "The broker takes Produce v3 to v7, ApiVersions #1 says; this request is v8." in story


def test_who_took_a_static_member(tmp_path):
    traffic = Traffic()
    traffic.add(0, *join("m-a", 1, ["m-a"], group_instance_id="one"), client="first")
    traffic.add(900, *join("m-b", 1, group_instance_id="two"), client="other", connection=3)
    traffic.add(1000, *join("m-z", 1, group_instance_id="one"), client="second", connection=2)
    asked = M.HeartbeatRequest(
        group_id="billing", generation_id=1, member_id="m-a", group_instance_id="one"
    )
    fenced = M.HeartbeatResponse(error_code=82)
    number = traffic.add(2000, "Heartbeat", 3, asked, fenced, client="first")
    story = traffic.story(tmp_path, "number", str(number))
    assert (
        "JoinGroup #3 of 22:13:21.000, 1.0 s before, joined as static member one, too: second"
        " (127.0.0.1:5002) on connection 2."
    ) in story


def test_which_epoch_a_member_was_given(tmp_path):
    H, R = M.ConsumerGroupHeartbeatRequest, M.ConsumerGroupHeartbeatResponse
    traffic = Traffic()
    for at_ms, epoch, given, code in ((0, 0, 5, 0), (60_000, 5, 0, 110)):
        asked = H(group_id="billing", member_id="m", member_epoch=epoch)
        answered = R(member_id="m", member_epoch=given, error_code=code)
        traffic.add(at_ms, "ConsumerGroupHeartbeat", 1, asked, answered)
    story = traffic.story(tmp_path, "number", "2")
    assert (
        "The last epoch that the coordinator gave the member is 5 (ConsumerGroupHeartbeat #1,"
        " 60.0 s before); this request has epoch 5."
    ) in story


def test_a_transaction_that_holds_offsets(tmp_path):
    traffic = Traffic()
    for at_ms, name in ((0, "ended"), (10, "open")):
        topic = {"name": "in", "partitions": [{"partition_index": 0, "committed_offset": 4}]}
        about = {"transactional_id": name, "group_id": "billing"}
        asked = body("TxnOffsetCommitRequest", topics=[topic], **about)
        traffic.add(at_ms, "TxnOffsetCommit", 2, asked, M.TxnOffsetCommitResponse())
    end = M.EndTxnRequest(transactional_id="ended", committed=True)
    traffic.add(20, "EndTxn", 1, end, M.EndTxnResponse())
    traffic.add(100, *committed("billing", "UNSTABLE_OFFSET_COMMIT"))
    story = traffic.story(tmp_path, "number", "4")
    (held,) = (each for each in story if "holds offsets for" in each)
    assert held == (
        "TxnOffsetCommit #2 of 22:13:20.010, 90.0 ms before, holds offsets for transaction open,"
        " which has not ended."
    )


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (batch(1), "The checksum of the batch for orders[0] is right, as the client sent it."),
        (
            batch(1)[:-1] + b"x",
            "The checksum of the batch for orders[0] is wrong already as the client sent it.",
        ),
    ],
)
def test_whose_fault_a_checksum_is(data, said, tmp_path):
    traffic = Traffic()
    traffic.add(0, *produce(data, 0, "CORRUPT_MESSAGE"))
    assert said in traffic.story(tmp_path, "number", "1")


def test_a_batch_that_a_rule_damaged_is_not_the_clients_fault(tmp_path):
    traffic = Traffic()
    traffic.add(0, *produce(batch(1), 0, "CORRUPT_MESSAGE"))
    answer = traffic.entries.pop()
    traffic.by_rule(REWRITTEN, splices=[(60, 1, b"!")])
    traffic.entries.append(answer)
    story = traffic.story(tmp_path, "number", "1")
    assert "What the broker got is what a fault rule had made of the request." in story
    assert not any("memory" in line for line in story)


def test_how_large_a_batch_is(tmp_path):
    traffic = Traffic()
    traffic.add(0, *produce(batch(1, value=b"x" * 100)))
    traffic.add(10, *produce(batch(1, value=b"x" * 500), 0, "MESSAGE_TOO_LARGE"))
    traffic.add(20, *produce(batch(2, value=b"x" * 900), 1, "MESSAGE_TOO_LARGE"))
    story = traffic.story(tmp_path, "number", "3")
    assert "The batch for orders[1] has 1.8 KiB with 2 records." in story
    (line,) = (each for each in story if each.startswith("The largest batch"))
    assert line.endswith("Produce #1 of 22:13:20.000, 20.0 ms before.")


def test_a_clock_that_is_wrong(tmp_path):
    traffic = Traffic()
    at_ms = 86_400_000
    assert TIMESTAMP * 1_000_000 == 1_700_000_000_000_000_000  # when recordings begin here
    traffic.add(at_ms, *produce(batch(1), 0, "INVALID_TIMESTAMP"))
    assert (
        "The latest timestamp for orders[0] is 24.0 h before the arrival of the request."
    ) in traffic.story(tmp_path, "number", "1")


def test_records_without_a_key(tmp_path):
    R = M.ProduceResponse
    asked = produce(batch(2))
    refused = produce_response({0: -1}, error_code("INVALID_RECORD"))
    wrong = R.BatchIndexAndErrorMessage(batch_index=1, batch_index_error_message="no key")
    refused.responses[0].partition_responses[0].record_errors = [wrong]
    traffic = Traffic()
    traffic.add(0, "Produce", 8, asked[2], refused)
    story = traffic.story(tmp_path, "number", "1")
    assert "The broker refuses record 1 of the batch: “no key”." in story
    assert not [line for line in story if "have no key" in line]


def test_where_a_fetch_session_was_opened(tmp_path):
    traffic = Traffic()
    opening = fetch_request({0: 5}, session_id=0, session_epoch=0)
    traffic.add(0, "Fetch", 11, opening, fetch_response({0: b""}, session_id=77), connection=2)
    lost = fetch_request({}, session_id=77, session_epoch=1)
    traffic.add(100, "Fetch", 11, lost, M.FetchResponse(error_code=70))
    story = traffic.story(tmp_path, "number", "2")
    assert (
        "Fetch #1 of 22:13:20.000, 100 ms before, opened fetch session 77, on connection 2."
    ) in story


def test_the_offset_of_a_fetch_session(tmp_path):
    traffic = Traffic()
    opening = fetch_request({0: 5}, session_id=0, session_epoch=0)
    traffic.add(0, "Fetch", 11, opening, fetch_response({0: b""}, session_id=77))
    refused = fetch_response({0: b""}, session_id=77)
    refused.responses[0].partitions[0].error_code = 1
    traffic.add(100, "Fetch", 11, fetch_request({}, session_id=77, session_epoch=1), refused)
    story = traffic.story(tmp_path, "number", "2")
    assert (
        "Its fetch session asks for offset 5 of orders[0], since Fetch #1 of 22:13:20.000, 100 ms"
        " before."
    ) in story


def test_a_mechanism_that_the_broker_does_not_offer(tmp_path):
    asked = M.SaslHandshakeRequest(mechanism="GSSAPI")
    told = M.SaslHandshakeResponse(error_code=33, mechanisms=["PLAIN", "SCRAM-SHA-256"])
    traffic = Traffic()
    traffic.add(0, "SaslHandshake", 1, asked, told)
    assert ("The client asks for GSSAPI; the broker offers PLAIN, SCRAM-SHA-256.") in traffic.story(
        tmp_path, "number", "1"
    )


def test_where_a_batch_was_sent_before(tmp_path):
    traffic = Traffic()
    traffic.add(0, *produce(numbered(5, 0, 0)))
    traffic.add(5, *produce(numbered(5, 0, 1)))
    traffic.add(10, *produce(numbered(5, 0, 0), 0, "DUPLICATE_SEQUENCE_NUMBER"))
    said = "Produce #1 of 22:13:20.000, 10.0 ms before, has the same batch for orders[0]."
    assert said in traffic.story(tmp_path, "number", "3")


def test_which_broker_coordinates(tmp_path):
    def found(node: int):
        asked = M.FindCoordinatorRequest(key="billing", key_type=0)
        return "FindCoordinator", 2, asked, M.FindCoordinatorResponse(node_id=node)

    traffic = Traffic()
    traffic.add(0, *found(1))
    moved = committed("billing", "NOT_COORDINATOR")
    traffic.add(100, *moved)
    traffic.add(200, *found(2))
    story = traffic.story(tmp_path, "number", "2")
    named = "FindCoordinator #1 of 22:13:20.000, 100 ms before, named broker 1 as the coordinator"
    assert f"{named} of billing." in story
    assert "FindCoordinator #3 of 22:13:20.200, 100 ms after it, names broker 2." in story
