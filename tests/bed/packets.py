"""Captures of packets that never were: TCP connections as a test wants them, on any link.

::

    TcpTalk: opens · says · closes ─▶ packets (time, IP packet) ─▶ pcap, pcapng ─▶ bytes
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Callable, Iterable

import attrs

FIN, SYN, RST, PSH, ACK = 1, 2, 4, 8, 16
_BASE_NS = 1_700_000_000_000_000_000
Timed = tuple[int, bytes]
"""A time in nanoseconds, and an IP packet."""


@attrs.define(eq=False)
class TcpTalk:
    """One TCP connection; side 0 is the client, side 1 the broker."""

    ends: tuple[tuple[str, int], tuple[str, int]]
    next: list[int] = attrs.Factory(lambda: [1000, 2_000_000])
    """The sequence numbers of the next bytes of each side."""
    segment_bytes: int = 1448

    def packet(self, side: int, at: int, flags: int, data: bytes = b"", ack: int = -1) -> bytes:
        """Return a packet of a side."""
        ack = self.next[1 - side] if ack < 0 else ack
        return ip_packet(self.ends[side], self.ends[1 - side], at, ack, flags, data)

    def opens(self) -> list[bytes]:
        """Return the handshake."""
        client, broker = self.next
        self.next = [(each + 1) % (1 << 32) for each in self.next]
        return [
            self.packet(0, client, SYN, ack=0),
            self.packet(1, broker, SYN | ACK),
            self.packet(0, self.next[0], ACK),
        ]

    def says(self, side: int, data: bytes) -> list[bytes]:
        """Return the segments of some bytes, each acknowledged."""
        found: list[bytes] = []
        for start in range(0, len(data), self.segment_bytes):
            part = data[start : start + self.segment_bytes]
            found.append(self.packet(side, self.next[side], ACK | PSH, part))
            self.next[side] = (self.next[side] + len(part)) % (1 << 32)
            found.append(self.packet(1 - side, self.next[1 - side], ACK))
        return found

    def closes(self) -> list[bytes]:
        """Return the end, first of the client, then of the broker."""
        found: list[bytes] = []
        for side in (0, 1):
            found.append(self.packet(side, self.next[side], ACK | FIN))
            self.next[side] = (self.next[side] + 1) % (1 << 32)
        return [*found, self.packet(0, self.next[0], ACK)]


def ip_packet(
    source: tuple[str, int], to: tuple[str, int], at: int, ack: int, flags: int, data: bytes
) -> bytes:
    """Return an IP packet of version 4 or 6 with a TCP segment."""
    head = struct.pack(">HHIIBBHHH", source[1], to[1], at, ack, 5 << 4, flags, 65535, 0, 0)
    hosts = [ipaddress.ip_address(each[0]).packed for each in (source, to)]
    size = len(head) + len(data)
    if len(hosts[0]) == 4:
        first = struct.pack(">BBHIBBH", 0x45, 0, 20 + size, 0, 64, 6, 0)
    else:
        first = struct.pack(">IHBB", 6 << 28, size, 6, 64)
    return first + b"".join(hosts) + head + data


def timed(found: Iterable[bytes]) -> list[Timed]:
    """Return packets with times, a tenth of a millisecond apart."""
    return [(_BASE_NS + number * 100_000, packet) for number, packet in enumerate(found)]


def _type(packet: bytes) -> bytes:
    return b"\x08\x00" if packet[0] >> 4 == 4 else b"\x86\xdd"


LINKS: dict[str, tuple[int, Callable[[bytes], bytes]]] = {
    "ethernet": (1, lambda packet: bytes(12) + _type(packet) + packet),
    "vlan": (1, lambda packet: bytes(12) + b"\x88\xa8\0\5\x81\0\0\7" + _type(packet) + packet),
    "cooked": (113, lambda packet: bytes(14) + _type(packet) + packet),
    "cooked 2": (276, lambda packet: _type(packet) + bytes(18) + packet),
    "loopback": (0, lambda packet: b"\2\0\0\0" + packet),
    "raw": (101, lambda packet: packet),
}
"""Links → their number, and what they put before a packet."""


def pcap(found: Iterable[Timed], link: str = "ethernet", snap_bytes: int = 1 << 18) -> bytes:
    """Return a capture in pcap, with microseconds, of packets cut to a size."""
    number, framed = LINKS[link]
    parts = [struct.pack("<IHHIIII", 0xA1B2C3D4, 2, 4, 0, 0, snap_bytes, number)]
    for time_ns, packet in found:
        data = framed(packet)
        cut = data[:snap_bytes]
        seconds, rest = divmod(time_ns // 1000, 1_000_000)
        parts += [struct.pack("<IIII", seconds, rest, len(cut), len(data)), cut]
    return b"".join(parts)


def pcapng(found: Iterable[Timed], link: str = "ethernet") -> bytes:
    """Return a capture in pcapng, big-endian, with nanoseconds."""
    number, framed = LINKS[link]
    options = struct.pack(">HHB3xHH", 9, 1, 9, 0, 0)
    parts = [
        _block(0x0A0D0D0A, struct.pack(">IHHq", 0x1A2B3C4D, 1, 0, -1)),
        _block(1, struct.pack(">HHI", number, 0, 0) + options),
    ]
    for time_ns, packet in found:
        data = framed(packet)
        head = struct.pack(">IIIII", 0, time_ns >> 32, time_ns & 0xFFFFFFFF, len(data), len(data))
        parts.append(_block(6, head + data + bytes(-len(data) % 4)))
    return b"".join(parts)


def _block(kind: int, body: bytes) -> bytes:
    size = struct.pack(">I", 12 + len(body))
    return struct.pack(">I", kind) + size + body + size
