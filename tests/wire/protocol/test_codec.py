"""Frames and messages: what goes in comes out, byte for byte."""

from __future__ import annotations

import struct

import pytest

from kproxy.wire import protocol
from kproxy.wire.protocol import ProtocolError, codec, messages, schema
from tests.wire.protocol.making import (
    DATA,
    decoded,
    encoded,
    framed,
)


def test_a_step_is_no_more_than_an_element():
    wanted = messages.MetadataRequest.MetadataRequestTopic
    body = messages.MetadataRequest(topics=[wanted(name=f"t{each}") for each in range(1000)])
    message = schema.named("MetadataRequest")
    steps = list(codec.decoder_in_steps(message, 12)(encoded(message, 12, body), 0))
    assert len(steps) > 1000
    parts: list[bytes] = []
    assert len(list(codec.encoder_in_steps(message, 12)(body, parts.append))) > 1000


@pytest.mark.parametrize("release", ["3.9.2", "4.4.0"])
def test_versions_and_headers_are_those_of_kafka(release):
    lines = (DATA / f"apikeys-{release}.tsv").read_text().splitlines()
    pairs = 0
    for line in lines:
        key, name, _, _, _, _, headers, *_ = line.split("\t")
        for entry in headers.split():
            version, request, response = map(int, entry.replace("/", ":").split(":"))
            assert protocol.is_known(int(key), version)
            asked = (int(key), version)
            assert protocol.request_header_version(*asked) == request, (name, version)
            assert protocol.response_header_version(*asked) == response, (name, version)
            pairs += 1
    assert pairs > 280


def test_unknown_apis_and_versions_are_named():
    assert not protocol.is_known(999, 0)
    assert not protocol.is_known(3, 99)
    assert not protocol.is_known(-1, -1)
    with pytest.raises(ProtocolError, match=r"^api key 999 v0: unknown api key$"):
        protocol.decode_request(framed(struct.pack(">hhih", 999, 0, 1, -1)))
    with pytest.raises(ProtocolError, match=r"^MetadataResponse v99: unknown version$"):
        protocol.decode_response(framed(bytes(20)), 3, 99)
    assert protocol.api_name(999) == "Api999"
    assert protocol.api_name(3) == "Metadata"
    assert protocol.api_key("Metadata") == 3
    assert protocol.api_key("Nonsense") is None


def test_the_answer_to_an_unknown_api_versions_version_is_read_as_version_0():
    refused = framed(struct.pack(">ihihhh", 7, 35, 1, 18, 0, 4))
    found = protocol.decode_response(refused, 18, 5)
    assert found.body_version == 0
    assert found.body.error_code == 35
    (only,) = found.body.api_keys
    assert (only.api_key, only.min_version, only.max_version) == (18, 0, 4)
    assert protocol.encode_response(found, 18) == refused


def test_the_client_id_keeps_its_old_length_in_flexible_headers():
    request = protocol.Request(
        messages.RequestHeader(api_key=18, api_version=3, client_id="me"),
        messages.ApiVersionsRequest(),
    )
    frame = protocol.encode_request(request)
    assert frame[12:17] == b"\x00\x02me\x00"


def test_a_frame_whose_size_is_wrong_is_refused():
    frame = protocol.encode_request(
        protocol.Request(
            messages.RequestHeader(api_key=3, api_version=0), messages.MetadataRequest()
        )
    )
    for wrong in (frame[:-1], frame + b"x"):
        with pytest.raises(ProtocolError, match="size prefix"):
            protocol.decode_request(wrong)
    for short in (b"", frame[:5]):
        with pytest.raises(ProtocolError, match="no header"):
            protocol.decode_request(short)
    for short in (b"", b"\0\0\0\0", b"\0\0\0\2\0\0"):
        with pytest.raises(ProtocolError):
            protocol.decode_response(short, 3, 0)


def test_the_front_of_a_frame_is_enough_to_find_its_body():
    request = protocol.Request(
        messages.RequestHeader(
            api_key=0, api_version=9, client_id="me", unknown_tags=((9, b"abc"),)
        ),
        messages.ProduceRequest(),
    )
    frame = protocol.encode_request(request)
    start = protocol.request_body(frame)
    assert protocol.request_body(frame[:start]) == start
    for size in range(start):
        with pytest.raises(ProtocolError) as caught:
            protocol.request_body(frame[:size])
        assert caught.value.truncated


