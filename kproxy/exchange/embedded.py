"""What consumers embed, as bytes, in JoinGroup and SyncGroup: subscriptions and assignments.

The broker passes these bytes on without looking. Groups whose protocol type is "consumer" put
Kafka's own ConsumerProtocolSubscription and ConsumerProtocolAssignment there, a version in front.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kproxy.protocol import ProtocolError, codec, schema

MESSAGES = frozenset(
    {"JoinGroupRequest", "JoinGroupResponse", "SyncGroupRequest", "SyncGroupResponse"}
    | {"DescribeGroupsResponse"}
)
"""Those that have such bytes."""


def subscription(metadata: bytes | None) -> Any:
    """The ConsumerProtocolSubscription in these bytes; None if that is not what they are."""
    return _decoded("ConsumerProtocolSubscription", metadata)


def assignment(data: bytes | None) -> Any:
    """The ConsumerProtocolAssignment in these bytes; None if that is not what they are."""
    return _decoded("ConsumerProtocolAssignment", data)


def topics(body: Any) -> Iterator[str]:
    """The topics of the subscriptions and assignments in a body."""
    for metadata, assigned in _embedded(body):
        found = subscription(metadata)
        if found is not None:
            yield from found.topics
        found = assignment(assigned)
        if found is not None:
            yield from (each.topic for each in found.assigned_partitions)


def _embedded(body: Any) -> Iterator[tuple[bytes | None, bytes | None]]:
    """The subscriptions and assignments in a body, as bytes."""
    name = type(body).__name__
    if name not in MESSAGES or getattr(body, "protocol_type", None) not in (None, "", "consumer"):
        return
    match name:
        case "JoinGroupRequest":
            yield from ((each.metadata, None) for each in body.protocols or ())
        case "JoinGroupResponse":
            yield from ((each.metadata, None) for each in body.members or ())
        case "SyncGroupRequest":
            yield from ((None, each.assignment) for each in body.assignments or ())
        case "SyncGroupResponse":
            yield None, body.assignment
        case _:
            for group in body.groups or ():
                if group.protocol_type == "consumer":
                    for each in group.members or ():
                        yield each.member_metadata, each.member_assignment


def _decoded(name: str, data: bytes | None) -> Any:
    """Decode what is prefixed by its version.

    Versions that we do not know are read as the newest that we do, as ConsumerProtocol does, which
    they are made for.
    """
    if not data:
        return None
    message = schema.named(name)
    version = min(int.from_bytes(data[:2], "big"), max(message.versions))
    try:
        return codec.decoder(message, version)(data, 2)[0]
    except ProtocolError:
        return None
