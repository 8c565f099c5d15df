"""The leak check: are clients told the address of a broker, past the proxy?

Written apart from `kproxy.proxy.rewrite` on purpose, so that a mistake there shows here: it decodes
what the client got and looks at every struct that has a host and a port; what cannot be decoded is
searched for the addresses of the brokers.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Any

import attrs

from kproxy.exchange.entries import Frame, Note
from kproxy.exchange.pairing import pair
from kproxy.proxy.actions import Address
from kproxy.wire.protocol import ProtocolError, api_name, decode_response

_NOT_CONNECTED_TO = {
    "DescribeQuorum",  # the controllers' own listeners, which a client shows
    "StreamsGroupHeartbeat",  # endpoints of the application (interactive queries)
    "StreamsGroupDescribe",
}


Node = tuple[int, str, int]
"""Node id, host and port."""


def nodes(frame: bytes, api_key: int, api_version: int) -> set[Node]:
    """The brokers in a response to which its client may connect.

    Raises:
        ProtocolError: it cannot be decoded.
    """
    if api_name(api_key) in _NOT_CONNECTED_TO:
        return set()
    return set(_nodes(decode_response(frame, api_key, api_version).body))


def holds(data: bytes, address: Address) -> bool:
    """Whether an address is written somewhere in bytes, host before port."""
    return address[0].encode("utf-8", "surrogateescape") + struct.pack(">i", address[1]) in data


def check(entries: Iterable[Frame | Note]) -> int:
    """Check all responses that one run of kproxy has recorded, as they were sent on.

    All that a client may be told of a node is its listener: one port per node, on the host at which
    the client reached kproxy. Returns how many addresses clients were told.

    Raises:
        AssertionError: a client was told something else.
    """
    hosts: dict[int, str] = {}
    """Where each connection reached kproxy."""
    ports: dict[int, int] = {}
    """The port of the listener of each node."""
    told: set[tuple[int, Node]] = set()
    theirs: set[Address] = set()
    opaque: list[bytes] = []
    for exchange in pair(_listeners(entries, hosts, ports)):
        sent, api_key, version = exchange.response_sent, exchange.api_key, exchange.api_version
        # What waits for a listener when its connection ends has not been sent.
        if sent is None or api_key is None or version is None or exchange.proxy_ms is None:
            continue
        try:
            told |= {(exchange.connection, node) for node in nodes(sent, api_key, version)}
            theirs |= {node[1:] for node in nodes(exchange.response_frame, api_key, version)}
        except ProtocolError:
            opaque.append(sent)
    for connection, (node_id, host, port) in told:
        where = f"node {node_id} at {host}:{port} was told on connection {connection}"
        assert (host, port) not in theirs, f"{where}, which is where a broker is"
        assert (host, port) == (hosts[connection], ports.setdefault(node_id, port)), where
    assert len(set(ports.values())) == len(ports), f"nodes have a port in common: {ports}"
    for address in theirs:
        assert not any(holds(sent, address) for sent in opaque), f"{address} was told"
    return len(told)


def _listeners(
    entries: Iterable[Frame | Note], hosts: dict[int, str], ports: dict[int, int]
) -> Iterator[Frame | Note]:
    """Pass entries on, and note what they say of listeners."""
    for entry in entries:
        if isinstance(entry, Note) and entry.body.get("event") in ("opened", "open"):
            host, _, port = entry.body["listener"].rpartition(":")
            hosts[entry.body["connection"]] = host
            if entry.body["node_id"] is not None:
                ports[entry.body["node_id"]] = int(port)
        yield entry


def _nodes(value: Any) -> Iterator[Node]:
    if isinstance(value, list):
        for item in value:
            yield from _nodes(item)
    elif attrs.has(type(value)):
        host, port = getattr(value, "host", None), getattr(value, "port", None)
        node_id = getattr(value, "node_id", getattr(value, "broker_id", 0))
        # An absent node is -1, whatever stands beside it: nobody connects to that.
        if host and isinstance(port, int) and port > 0 and node_id >= 0:
            yield node_id, host, port
        for field in attrs.fields(type(value)):
            yield from _nodes(getattr(value, field.name))
