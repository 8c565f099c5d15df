"""Packets → TCP segments: through the layers below, whose addresses name the connection.

::

    Ethernet, VLANs · Linux cooked 1, 2 · loopback · raw IP ─▶ IPv4 · IPv6 ─▶ TCP ─▶ TcpSegment
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Callable
from typing import NamedTuple

from kproxy.capture.file import Packet

FIN, SYN, RST, ACK = 1, 2, 4, 16
"""Flags of a segment."""
_TCP = 6
_IPV4, _IPV6 = 0x0800, 0x86DD
_VLANS = (0x8100, 0x88A8, 0x9100)
_ETHERNET = 1
_TYPE_AT = {113: (14, 16), 276: (0, 20)}
"""Linux cooked, v1 and v2 → where the type of the content stands, and the content."""
_BARE_AT = {0: 4, 108: 4, 12: 0, 14: 0, 101: 0, 228: 0, 229: 0}
"""Loopback, raw IP → where the IP header stands."""
LINKS = (_ETHERNET, *_TYPE_AT, *_BARE_AT)
"""The links that are known."""
_TAGGED = frozenset((0, 43, 60, 135))
"""The extension headers of IPv6 that say their size in eight bytes."""
_AUTHENTICATION, _FRAGMENT = 51, 44
_IPV4_HEADER = struct.Struct(">BxH2xHxB2x8s")
_SEGMENT = struct.Struct(">4xIIBB")


class TcpSegment(NamedTuple):
    """What TCP sent in one packet."""

    time_ns: int
    path: bytes
    """Addresses and ports: from, to, from, to."""
    sequence: int
    acknowledged: int
    flags: int
    data: bytes
    missing_bytes: int
    """How many more bytes it had behind `data`, which were not captured."""


_make: Callable[..., TcpSegment] = tuple.__new__  # half of what the class takes


class Fragment(Exception):
    """A packet is a part of one: such parts are not put together."""


def segment(packet: Packet) -> TcpSegment | None:
    """Return the TCP segment in a packet; None if it has none.

    Raises: Fragment.
    """
    time_ns, link, data, full_bytes, _ = packet
    try:
        at = _content(link, data)
        version = data[at] >> 4 if at >= 0 else 0
        if version == 4:
            first, length, fragment, protocol, path = _IPV4_HEADER.unpack_from(data, at)
            if protocol != _TCP:
                return None
            if fragment & 0x3FFF:
                raise Fragment
            # 0: the network card cuts it up, and fills in the size
            end = at + length if length else full_bytes
            tcp = at + (first & 15) * 4
            path += data[tcp : tcp + 4]
        elif version == 6:
            length = data[at + 4] << 8 | data[at + 5]
            end = at + 40 + length if length else full_bytes
            tcp = _behind_extensions(data, at)
            if tcp < 0:
                return None
            path = data[at + 8 : at + 40] + data[tcp : tcp + 4]
        else:
            return None
        sequence, acknowledged, words, flags = _SEGMENT.unpack_from(data, tcp)
    except (IndexError, struct.error):
        return None  # cut within its headers
    start = tcp + (words >> 4) * 4
    content, missing = data[start:end], 0
    if end > len(data):
        missing = end - max(start, len(data))
    return _make(TcpSegment, (time_ns, path, sequence, acknowledged, flags, content, missing))


def _content(link: int, data: bytes) -> int:
    """Return where the IP header is; -1 if there is none."""
    if link == _ETHERNET:
        at, kind = 14, data[12] << 8 | data[13]
    elif link in _TYPE_AT:
        type_at, at = _TYPE_AT[link]
        kind = int.from_bytes(data[type_at : type_at + 2])
    else:
        return _BARE_AT.get(link, -1)
    while kind in _VLANS:
        kind = int.from_bytes(data[at + 2 : at + 4])
        at += 4
    return at if kind in (_IPV4, _IPV6) else -1


def _behind_extensions(data: bytes, at: int) -> int:
    """Return where the TCP header is in an IPv6 packet; -1 if there is none.

    Raises: Fragment.
    """
    kind, at = data[at + 6], at + 40
    while kind in _TAGGED or kind == _AUTHENTICATION:
        length = data[at + 1]
        kind, at = (
            data[at],
            at + ((length + 2) * 4 if kind == _AUTHENTICATION else (length + 1) * 8),
        )
    if kind == _FRAGMENT:
        raise Fragment
    return at if kind == _TCP else -1


def addresses(path: bytes) -> tuple[tuple[str, int], tuple[str, int]]:
    """Return the two addresses, with their ports, of a path."""
    half = len(path) // 2 - 2
    hosts = (str(ipaddress.ip_address(path[at : at + half])) for at in (0, half))
    ports = struct.unpack(">HH", path[-4:])
    one, other = zip(hosts, ports, strict=True)
    return one, other


def reverse(path: bytes) -> bytes:
    """Return the path of what is sent the other way."""
    half = len(path) // 2 - 2
    return path[half:-4] + path[:half] + path[-2:] + path[-4:-2]
