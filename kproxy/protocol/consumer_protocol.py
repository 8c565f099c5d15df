"""Subscriptions and assignments of consumers, as bytes with their version in front.

Groups whose protocol type is "consumer" put Kafka's own ConsumerProtocolSubscription and
ConsumerProtocolAssignment where a group's members put bytes of their own. Brokers pass these bytes
on, and keep them, without looking.
"""

from __future__ import annotations

from typing import Any

from kproxy.protocol import codec, schema
from kproxy.protocol.errors import ProtocolError
from kproxy.protocol.plain import to_json

SUBSCRIPTION = "ConsumerProtocolSubscription"
ASSIGNMENT = "ConsumerProtocolAssignment"
PROTOCOL_TYPE = "consumer"


def decode(name: str, data: bytes | None) -> Any:
    """Return the SUBSCRIPTION or ASSIGNMENT in these bytes; None if they hold none."""
    if not data:
        return None
    message = schema.named(name)
    try:
        return codec.decoder(message, _known_version(name, data))(data, 2)[0]
    except ProtocolError:
        return None


def plain(name: str, data: bytes | None) -> dict[str, Any] | None:
    """Return the SUBSCRIPTION or ASSIGNMENT in these bytes as plain values, its version first; None
    if they hold none."""
    found = decode(name, data)
    if data is None or found is None:
        return None
    version = int.from_bytes(data[:2], "big")
    return {"version": version, **to_json(found, _known_version(name, data))}


def _known_version(name: str, data: bytes) -> int:
    """Return the version to read some bytes with.

    Versions newer than ours are read as our newest, as ConsumerProtocol does: they are made for
    that.
    """
    return min(int.from_bytes(data[:2], "big"), max(schema.named(name).versions))
