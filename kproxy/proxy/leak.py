"""The test mode: does a response carry an address that is not ours?

Written apart from `rewrite` on purpose, so that a mistake there shows here: it decodes the response
as it is sent on, looks at every struct that has a host and a port, and it searches the bytes for
the addresses that the broker is known by.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

import attrs

from kproxy.protocol import ProtocolError, api_name, decode_response
from kproxy.proxy.actions import Address

_NOT_CONNECTED_TO = frozenset(
    {
        "DescribeQuorum",  # the controllers' own listeners, which a client shows
        "StreamsGroupHeartbeat",  # endpoints of the application (interactive queries)
        "StreamsGroupDescribe",
    }
)


class Leak(Exception):
    """A response carries an address that is not advertised."""


def check(
    frame: bytes,
    api_key: int,
    api_version: int,
    advertised: set[Address],
    theirs: Iterable[Address],
) -> None:
    """Check one response as it is sent on.

    Raises:
        Leak: it has a usable address that is not among `advertised`.
    """
    name = api_name(api_key)
    if name in _NOT_CONNECTED_TO:
        return
    try:
        found = list(_addresses(decode_response(frame, api_key, api_version).body))
    except ProtocolError:
        found = [address for address in theirs if _written(address) in frame]
    for host, port in found:
        if host and port > 0 and (host, port) not in advertised:
            raise Leak(f"{name} v{api_version} response carries {host}:{port}, which is not ours")


def _written(address: Address) -> bytes:
    return address[0].encode("utf-8", "surrogateescape") + struct.pack(">i", address[1])


def _addresses(value) -> Iterator[Address]:
    if isinstance(value, list):
        for item in value:
            yield from _addresses(item)
    elif attrs.has(type(value)):
        host, port = getattr(value, "host", None), getattr(value, "port", None)
        node_id = getattr(value, "node_id", getattr(value, "broker_id", 0))
        # An absent node is -1, whatever stands beside it: nobody connects to that.
        if isinstance(host, str) and isinstance(port, int) and node_id >= 0:
            yield host, port
        for field in attrs.fields(type(value)):
            yield from _addresses(getattr(value, field.name))
