"""`kproxy why number:N`: where the time of a request went, why it failed, what came of it."""

from __future__ import annotations

import attrs
import pytest

from kproxy.exchange.entries import WITHHELD
from kproxy.wire.protocol import error_code, messages
from tests.exchange.batches import batch
from tests.exchange.bodies import (
    fetch_request,
    fetch_response,
)
from tests.exchange.making import MS, START_NS, unanswered
from tests.look.why.test_key import commit
from tests.look.why.traffic import (
    Traffic,
    beat,
    body,
    initialized,
    join,
    leave,
    numbered,
    produce,
    two_members,
)

M = messages


def test_where_the_time_of_a_request_went(tmp_path):
    traffic = Traffic()
    polls = fetch_request({0: 5}, max_wait_ms=500)
    traffic.add(0, "Fetch", 11, polls, fetch_response({0: b""}), took_ms=501)
    for number in range(30):
        traffic.add(600 + number, *beat("m", 1), connection=2)
    traffic.add(100, *beat("m", 1), took_ms=431)
    first, *found = traffic.story(tmp_path, "number", "32")
    assert "#32" in first and "queued 401 ms" in first
    assert found == [
        "It came from a (127.0.0.1:5001) on connection 1, which leads to broker 1.",
        (
            "It waited 401 ms behind Fetch #1: brokers answer the requests of a connection one"
            " after the other."
        ),
        (
            "The broker itself took 30.0 ms; the median of the 30 others is 1.00 ms, p99 1.00 ms."
            " Why it took so much longer is not in the recording."
        ),
        "kproxy added 0.00 ms.",
    ]
    # A request behind it that is completed first is not one that it waited for.
    traffic.add(101, *beat("m", 1)[:3], None)
    last = attrs.evolve(unanswered(traffic.entries[-1]), received_ns=START_NS + 200 * MS)
    traffic.entries.append(last)
    assert traffic.story(tmp_path, "number", "32")[2].startswith("It waited 401 ms behind Fetch #1")
    found = traffic.story(tmp_path, "number", "1")
    assert (
        "It let the broker wait up to 500 ms for records (max_wait_ms); 500 ms of its time may be"
        " that wait."
    ) in found


# ---- the same asked again


def ended(committed: bool, error: str = "NONE"):
    asked = M.EndTxnRequest(
        transactional_id="tx", producer_id=5, producer_epoch=0, committed=committed
    )
    return "EndTxn", 1, asked, M.EndTxnResponse(error_code=error_code(error))


def added(partition: int):
    given = {"transactional_id": "tx", "producer_id": 5, "producer_epoch": 0}
    given |= {"topics": [{"name": "orders", "partitions": [partition]}]}
    older = {f"v3_and_below_{name}": value for name, value in given.items()}
    asked = body("AddPartitionsToTxnRequest", **older)
    return "AddPartitionsToTxn", 1, asked, M.AddPartitionsToTxnResponse()


def test_who_cannot_be_told_apart_is_followed_on_its_connection_only(tmp_path):
    traffic = Traffic()
    traffic.add(0, "JoinGroup", 4, join("", 1)[2], M.JoinGroupResponse(error_code=14))
    traffic.add(10, *join("", 1), connection=2)
    story = traffic.story(tmp_path, "number", "1")
    assert "The recording shows no later request on its connection that joins as" in story[-1]
    again = traffic.add(20, *join("", 1))
    assert (
        f"20.0 ms later client a asked the same again with JoinGroup #{again}"
        in (traffic.story(tmp_path, "number", "1")[-1])
    )


# ---- causes


def test_a_producer_that_began_again_itself_was_fenced_by_the_one_after_that(tmp_path):
    traffic = Traffic()
    traffic.add(0, *initialized("tx", 5, 0), client="old")
    traffic.add(10, *initialized("tx", 5, 1), client="old")
    traffic.add(20, *initialized("tx", 5, 2), client="new", connection=2)
    asked = M.EndTxnRequest(transactional_id="tx", producer_id=5, producer_epoch=1)
    fenced = M.EndTxnResponse(error_code=error_code("PRODUCER_FENCED"))
    number = traffic.add(30, "EndTxn", 1, asked, fenced, client="old")
    story = traffic.story(tmp_path, "number", str(number))
    (line,) = (each for each in story if "took transactional id tx" in each)
    assert line.startswith("InitProducerId #3 ") and "new (127.0.0.1:5002)" in line


def test_a_coordinator_that_was_about_to_fence_a_producer(tmp_path):
    traffic = Traffic()
    traffic.add(0, *initialized("tx", 5, 0), client="old")
    busy = initialized("tx", -1, -1)
    busy[3].error_code = error_code("CONCURRENT_TRANSACTIONS")
    traffic.add(100, *busy, client="new", connection=2)
    number = traffic.add(110, *ended(True, "INVALID_PRODUCER_EPOCH"), client="old")
    traffic.add(200, *initialized("tx", 5, 2), client="new", connection=2)
    story = traffic.story(tmp_path, "number", str(number))
    assert (
        "InitProducerId #2 of 22:13:20.100, 10.0 ms before, asked for transactional id tx: new"
        " (127.0.0.1:5002) on connection 2; the coordinator may have fenced this producer for it."
    ) in story


def test_a_transaction_that_was_open_for_too_long(tmp_path):
    traffic = Traffic()
    traffic.add(0, *initialized("tx", 5, 0))
    traffic.add(1000, *added(0))
    traffic.add(71_000, *ended(True, "INVALID_PRODUCER_EPOCH"))
    story = traffic.story(tmp_path, "number", "3")
    assert (
        "The transaction began with AddPartitionsToTxn #2 of 22:13:21.000, 70.0 s before; its"
        " timeout is 60.0 s (InitProducerId #1). The coordinator aborts such transactions, and"
        " raises the epoch."
    ) in story


