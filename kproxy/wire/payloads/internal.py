"""The records that Kafka's coordinators keep in topics of their own, by Kafka's definitions.

    __consumer_offsets, __transaction_state, __share_group_state
        key     type of the record (int16), Kafka's …Key
        value   version (int16), Kafka's …Value of the type that the key has

So a value means something beside its key alone. Subscriptions and assignments inside of them, which
consumers write as bytes, are decoded too.

Invariants: nothing is raised, whatever the bytes are. Bytes that do not follow a definition from
their first to their last are not decoded at all.

What Connect and Streams keep in topics is left as it is. Connect writes text and JSON to its
topics of offsets, statuses and configs, whatever converters its connectors have. The bytes in a
…-changelog come from serdes of the app, and do not say what store they belong to: a key that ends
with the start of a window, and maybe a number, is not to be told from another that ends with such
bytes, nor a value that begins with a timestamp from one that does not. userData in subscriptions
and assignments is the assignor's own, and stays base64.
"""

from __future__ import annotations

from typing import Any

from kproxy.units import format_bytes
from kproxy.wire.payloads.meaning import DATA_BYTES_MAX, Decoded, Undecoded
from kproxy.wire.protocol import ProtocolError, codec, consumer_protocol, schema
from kproxy.wire.protocol.consumer_protocol import ASSIGNMENT, PROTOCOL_TYPE, SUBSCRIPTION
from kproxy.wire.protocol.plain import to_json

TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
_NUMBER_BYTES = 2
"""The size of a type or a version."""


def decode_internal(
    part: str, topic: str, key: bytes | None, value: bytes | None
) -> Decoded | Undecoded | None:
    """Return what a part of a record, `key` or `value`, of one of TOPICS means; None if there is
    nothing."""
    data = key if part == "key" else value
    if data is None:
        return None
    if len(data) > DATA_BYTES_MAX:
        return Undecoded(f"{format_bytes(len(data))} are not decoded")
    record_type = _number(key)
    if record_type is None:
        return Undecoded("its key has no type")
    direction = schema.RECORD_KEY if part == "key" else schema.RECORD_VALUE
    message = schema.record_part(topic, record_type, direction)
    if message is None:
        return Undecoded(f"Kafka's record type {record_type} of {topic} is unknown")
    version = 0 if part == "key" else _number(data)
    if version is None:
        return Undecoded(f"Kafka's {message.name} has no version")
    by = f"Kafka's {message.name}" + ("" if part == "key" else f", version {version}")
    if version not in message.versions:
        return Undecoded(f"{by} is unknown")
    try:
        body, end = codec.decoder(message, version)(data, _NUMBER_BYTES)
    except ProtocolError:
        return Undecoded(f"not of {by}")
    if end != len(data):
        return Undecoded(f"not of {by}: bytes follow its end")
    plain = to_json(body, version)
    _decode_embedded(body, plain)
    return Decoded(plain, by)


def _number(data: bytes | None) -> int | None:
    """Return the int16 in front of some bytes."""
    if data is None or len(data) < _NUMBER_BYTES:
        return None
    return int.from_bytes(data[:_NUMBER_BYTES], "big", signed=True)


def _decode_embedded(body: Any, plain: dict[str, Any]) -> None:
    """Replace the base64 of subscriptions and assignments with their decoded values."""
    match type(body).__name__:
        case "GroupMetadataValue" if body.protocol_type == PROTOCOL_TYPE:
            for member, values in zip(body.members, plain["members"], strict=True):
                _put(values, "subscription", SUBSCRIPTION, member.subscription)
                _put(values, "assignment", ASSIGNMENT, member.assignment)
        case "ConsumerGroupMemberMetadataValue" if body.classic_member_metadata is not None:
            protocols = plain["classic_member_metadata"]["supported_protocols"]
            for one, values in zip(
                body.classic_member_metadata.supported_protocols, protocols, strict=True
            ):
                _put(values, "metadata", SUBSCRIPTION, one.metadata)
        case _:
            pass


def _put(values: dict[str, Any], field: str, name: str, data: bytes) -> None:
    found, undecoded = consumer_protocol.plain(name, data)
    if found is not None:
        values[field] = found
    if undecoded:
        values[f"{field}_undecoded"] = undecoded
