"""Exchanges in words, whatever the API; topic names; noise."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kproxy.exchange.entries import NO_RESPONSE
from kproxy.exchange.pairing import pair
from kproxy.exchange.words import text_of
from kproxy.look.lines.jsonl import to_line
from kproxy.look.lines.lines import PLAIN, exchange_line
from kproxy.wire import protocol
from kproxy.wire.protocol import messages, schema
from tests.exchange.batches import batch
from tests.exchange.bodies import (
    ORDERS,
    by_id,
    exchange,
    fetch_request,
    fetch_response,
    filled,
    produce_request,
)
from tests.exchange.making import request, response

M = messages


def test_every_message_of_every_version_can_be_worded():
    """With one element in every list, so that all fields are looked at."""
    looked_at = 0
    for key, version in schema.known_versions():
        asked, answered = schema.message(key, schema.REQUEST), schema.message(key, schema.RESPONSE)
        frame = request(protocol.api_name(key), version, filled(asked.name, asked.fields, version))
        reply = response(frame, filled(answered.name, answered.fields, version))
        (made,) = pair([frame, reply])
        assert not made.opaque, made
        found = text_of(made)
        # No Python values by accident.
        assert not re.search(r"[<>\\]|None|object", found.request + found.response), made
        looked_at += 1
    assert looked_at > 300


@given(data=st.data())
def test_no_bytes_make_it_fail(data):
    """Damaged frames are opaque or have words; either way there is a line, and JSON."""
    key = data.draw(st.sampled_from(sorted(schema.api_names())))
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
    assert exchange_line(made, PLAIN).isprintable()
    assert json.loads(to_line(made))["opaque"] == made.opaque


# ---- topic names


def test_topic_ids_have_names_once_a_response_had_both():
    fetch = request("Fetch", 13, by_id({0: 5}), 1)
    (alone,) = pair([fetch])
    assert text_of(alone).request == "id:EjRWeBI0[0@5]"
    T = M.MetadataResponse.MetadataResponseTopic
    told = M.MetadataResponse(topics=[T(name="orders", topic_id=ORDERS), T(name=None)])
    asked = request("Metadata", 12, M.MetadataRequest(topics=None), 2)
    _, by_name = pair([asked, response(asked, told), fetch])
    assert text_of(by_name).request == "orders[0@5]"


@pytest.mark.parametrize(("api", "version"), [("CreateTopics", 7), ("DescribeTopicPartitions", 0)])
def test_other_responses_have_both_too(api, version):
    message = schema.message(protocol.api_key(api), schema.RESPONSE)
    body = getattr(M, message.name)()
    field = next(field for field in message.fields if field.name == "topics")
    topic = getattr(getattr(M, message.name), field.element)(name="orders", topic_id=ORDERS)
    body.topics = [topic]
    asked = request(
        api, version, getattr(M, schema.message(protocol.api_key(api), schema.REQUEST).name)(), 2
    )
    _, fetch = pair([asked, response(asked, body), request("Fetch", 13, by_id({0: 5}), 3)])
    assert text_of(fetch).request == "orders[0@5]"


# ---- noise


def test_what_is_noise():
    empty = exchange("Fetch", 11, fetch_request({0: 1}), fetch_response({0: b""}))
    assert text_of(empty).noise == "empty"
    alive = exchange("Heartbeat", 4, M.HeartbeatRequest(), M.HeartbeatResponse())
    assert text_of(alive).noise == ""


def test_what_is_no_noise():
    some = exchange("Fetch", 11, fetch_request({0: 1}), fetch_response({0: batch(1)}))
    F = M.FetchResponse
    failed = exchange("Fetch", 11, fetch_request({0: 1}), F(error_code=70))
    rebalance = exchange("Heartbeat", 4, M.HeartbeatRequest(), M.HeartbeatResponse(error_code=27))
    unanswered = exchange("Heartbeat", 4, M.HeartbeatRequest())
    frame = request("Produce", 9, produce_request({0: batch(1)}), flags=NO_RESPONSE)
    (one_way,) = pair([frame])
    for each in (some, failed, rebalance, unanswered, one_way):
        assert text_of(each).noise is None
