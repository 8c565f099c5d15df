"""Exchanges as JSON."""

from __future__ import annotations

import json

from kproxy.exchange.pairing import pair
from kproxy.look.lines.jsonl import KEYS, to_json, to_line
from kproxy.wire.protocol import messages
from tests.exchange.making import opened, request, response


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


def test_text_that_is_not_utf_8_is_still_json():
    asked = request("Heartbeat", 0, messages.HeartbeatRequest(group_id="caf\udce9 \x1b[2J€"))
    (exchange,) = pair([asked])
    line = to_line(exchange)
    assert line.isascii()
    assert line.isprintable()
    assert json.loads(line)["request"]["group_id"] == "caf\udce9 \x1b[2J€"
