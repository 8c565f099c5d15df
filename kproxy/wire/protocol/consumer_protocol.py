"""Subscriptions and assignments of consumers, as bytes with their version in front.

Groups whose protocol type is "consumer" put Kafka's own ConsumerProtocolSubscription and
ConsumerProtocolAssignment where a group's members put bytes of their own. Brokers pass these bytes
on, and keep them, without looking.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import attrs

from kproxy.wire.protocol import codec, schema
from kproxy.wire.protocol.compile_decode import compile_decode
from kproxy.wire.protocol.errors import ProtocolError
from kproxy.wire.protocol.plain import to_json

SUBSCRIPTION = "ConsumerProtocolSubscription"
ASSIGNMENT = "ConsumerProtocolAssignment"
PROTOCOL_TYPE = "consumer"
_VERSION_BYTES = 2
_COUNT_BYTES = 4


class Embedded(NamedTuple):
    """What some bytes hold."""

    value: Any
    """The SUBSCRIPTION or ASSIGNMENT, as far as it could be read; None if it could not at all."""
    undecoded: str = ""
    """What could not be read, and why; "" if there is no such thing."""


def read(name: str, data: bytes | None) -> Embedded:
    """Read the SUBSCRIPTION or ASSIGNMENT in some bytes.

    Some clients say a version and leave out what it added, or end even earlier (kafka-go sends
    version 1 without owned partitions). All versions begin alike, so that what is there can be
    read; what is missing has its default.
    """
    if not data:
        return Embedded(None)
    layout = codec.layout(schema.named(name), _known_version(name, data))
    try:
        return Embedded(codec.decoder(layout.message, layout.version)(data, _VERSION_BYTES)[0])
    except ProtocolError as error:
        why = str(error)
        if not error.truncated:
            return Embedded(None, why)
    for number in reversed(range(1, len(layout.slots))):
        try:
            value = _beginning(name, layout.version, number)(data, _VERSION_BYTES)[0]
        except ProtocolError:
            continue
        return Embedded(value, f"it ends before {layout.slots[number].name}")
    return _some(name, layout, data, why)


def _some(name: str, layout: schema.Layout, data: bytes, why: str) -> Embedded:
    """Read the first elements of the list that these bytes begin with: all that are whole."""
    start = _VERSION_BYTES + _COUNT_BYTES
    total = int.from_bytes(data[_VERSION_BYTES:start], "big", signed=True)
    least, most, value = 0, min(max(0, total), len(data)), None
    read_first = _beginning(name, layout.version, 1)
    while least < most:  # what can be read of more, can be read of fewer
        count = (least + most + 1) // 2
        counted = data[:_VERSION_BYTES] + count.to_bytes(_COUNT_BYTES, "big") + data[start:]
        try:
            value, least = read_first(counted, _VERSION_BYTES)[0], count
        except ProtocolError:
            most = count - 1
    if value is None:
        return Embedded(None, why)
    return Embedded(value, f"it ends in {layout.slots[0].name}, behind {least} of {total}")


@functools.cache
def _beginning(name: str, version: int, fields: int) -> codec.Decoder:
    """Return the decoder of so many fields, after which the others have their defaults."""
    layout = codec.layout(schema.named(name), version)
    slots, names = layout.slots[:fields], {each.name for each in layout.slots[fields:]}
    absent = (*layout.absent, *(each for each in layout.message.fields if each.name in names))
    part = attrs.evolve(layout, slots=slots, absent=absent)
    # Where the bytes are wrong is known: this is asked again and again.
    return compile_decode(part, _ends_early)


def _ends_early(data: bytes, start: int) -> ProtocolError:
    return ProtocolError("ends early")


def plain(name: str, data: bytes | None) -> tuple[dict[str, Any] | None, str]:
    """Return the SUBSCRIPTION or ASSIGNMENT in these bytes as plain values, its version first, or
    None if they hold none; and what of them could not be read."""
    found, undecoded = read(name, data)
    if data is None or found is None:
        return None, undecoded
    version = int.from_bytes(data[:_VERSION_BYTES], "big")
    return {"version": version, **to_json(found, _known_version(name, data))}, undecoded


def _known_version(name: str, data: bytes) -> int:
    """Return the version to read some bytes with.

    Versions newer than ours are read as our newest, as ConsumerProtocol does: they are made for
    that.
    """
    return min(int.from_bytes(data[:_VERSION_BYTES], "big"), max(schema.named(name).versions))
