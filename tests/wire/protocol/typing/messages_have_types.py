"""What a type checker knows about messages. Checked by a type checker, never run."""

from __future__ import annotations

from typing import Any, assert_type
from uuid import UUID

import attrs

from kproxy.wire import protocol
from kproxy.wire.protocol import codec, messages, schema


def fields(response: messages.MetadataResponse) -> None:
    assert_type(response.brokers, list[messages.MetadataResponse.MetadataResponseBroker])
    assert_type(response.brokers[0].host, str)
    assert_type(response.brokers[0].rack, str | None)
    assert_type(response.cluster_id, str | None)
    assert_type(response.topics[0].topic_id, UUID)
    assert_type(response.topics[0].partitions[0].isr_nodes, list[int])
    assert_type(response.topics[0].is_internal, bool)
    assert_type(response.unknown_tags, tuple[tuple[int, bytes], ...])


def nullable(request: messages.MetadataRequest, fetch: messages.FetchResponse) -> None:
    assert_type(request.topics, list[messages.MetadataRequest.MetadataRequestTopic] | None)
    assert_type(fetch.responses[0].partitions[0].records, bytes | None)
    assert_type(
        fetch.responses[0].partitions[0].current_leader,
        messages.FetchResponse.LeaderIdAndEpoch | None,
    )


def structs(heartbeat: messages.ConsumerGroupHeartbeatResponse) -> None:
    assert_type(heartbeat.assignment, messages.ConsumerGroupHeartbeatResponse.Assignment | None)
    if heartbeat.assignment is not None:
        assert_type(heartbeat.assignment.topic_partitions[0].partitions, list[int])


def made() -> None:
    broker = messages.MetadataResponse.MetadataResponseBroker(node_id=1, host="a", port=9092)
    response = messages.MetadataResponse(brokers=[broker])
    assert_type(attrs.evolve(response, controller_id=1), messages.MetadataResponse)
    messages.MetadataResponse(nonsense=1)  # pyrefly: ignore[unexpected-keyword]
    messages.MetadataResponse(controller_id="1")  # pyrefly: ignore[bad-argument-type]
    messages.MetadataResponse(1)  # pyrefly: ignore[bad-argument-count]
    response.nonsense = 1  # pyrefly: ignore[missing-attribute]


def functions(frame: bytes) -> None:
    request = protocol.decode_request(frame)
    assert_type(request, protocol.Request)
    assert_type(request.header, messages.RequestHeader)
    assert_type(request.header.client_id, str | None)
    response = protocol.decode_response(frame, 3, 12)
    assert_type(response.header.correlation_id, int)
    assert_type(response.body_version, int)
    assert_type(protocol.encode_response(response, 3), bytes)
    assert_type(protocol.to_json(request), dict[str, Any])
    assert_type(protocol.api_key("Metadata"), int | None)
    assert_type(protocol.error_name(6), str)
    message = schema.message(3, schema.RESPONSE)
    if message is not None:
        spans, end = codec.locate(message, 12, ("brokers.host",))(frame, 8)
        assert_type(spans, list[tuple[int, int, int, int]])
        assert_type(end, int)
