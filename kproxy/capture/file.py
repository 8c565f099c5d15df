"""The two formats of captures: pcap, and pcapng, of which the blocks that hold packets matter.

::

    pcap      head │ time, sizes, bytes │ …              one kind of link, one unit of time
    pcapng    Section │ Interface … │ Packet … │ …       a link and a unit for each interface

They are read here: the packages that do it either make several objects per packet, which takes
longer than all else, or lose nanoseconds and the sizes of packets that were cut.

Invariant: no length that a file names is believed beyond `PACKET_BYTES_MAX`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

PACKET_BYTES_MAX = 16 << 20
"""The largest block: Wireshark's own limit for a packet is smaller."""
_PCAP = {0xA1B2C3D4: 1_000, 0xA1B23C4D: 1}
"""Magic of pcap → the nanoseconds of the unit of its second field of time."""
_SECTION, _INTERFACE, _OLD_PACKET, _SIMPLE_PACKET, _PACKET = 0x0A0D0D0A, 1, 2, 3, 6
_BYTE_ORDER = 0x1A2B3C4D
_TIME_UNIT, _TIME_OFFSET = 9, 14
"""The options of an interface that say how to read its times."""

Read = Callable[[int], bytes]
"""Returns so many bytes, fewer at the end."""


class CaptureError(Exception):
    """A file that is no capture, or damaged; the text says what is wrong."""


class Packet(NamedTuple):
    """A packet as it was captured."""

    time_ns: int
    link: int
    """The kind of its link layer, a number of tcpdump's list of LINKTYPEs."""
    data: bytes
    full_bytes: int
    """Its size on the wire: `data` may have been cut."""
    decrypted: bytes = b""
    """What TLS said in it, if that is known."""


class Cut(Exception):
    """The capture ends in the middle of a packet: its writer was killed, or still writes."""


def packets(read: Read) -> Iterator[Packet]:
    """Yield the packets of a capture in their order.

    Raises:
        CaptureError: it is none, or damaged.
        Cut: it breaks off.
    """
    magic = read(4)
    for order in "<>":
        if len(magic) == 4:
            (number,) = struct.unpack(order + "I", magic)
            if number in _PCAP:
                return _pcap(read, order, _PCAP[number])
            if number == _SECTION:
                return _pcapng(read)
    raise CaptureError("is no capture of packets (pcap or pcapng)" if magic else "is empty")


def _exactly(read: Read, count: int) -> bytes:
    data = read(count)
    if len(data) < count:
        raise Cut
    return data


def _size(size: int, least: int = 0) -> int:
    if not least <= size <= PACKET_BYTES_MAX:
        raise CaptureError(f"is damaged: a packet or block of {size} bytes")
    return size


def _pcap(read: Read, order: str, unit_ns: int) -> Iterator[Packet]:
    link = struct.unpack(order + "I", _exactly(read, 20)[16:])[0] & 0xFFFF
    head = struct.Struct(order + "IIII")
    make: Callable[..., Packet] = tuple.__new__  # half of what the class takes
    while start := read(16):
        if len(start) < 16:
            raise Cut
        seconds, parts, size, full_bytes = head.unpack(start)
        data = read(size if size <= PACKET_BYTES_MAX else _size(size))
        if len(data) < size:
            raise Cut
        time_ns = seconds * 1_000_000_000 + parts * unit_ns
        yield make(Packet, (time_ns, link, data, full_bytes, b""))


def _pcapng(read: Read) -> Iterator[Packet]:
    """Yield the packets of sections; their first four bytes have been read."""
    order, interfaces = "<", list[tuple[int, int, int, int]]()
    kind = _SECTION
    while True:
        if kind == _SECTION:
            start = _exactly(read, 8)
            order = "<" if struct.unpack("<I", start[4:])[0] == _BYTE_ORDER else ">"
            if struct.unpack(order + "I", start[4:])[0] != _BYTE_ORDER:
                raise CaptureError("is damaged: a section has no byte order")
            interfaces.clear()
            _exactly(read, _size(struct.unpack(order + "I", start[:4])[0], 28) - 12)
        else:
            size = _size(struct.unpack(order + "I", _exactly(read, 4))[0], 12)
            body = _exactly(read, size - 8)[:-4]
            try:
                if kind == _INTERFACE:
                    interfaces.append(_interface(body, order))
                elif kind in (_PACKET, _OLD_PACKET, _SIMPLE_PACKET):
                    yield _packet(kind, body, order, interfaces)
            except (struct.error, IndexError):
                raise CaptureError("is damaged: a block does not have what it must") from None
        start = read(4)
        if len(start) < 4:
            if start:
                raise Cut
            return
        (kind,) = struct.unpack(order + "I", start)


def _interface(body: bytes, order: str) -> tuple[int, int, int, int]:
    """Return the link of an interface, its snap length, and the unit of its times, as the parts of
    a second; and the seconds to add."""
    link, snap_bytes = struct.unpack_from(order + "H2xI", body)
    parts, offset, at = 1_000_000, 0, 8
    while at + 4 <= len(body):
        option, size = struct.unpack_from(order + "HH", body, at)
        value = body[at + 4 : at + 4 + size]
        if option == _TIME_UNIT:
            power = value[0]
            parts = 1 << (power & 0x7F) if power & 0x80 else 10 ** min(power, 18)
        elif option == _TIME_OFFSET:
            (offset,) = struct.unpack(order + "q", value)
        at += 4 + size + -size % 4
    return link, snap_bytes, parts, offset


def _packet(
    kind: int, body: bytes, order: str, interfaces: list[tuple[int, int, int, int]]
) -> Packet:
    if kind == _SIMPLE_PACKET:  # it has no time, and the first interface
        (full_bytes,) = struct.unpack_from(order + "I", body)
        link, snap_bytes, _, _ = interfaces[0]
        size = min(full_bytes, snap_bytes or full_bytes)
        return Packet(0, link, body[4 : 4 + size], full_bytes)
    form = "IIIII" if kind == _PACKET else "H2xIIII"
    number, high, low, size, full_bytes = struct.unpack_from(order + form, body)
    link, _, parts, offset = interfaces[number]
    time_ns = (high << 32 | low) * 1_000_000_000 // parts + offset * 1_000_000_000
    return Packet(time_ns, link, body[20 : 20 + size], full_bytes)
