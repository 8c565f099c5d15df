"""Messages as JSON: the fields of their version, and nothing that JSON lacks."""

from __future__ import annotations

import base64
import json
import uuid

import pytest

from kproxy.wire import protocol
from kproxy.wire.protocol import messages, plain


def test_the_fields_of_the_version_and_no_others():
    body = messages.MetadataRequest(
        topics=[messages.MetadataRequest.MetadataRequestTopic(name="t")]
    )
    assert protocol.to_json(body, 1) == {"topics": [{"name": "t"}]}
    assert protocol.to_json(messages.MetadataRequest(topics=None), 12) == {
        "topics": None,
        "allow_auto_topic_creation": True,
        "include_topic_authorized_operations": False,
    }


def test_requests_and_responses_know_their_version():
    header = messages.RequestHeader(api_key=17, api_version=1)
    request = protocol.Request(header, messages.SaslHandshakeRequest(mechanism="PLAIN"))
    assert protocol.to_json(request) == {"mechanism": "PLAIN"}
    response = protocol.Response(
        messages.ResponseHeader(), messages.ApiVersionsResponse(error_code=35), 0
    )
    assert protocol.to_json(response) == {"error_code": 35, "api_keys": []}
    with pytest.raises(TypeError, match="needs its version"):
        protocol.to_json(request.body)


def test_bytes_uuids_floats_and_unknown_tags():
    produce = messages.ProduceRequest
    data = produce.TopicProduceData(
        topic_id=uuid.UUID(int=1), partition_data=[produce.PartitionProduceData(records=b"\xff")]
    )
    body = produce(topic_data=[data], unknown_tags=((300, b"\x01"),))
    found = protocol.to_json(body, 13)
    assert found["topic_data"][0]["topic_id"] == "AAAAAAAAAAAAAAAAAAAAAQ"
    assert found["topic_data"][0]["partition_data"][0]["records"] == "/w=="
    assert found["unknown_tags"] == {"300": "AQ=="}
    quotas = messages.AlterClientQuotasRequest
    entry = quotas.EntryData(ops=[quotas.OpData(key="k", value=float("inf"))])
    assert protocol.to_json(quotas(entries=[entry]), 1)["entries"][0]["ops"][0]["value"] == "inf"


def test_a_known_tag_with_its_default_is_a_field_only():
    body = messages.ApiVersionsResponse(unknown_tags=((3, b"\0"),))
    found = protocol.to_json(body, 3)
    assert found["zk_migration_ready"] is False
    assert "unknown_tags" not in found


def text(data):
    return base64.b64encode(data).decode()


def test_what_stands_for_records_is_filled_in():
    produce = messages.ProduceRequest
    partitions = [produce.PartitionProduceData(records=each) for each in (b"\xff", None, b"")]
    topic = produce.TopicProduceData(name='"\\ud800" \U00010000', partition_data=partitions)
    contents = []

    def keep(content):
        contents.append(content)
        return plain.RECORDS

    body = produce(topic_data=[topic])
    written = json.dumps(plain.plain_of(body, 9)(body, keep))
    assert contents == [b"\xff", b""]
    whole = "".join(plain.filled(written, contents, lambda each: ("[", f'"{text(each)}"', "]")))
    (found,) = json.loads(whole)["topic_data"]
    assert [each["records"] for each in found["partition_data"]] == [["/w=="], None, [""]]
    assert found["name"] == topic.name
