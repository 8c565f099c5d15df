"""What is read out of single frames: client ids, errors, the bytes that were sent on."""

from __future__ import annotations

import pytest

from kproxy.exchange import body_facts
from kproxy.exchange.entries import REWRITTEN
from kproxy.exchange.pairing import pair
from kproxy.wire.protocol import messages, schema
from tests.exchange.making import answer, fragments, request, response

HEARTBEAT = messages.HeartbeatRequest(group_id="checkout", generation_id=3, member_id="m-1")
ALIVE = messages.HeartbeatResponse()


def heartbeat(number: int = 1, connection: int = 1, **changes):
    return request("Heartbeat", 4, HEARTBEAT, number, connection, **changes)


# ---- client ids


def test_controlled_shutdown_0_has_no_client_id():
    data = b"\0\0\0\x0c\0\7\0\0\0\0\0\x65\0\0\0\1"
    asked = heartbeat(pieces=[data], frame_bytes=16, api_key=7, api_version=0)
    (exchange,) = pair([asked])
    assert exchange.api == "ControlledShutdown"
    assert exchange.client_id is None
    assert exchange.request.broker_id == 1


@pytest.mark.parametrize("length", [b"\xff\xff", b"\x80\x00", b"\x7f\xff"])
def test_a_client_id_that_is_not_there(length):
    data = heartbeat().data
    asked = heartbeat(pieces=[data[:12] + length + data[14:]])
    (exchange,) = pair([asked])
    assert exchange.client_id is None


# ---- what was sent on


def test_what_was_sent_on():
    Broker = messages.MetadataResponse.MetadataResponseBroker
    asked = request("Metadata", 9, messages.MetadataRequest(topics=None))
    theirs = messages.MetadataResponse(brokers=[Broker(node_id=1, host="kafka-1", port=9092)])
    ours = messages.MetadataResponse(brokers=[Broker(node_id=1, host="localhost", port=19093)])
    answered, sent = response(asked, theirs, flags=REWRITTEN), response(asked, ours)
    at = answered.data.index(b"kafka-1") - 1
    answered.splices = [(at, 8, b"\x0alocalhost"), (at + 8, 4, (19093).to_bytes(4, "big"))]
    for entries in ([asked, answered], [asked, *fragments(answered, [9])]):
        (exchange,) = pair(entries)
        assert exchange.response == theirs
        assert exchange.response_frame == answered.data
        assert exchange.response_sent == sent.data
        assert exchange.request_sent == asked.data


def test_if_it_is_lost_what_was_sent_nothing_is_claimed():
    asked = heartbeat()
    (exchange,) = pair([asked, response(asked, ALIVE, flags=REWRITTEN)])
    assert exchange.response_sent is None
    assert exchange.response == ALIVE


# ---- errors


def test_every_error_code_of_every_response_is_found():
    """Whatever the API: an error put into any field is reported."""
    looked_at = 0
    for key in range(95):
        message = schema.message(key, schema.RESPONSE)
        for path in _error_paths(message.fields) if message else ():
            body = _with_error(getattr(messages, message.name), message.fields, path)
            assert body_facts.errors(body, None, None) == ["UNKNOWN_SERVER_ERROR"], path
            looked_at += 1
    assert looked_at > 100


def _error_paths(fields):
    for field in fields:
        if field.name.endswith("error_code"):
            yield (field.name,)
        for inner in _error_paths(field.fields):
            yield (field.name, *inner)


def _with_error(cls, fields, path):
    """An instance that has an error at `path` and nowhere else."""
    field = next(field for field in fields if field.name == path[0])
    if len(path) == 1:
        return cls(**{field.name: -1})
    owner = getattr(messages, cls.__qualname__.split(".")[0])
    inner = _with_error(getattr(owner, field.element), field.fields, path[1:])
    return cls(**{field.name: [inner] if field.is_array else inner})


def test_a_refusal_is_certain_whatever_follows_it():
    """librdkafka's mock cluster sends something that is no version of ApiVersions."""
    asked = request("ApiVersions", 3, messages.ApiVersionsRequest())
    frame = bytes.fromhex("000000110000006500230100120000000200000000")
    (exchange,) = pair([asked, answer(asked, frame)])
    assert exchange.opaque
    assert exchange.errors == ["UNSUPPORTED_VERSION"]
    asked = request("Heartbeat", 0, HEARTBEAT)
    (exchange,) = pair([asked, answer(asked, frame[:10])])
    assert exchange.errors == []