def test_bytearrays_and_memoryviews_are_frames_too():
    frame = bytes.fromhex("00000012000300000000000100047465737400000000")
    assert protocol.decode_request(bytearray(frame)) == protocol.decode_request(memoryview(frame))


# ── exactness ────────────────────────────────────────────────────────────────────────────────

API_VERSIONS = schema.named("ApiVersionsResponse")


@pytest.mark.parametrize(
    "tags",
    [
        "01 03 01 00",  # ZkMigrationReady, sent although it is false
        "02 03 01 00 0a 02 beef",  # … beside an unknown tag
        "01 01 08 ffffffffffffffff",  # FinalizedFeaturesEpoch -1
        "02 00 01 01 02 01 01",  # both lists, empty
        "01 8f4e 03 616263",  # a tag number of two bytes
        "02 09 00 08 00",  # unknown tags out of order, both empty
        "02 09 01 61 09 01 62",  # the same unknown tag twice
    ],
)
def test_tags_survive_byte_for_byte(tags):
    data = bytes.fromhex("0000 01 00000000" + tags)
    found = decoded(API_VERSIONS, 3, data)
    assert found.zk_migration_ready is False
    assert found.finalized_features_epoch == -1
    assert encoded(API_VERSIONS, 3, found) == data


def test_a_tagged_struct_that_was_sent_with_defaults_is_not_absent():
    message = schema.named("FetchResponse")
    partition = messages.FetchResponse.PartitionData(
        current_leader=messages.FetchResponse.LeaderIdAndEpoch()
    )
    topic = messages.FetchResponse.FetchableTopicResponse(partitions=[partition])
    data = encoded(message, 12, messages.FetchResponse(responses=[topic]))
    assert bytes.fromhex("01 01 09 ffffffff ffffffff 00") in data
    found = decoded(message, 12, data).responses[0].partitions[0]
    assert found.current_leader == messages.FetchResponse.LeaderIdAndEpoch()
    assert found.diverging_epoch is None
    assert encoded(message, 12, decoded(message, 12, data)) == data


def test_known_tags_may_come_in_any_order():
    data = bytes.fromhex("0000 01 00000000 02 03 01 01 01 08 0000000000000007")
    found = decoded(API_VERSIONS, 3, data)
    assert (found.zk_migration_ready, found.finalized_features_epoch) == (True, 7)
    assert encoded(API_VERSIONS, 3, found) == bytes.fromhex(
        "0000 01 00000000 02 01 08 0000000000000007 03 01 01"
    )


def test_a_field_that_was_set_wins_over_its_tags_kept_bytes():
    found = decoded(API_VERSIONS, 3, bytes.fromhex("0000 01 00000000 01 03 01 00"))
    found.zk_migration_ready = True
    assert encoded(API_VERSIONS, 3, found) == bytes.fromhex("0000 01 00000000 01 03 01 01")


# ── values that do not fit ───────────────────────────────────────────────────────────────────

METADATA = messages.MetadataResponse


@pytest.mark.parametrize(
    ("body", "what"),
    [
        (METADATA(brokers=None), "v12 brokers: is None, but is not nullable"),
        (METADATA(brokers=5), "v12 brokers: has type int, expected a list"),
        (METADATA(controller_id=1 << 31), "v12 controller_id: 2147483648 is not an int32"),
        (METADATA(controller_id="1"), "v12 controller_id: has type str, expected int32"),
        (METADATA(cluster_id=b"x"), "v12 cluster_id: has type bytes, expected string"),
        (METADATA(cluster_id="\ud800"), "v12 cluster_id: is not encodable as UTF-8"),
        (METADATA(unknown_tags=5), "v12 unknown_tags: is not a tuple"),
        (METADATA(unknown_tags=((-1, b""),)), "v12 unknown_tags: is not a tuple"),
        (METADATA(brokers=[object()]), "v12 brokers.node_id: type object has no such"),
        (
            METADATA(brokers=[METADATA.MetadataResponseBroker(host=None)]),
            "v12 brokers.host: is None",
        ),
    ],
)
def test_a_value_that_does_not_fit_is_named(body, what):
    with pytest.raises(ProtocolError, match=what):
        encoded(schema.named("MetadataResponse"), 12, body)


def test_a_string_may_be_too_long_for_an_old_version():
    body = messages.SaslHandshakeRequest(mechanism="x" * 32768)
    with pytest.raises(ProtocolError, match="more than 32767"):
        encoded(schema.named("SaslHandshakeRequest"), 1, body)