def test_which_sequence_was_due(tmp_path):
    traffic = Traffic()
    traffic.add(0, *produce(numbered(5, 0, 10, 2) + numbered(5, 0, 12, 4)))  # two batches
    traffic.add(50, *produce(numbered(5, 0, 0, 3), 1))
    traffic.add(100, *produce(numbered(5, 0, 16, 4))[:3], None)
    traffic.add(200, *produce(numbered(5, 0, 20), 0, "OUT_OF_ORDER_SEQUENCE_NUMBER"))
    story = traffic.story(tmp_path, "number", "4")
    assert (
        "The last batch of producer id 5 that orders[0] accepted before is that of Produce #1 of"
        " 22:13:20.000, 200 ms before: sequences 12 to 15 of epoch 0."
    ) in story
    assert "Sequence 16 was due; this batch begins with 20." in story
    assert "Produce #3, sequence 16, has no response." in story


def test_how_a_member_was_lost(tmp_path):
    traffic = two_members()
    traffic.add(500, *beat("m-b", 3), connection=2, client="slow")
    traffic.add(7010, *join("m-a", 4, ["m-a"]), took_ms=990, client="fast")
    number = traffic.add(9000, *beat("m-b", 3, error_code=25), connection=2, client="slow")
    story = traffic.story(tmp_path, "number", str(number))
    assert (
        "Before it the member was silent for 8.5 s, since Heartbeat #5; its session timeout is"
        " 6.0 s, after which a coordinator removes it."
    ) in story
    assert (
        "The group is in generation 4, as JoinGroup #6 of 22:13:27.010, 2.0 s before, shows; this"
        " request is of generation 3."
    ) in story


def test_a_commit_after_the_member_left(tmp_path):
    traffic = two_members()
    traffic.add(500, *leave("m-b"), connection=2, client="slow")
    refused = commit(0, 5, error=25)
    refused[2].generation_id_or_member_epoch = 3
    number = traffic.add(900, *refused, connection=2, client="slow")
    story = traffic.story(tmp_path, "number", str(number))
    assert "The request names no member id." in story
    assert (
        "LeaveGroup #5 of 22:13:20.500, 400 ms before, took the member out of the group." in story
    )


def test_a_member_that_beats_and_does_not_join_again_is_not_called_silent(tmp_path):
    traffic = two_members()
    traffic.add(2000, *join("m-a", 4, ["m-a"]), took_ms=9000, client="fast")
    told = traffic.add(3000, *beat("m-b", 3, error_code=27), connection=2, client="slow")
    traffic.add(6000, *beat("m-b", 3, error_code=27), connection=2, client="slow")
    number = traffic.add(12_500, *beat("m-b", 3, error_code=25), connection=2, client="slow")
    story = traffic.story(tmp_path, "number", str(number))
    (line,) = (each for each in story if "told the member to join again" in each)
    assert line.startswith(f"Heartbeat #{told} of 22:13:23.000, 9.5 s before,")
    (silent,) = (each for each in story if "silent" in each)
    assert silent.startswith("Before it the member was silent for 6.5 s, since Heartbeat #7;")


def test_a_topic_that_was_used_is_not_said_to_be_unknown(tmp_path):
    traffic = Traffic()
    traffic.add(0, *produce(batch(1)))
    traffic.add(100, *produce(batch(1), 0, "UNKNOWN_TOPIC_OR_PARTITION"))
    story = traffic.story(tmp_path, "number", "2")
    assert not [line for line in story if "Nothing in the recording" in line]
    said = "Produce #1 of 22:13:20.000, 100 ms before, names orders, too, and has no error."
    assert said in story


def test_how_a_client_logged_in(tmp_path):
    traffic = Traffic()
    S = M.SaslHandshakeResponse
    traffic.add(0, "SaslHandshake", 1, M.SaslHandshakeRequest(mechanism="PLAIN"), S())
    traffic.add(10, *produce(batch(1), 0, "TOPIC_AUTHORIZATION_FAILED"))
    story = traffic.story(tmp_path, "number", "2")
    assert (
        "Its client logged in by PLAIN (SaslHandshake #1); the user's name is not in the recording."
    ) in story
    assert "Produce takes WRITE on the topic." in story


# ---- fault rules


@pytest.mark.parametrize(
    ("action", "phase", "what", "said"),
    [
        ("latency", "after", {"delay_ms": 300.0}, "was to hold the response for 300 ms"),
        ("disconnect", "before", {}, "closed the connection in place of the request"),
        ("duplicate", "before", {}, "sent the request to the broker twice"),
        ("truncate", "after", {}, "closed the connection after the response, which is whole"),
        ("unheard-of", "after", {}, "acted on it (unheard-of)"),
    ],
)
def test_what_a_rule_did(action, phase, what, said, tmp_path):
    traffic = Traffic()
    traffic.add(0, *produce(batch(1)))
    traffic.fault(1, action, phase, "late", **what)
    (line,) = (each for each in traffic.story(tmp_path, "number", "1") if "Fault rule" in each)
    assert line.startswith(f"Fault rule late {said}")


def test_a_response_that_a_rule_cut_off(tmp_path):
    traffic = Traffic()
    traffic.add(0, *produce(batch(1)))
    traffic.entries[-1].flags |= WITHHELD
    traffic.fault(1, "truncate", "after")
    told = traffic.story(tmp_path, "number", "1")
    assert "Fault rule eat cut the response off and closed the connection." in told
