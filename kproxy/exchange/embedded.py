"""Subscriptions and assignments, which consumers embed as bytes in JoinGroup and SyncGroup."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kproxy.wire.protocol import consumer_protocol
from kproxy.wire.protocol.consumer_protocol import ASSIGNMENT, PROTOCOL_TYPE, SUBSCRIPTION, Embedded

MESSAGES = frozenset(
    {"JoinGroupRequest", "JoinGroupResponse", "SyncGroupRequest", "SyncGroupResponse"}
    | {"DescribeGroupsResponse"}
)
"""Messages that have such bytes."""


def subscription(metadata: bytes | None) -> Any:
    """Return the ConsumerProtocolSubscription in these bytes, as far as it goes; None if they hold
    none."""
    return read_subscription(metadata).value


def assignment(data: bytes | None) -> Any:
    """Return the ConsumerProtocolAssignment in these bytes, as far as it goes; None if they hold
    none."""
    return read_assignment(data).value


def read_subscription(metadata: bytes | None) -> Embedded:
    """Return what `subscription` does, and what could not be read."""
    return consumer_protocol.read(SUBSCRIPTION, metadata)


def read_assignment(data: bytes | None) -> Embedded:
    """Return what `assignment` does, and what could not be read."""
    return consumer_protocol.read(ASSIGNMENT, data)


def to_json(body: Any, plain: dict[str, Any]) -> None:
    """Replace the base64 of subscriptions and assignments with their decoded values.

    `plain` are the plain values of a body. Bytes that cannot be decoded stay base64; why, and what
    is missing of others, stands beside them: `"metadata_undecoded": "it ends before user_data"`.
    """
    for structs, field, name in _places(body, plain):
        for struct, values in structs:
            put(values, field, name, getattr(struct, field))


def put(values: dict[str, Any], field: str, name: str, data: bytes | None) -> None:
    """Put what some bytes hold into the plain values of a struct, in place of a field's base64."""
    found, undecoded = consumer_protocol.plain(name, data)
    if found is not None:
        values[field] = found
    if undecoded:
        values[f"{field}_undecoded"] = undecoded


_Pairs = list[tuple[Any, dict[str, Any]]]


def _places(body: Any, plain: dict[str, Any]) -> Iterator[tuple[_Pairs, str, str]]:
    """Yield structs with their plain values, the name of the field with bytes, and their type."""
    if not _has_embedded(body):
        return

    def pairs(struct: Any, values: dict[str, Any], name: str) -> _Pairs:
        return list(zip(getattr(struct, name) or (), values.get(name) or (), strict=False))

    match type(body).__name__:
        case "JoinGroupRequest":
            yield pairs(body, plain, "protocols"), "metadata", SUBSCRIPTION
        case "JoinGroupResponse":
            yield pairs(body, plain, "members"), "metadata", SUBSCRIPTION
        case "SyncGroupRequest":
            yield pairs(body, plain, "assignments"), "assignment", ASSIGNMENT
        case "SyncGroupResponse":
            yield [(body, plain)], "assignment", ASSIGNMENT
        case _:
            for group, values in pairs(body, plain, "groups"):
                if group.protocol_type == PROTOCOL_TYPE:
                    members = pairs(group, values, "members")
                    yield members, "member_metadata", SUBSCRIPTION
                    yield members, "member_assignment", ASSIGNMENT


def topics(body: Any) -> Iterator[str]:
    """Yield the topics of the subscriptions and assignments in a body."""
    for metadata, assigned in _embedded(body):
        found = subscription(metadata)
        if found is not None:
            yield from found.topics
        found = assignment(assigned)
        if found is not None:
            yield from (each.topic for each in found.assigned_partitions)


def _embedded(body: Any) -> Iterator[tuple[bytes | None, bytes | None]]:
    """Yield the subscriptions and assignments in a body, as bytes."""
    if not _has_embedded(body):
        return
    match type(body).__name__:
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
                if group.protocol_type == PROTOCOL_TYPE:
                    for each in group.members or ():
                        yield each.member_metadata, each.member_assignment


def _has_embedded(body: Any) -> bool:
    if type(body).__name__ not in MESSAGES:
        return False
    return getattr(body, "protocol_type", None) in (None, "", PROTOCOL_TYPE)
