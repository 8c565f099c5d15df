"""Exchanges as JSON."""

from __future__ import annotations

import base64
import json

from kproxy.exchange.entries import OPAQUE
from kproxy.exchange.pairing import pair
from kproxy.look.lines.jsonl import KEYS, to_json, to_line
from kproxy.wire.protocol import messages, records
from kproxy.wire.protocol.record_batch import Record
from tests.exchange.bodies import assignment, fetch_request, subscription
from tests.exchange.making import answer, opened, request, response


def only(*entries):
    (exchange,) = pair(entries)
    plain = to_json(exchange)
    assert tuple(plain) == KEYS
    assert json.loads(to_line(exchange)) == plain
    return plain


def test_an_exchange():
    asked = request("Heartbeat", 4, messages.HeartbeatRequest(group_id="g", member_id="m"))
    answered = response(asked, messages.HeartbeatResponse(error_code=27))
    assert only(opened(node_id=2), asked, answered) == {
        "number": 1,
        "time": "2023-11-14T22:13:20.001000Z",
        "connection": 1,
        "client_address": "127.0.0.1:5001",
        "client_id": "app",
        "user": None,
        "node_id": 2,
        "api": "Heartbeat",
        "api_key": 12,
        "api_version": 4,
        "correlation_id": 101,
        "request_bytes": len(asked.data),
        "response_bytes": len(answered.data),
        "broker_ms": 2.0,
        "queued_ms": 0.0,
        "waiting_ms": 0.0,
        "service_ms": 2.0,
        "proxy_ms": 0.08,
        "fault_ms": 0.0,
        "held_behind": None,
        "topics": [],
        "partitions": [],
        "groups": ["g"],
        "transactional_ids": [],
        "errors": ["REBALANCE_IN_PROGRESS"],
        "error_messages": [],
        "routine": True,
        "opaque": False,
        "redacted": False,
        "injected": False,
        "truncated": False,
        "undelivered": False,
        "faults": [],
        "unanswered": None,
        "request": {
            "group_id": "g",
            "generation_id": 0,
            "member_id": "m",
            "group_instance_id": None,
        },
        "response": {"throttle_time_ms": 0, "error_code": 27},
    }


def test_the_time_always_has_microseconds():
    plain = only(request("Heartbeat", 0, messages.HeartbeatRequest(), number=1000))
    assert plain["time"] == "2023-11-14T22:13:21.000000Z"


def test_records_mean_what_their_own_topic_says():
    key = bytes.fromhex("0001 0002 6170 0001 74 00000005")
    committed = records.encode_batch([Record(0, 0, key, None)])
    F = messages.FetchResponse
    topics = [
        F.FetchableTopicResponse(
            topic=topic, partitions=[F.PartitionData(partition_index=0, records=data)]
        )
        for topic, data in (
            ("orders", committed),
            ("empty", b""),
            ("none", None),
            ("__consumer_offsets", committed),
        )
    ]
    asked = request("Fetch", 11, fetch_request({0: 5}))
    plain = only(asked, response(asked, F(responses=topics)))
    orders, empty, none, offsets = (
        each["partitions"][0]["records"] for each in plain["response"]["responses"]
    )
    assert (empty, none) == ([], None)
    assert "key_decoded" not in orders[0]["records"][0]
    decoded = {"group": "ap", "topic": "t", "partition": 5}
    assert offsets[0]["records"][0]["key_decoded"] == decoded


def test_what_consumers_embed_is_decoded():
    J, S = messages.JoinGroupRequest, messages.SyncGroupResponse
    made = [J.JoinGroupRequestProtocol(name="range", metadata=subscription("orders"))]
    made.append(J.JoinGroupRequestProtocol(name="other", metadata=b"\0\0"))
    plain = only(request("JoinGroup", 5, J(protocol_type="consumer", protocols=made)))
    first, second = plain["request"]["protocols"]
    assert first["metadata"] == {"version": 0, "topics": ["orders"], "user_data": None}
    assert second["metadata"] == "AAA="
    assert plain["topics"] == ["orders"]
    asked = request("SyncGroup", 3, messages.SyncGroupRequest())
    plain = only(asked, response(asked, S(assignment=assignment("orders", 0, 2))))
    assert plain["response"]["assignment"] == {
        "version": 0,
        "assigned_partitions": [{"topic": "orders", "partitions": [0, 2]}],
        "user_data": None,
    }
    connect = request("JoinGroup", 5, J(protocol_type="connect", protocols=made))
    assert isinstance(only(connect)["request"]["protocols"][0]["metadata"], str)


def test_opaque_bodies_are_their_frames():
    data = request("Heartbeat", 4, messages.HeartbeatRequest()).data
    data = data[:4] + b"\x03\xe7\0\3" + data[8:]
    asked = request(
        "Heartbeat",
        4,
        messages.HeartbeatRequest(),
        api_key=999,
        api_version=3,
        pieces=[data],
        flags=OPAQUE,
    )
    answered = answer(asked, b"\0\0\0\5\0\0\0\x65\xff")
    plain = only(asked, answered)
    assert (plain["api"], plain["api_key"], plain["opaque"]) == ("Api999", 999, True)
    assert base64.b64decode(plain["request"]["frame"]) == data
    assert plain["response"] == {
        "frame": "AAAABQAAAGX/",
        "undecoded": "api key 999 v3: unknown api key",
    }


def test_text_that_is_not_utf_8_is_still_json():
    asked = request("Heartbeat", 0, messages.HeartbeatRequest(group_id="caf\udce9 \x1b[2J€"))
    (exchange,) = pair([asked])
    line = to_line(exchange)
    assert line.isascii()
    assert line.isprintable()
    assert json.loads(line)["request"]["group_id"] == "caf\udce9 \x1b[2J€"


def test_numbers_that_json_lacks_are_strings():
    A = messages.AlterClientQuotasRequest
    ops = [A.OpData(key="a", value=float("nan")), A.OpData(key="b", value=float("inf"))]
    asked = request("AlterClientQuotas", 0, A(entries=[A.EntryData(ops=ops)]))
    values = [op["value"] for op in only(asked)["request"]["entries"][0]["ops"]]
    assert values == ["nan", "inf"]
