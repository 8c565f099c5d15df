"""Subscriptions and assignments, which consumers embed as bytes in JoinGroup and SyncGroup."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

from kproxy.wire.protocol import consumer_protocol
from kproxy.wire.protocol.consumer_protocol import ASSIGNMENT, PROTOCOL_TYPE, SUBSCRIPTION, Embedded

_FIELDS = {
    "JoinGroupRequest": ("protocols", {"metadata": SUBSCRIPTION}),
    "JoinGroupResponse": ("members", {"metadata": SUBSCRIPTION}),
    "SyncGroupRequest": ("assignments", {"assignment": ASSIGNMENT}),
    "SyncGroupResponse": ("", {"assignment": ASSIGNMENT}),
    "DescribeGroupsResponse": (
        "members", {"member_metadata": SUBSCRIPTION, "member_assignment": ASSIGNMENT},
    ),
}  # fmt: skip
"""Message → its list of structs that have such bytes ("": it has them itself), and the types of
these fields. A message with `groups` has that list in each of them."""
MESSAGES = _FIELDS.keys()
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
    for struct, values, field, name in places(body, plain):
        found, undecoded = consumer_protocol.plain(name, getattr(struct, field))
        if found is not None:
            values[field] = found
        if undecoded:
            values[f"{field}_undecoded"] = undecoded


def topics(body: Any) -> Iterator[str]:
    """Yield the topics of the subscriptions and assignments in a body."""
    for struct, _, field, name in places(body, {}):
        found = consumer_protocol.read(name, getattr(struct, field)).value
        if found is not None and name == SUBSCRIPTION:
            yield from found.topics
        elif found is not None:
            yield from (each.topic for each in found.assigned_partitions)


def places(body: Any, plain: dict[str, Any]) -> Iterator[tuple[Any, dict[str, Any], str, str]]:
    """Yield structs with their plain values, the name of the field with bytes, and their type."""
    if getattr(body, "protocol_type", None) not in (None, "", PROTOCOL_TYPE):
        return
    inner, fields = _FIELDS.get(type(body).__name__, ("", {}))
    several = _listed(body, plain, "groups") if hasattr(body, "groups") else [(body, plain)]
    for holder, held in several:
        if holder is body or holder.protocol_type == PROTOCOL_TYPE:
            for struct, values in _listed(holder, held, inner) if inner else [(holder, held)]:
                for field, name in fields.items():
                    yield struct, values, field, name


def _listed(struct: Any, plain: dict[str, Any], name: str) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Yield the structs of a list, with their plain values, {} where these are not asked for."""
    return zip_longest(getattr(struct, name) or (), plain.get(name) or (), fillvalue={})
