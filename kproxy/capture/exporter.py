"""A recording as a capture that never was: clients and brokers that talk without a proxy.

::

    Note: opened ─▶ SYN, SYN ACK, ACK ─┐
    Frame ─▶ segments, comment ────────┼─▶ IP packets ─▶ pcapng
    Note: closed ─▶ FIN or RST ────────┘

Each frame has the bytes of its sender, at the time when kproxy had received it. Frames that are
left out on purpose take no sequence numbers; bytes that are not in the recording take some.

Invariants: nothing is made up but headers and, for names and what is unknown, addresses. Memory
grows with the connections that are open.
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Callable
from typing import Any

import attrs

from kproxy.capture.packets import ACK, FIN, RST, SYN
from kproxy.capture.tcp import UNSEEN
from kproxy.exchange.endings import connection, connection_end
from kproxy.exchange.entries import (
    CONNECTIONS,
    INJECTED,
    MORE,
    REDACTED,
    TRUNCATED,
    UNANSWERED,
    Frame,
    Note,
)

KAFKA_PORT = 9092
"""The port that Wireshark takes for Kafka's by itself."""
SEGMENT_BYTES = 65_000
"""With its headers a segment fits into the largest packet of IPv4 and IPv6."""
_PUSH = 8
_HOLE_BYTES_MAX = 1 << 30
"""A gap that is larger looks like a step back."""
_SYN_OPTIONS = b"\x02\x04\xff\xd7\x01\x03\x03\x0e"
"""The largest segment, and a window of a gigabyte, so that none is ever full."""
_MADE_UP = ("192.0.2.", "198.51.100.")
"""Networks for documentation, of clients and of brokers that have no address."""
_TRIES = 64
"""So many ports are tried for a client whose own is taken."""
_RAW_IP = 101
_NANOSECONDS = struct.pack("<HHB3x", 9, 1, 9)
_END = bytes(4)


@attrs.define(eq=False)
class _Talk:
    """One connection; of each pair the first is of the client."""

    hosts: tuple[bytes, bytes]
    ports: tuple[int, int]
    now: int
    next: list[int] = attrs.Factory(lambda: [0, 0])
    """The sequence number of the next byte of each side."""
    hole_bytes: list[int] = attrs.Factory(lambda: [0, 0])
    """What is missing of each side before its next byte."""
    in_frame: list[bool] = attrs.Factory(lambda: [False, False])
    """The next piece goes on with a frame."""
    left_bytes: list[int] = attrs.Factory(lambda: [0, 0])
    """What the frame has yet to come, as its size says."""


class Exporter:
    """Writes the packets of one capture."""

    def __init__(self, write: Callable[[bytes], object], application: str) -> None:
        self.ports: set[int] = set()
        """The ports of brokers so far."""
        self._write = write
        self._talks: dict[int, _Talk] = {}
        self._taken = set[tuple[tuple[bytes, bytes], tuple[int, int]]]()
        """The hosts and ports of connections that are open."""
        self._hosts: tuple[dict[str, int], dict[str, int]] = {}, {}
        section = struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1)
        write(_block(0x0A0D0D0A, section + _option(4, application) + _END))
        write(_block(1, struct.pack("<HHI", _RAW_IP, 0, 0) + _NANOSECONDS + _END))

    def begin(self) -> None:
        """Begin another recording: its connections have numbers of their own."""
        self._talks.clear()
        self._taken.clear()

    def note(self, note: Note) -> None:
        """Take a note, on a connection that is wanted, or a loss."""
        event, number = note.body.get("event"), connection(note.body)
        if event == "lost":  # a proxy does not say of which connection
            hole, side = max(1, note.body.get("bytes") or 0), note.body.get("side")
            sides = (0, 1) if side is None else (int(side == "broker"),)
            for talk in [talk for of, talk in self._talks.items() if number in (-1, of)]:
                for nth in sides:
                    talk.hole_bytes[nth] = hole
        elif note.channel != CONNECTIONS:
            return
        elif event in ("opened", "open") and number not in self._talks:
            talk = self._open(number, note.time_ns, note.body)
            if event == "opened":
                for side, flags in ((0, SYN), (1, SYN | ACK), (0, ACK)):
                    self._send(talk, side, flags)
        elif event == "closed" and (talk := self._talks.pop(number, None)) is not None:
            self._taken.discard((talk.hosts, talk.ports))
            self._close(talk, note)

    def frame(self, frame: Frame, text: str) -> None:
        """Take a frame, or a piece of one, of an exchange about which this text says more."""
        if frame.flags & UNANSWERED:
            return
        talk = self._talks.get(frame.connection)
        if talk is None:  # nothing tells of its connection
            talk = self._open(frame.connection, frame.received_ns, {})
        side, data = int(frame.side), frame.data
        comment = "" if talk.in_frame[side] else f"kproxy #{frame.number}{_told(frame)}{text}"
        if not talk.in_frame[side]:
            talk.left_bytes[side] = 4 + int.from_bytes(data[:4])
        talk.left_bytes[side] -= len(data)
        talk.in_frame[side] = bool(frame.flags & MORE)
        talk.now = max(talk.now, frame.received_ns)
        if talk.hole_bytes[side]:
            hole = min(talk.hole_bytes[side], _HOLE_BYTES_MAX)
            talk.next[side] = (talk.next[side] + hole) & 0xFFFFFFFF
            talk.hole_bytes[side] = 0
        for start in range(0, len(data), SEGMENT_BYTES):
            part = data[start : start + SEGMENT_BYTES]
            self._send(talk, side, ACK | _PUSH, part, "" if start else comment)
        if frame.flags & TRUNCATED:  # what follows, if anything does, is behind the rest of it
            talk.hole_bytes[side] = max(1, talk.left_bytes[side])

    # ---- connections

    def _open(self, number: int, time_ns: int, about: dict[str, Any]) -> _Talk:
        found = [
            self._address(side, about.get(f"{name}_address"), number)
            for side, name in enumerate(("client", "broker"))
        ]
        (client, client_port), (broker, broker_port) = found
        if client.version != broker.version:
            client, broker = (
                ipaddress.IPv6Address(f"::ffff:{each}") if each.version == 4 else each
                for each in (client, broker)
            )
        self.ports.add(broker_port)
        hosts = client.packed, broker.packed
        for _ in range(_TRIES):  # through two listeners, a client may use a port twice
            if (hosts, (client_port, broker_port)) not in self._taken:
                break
            client_port = client_port % 0xFFFF + 1
        talk = self._talks[number] = _Talk(hosts, (client_port, broker_port), time_ns)
        self._taken.add((hosts, talk.ports))
        return talk

    def _address(
        self, side: int, text: object, number: int
    ) -> tuple[ipaddress.IPv4Address | ipaddress.IPv6Address, int]:
        """Return the address and the port of a side."""
        host, port = "", (1024 + number % 60_000, KAFKA_PORT)[side]
        if text:
            host, _, end = str(text).rpartition(":")
            host, port = host.strip("[]"), int(end) if end.isdecimal() else port
        try:
            return ipaddress.ip_address(host), port & 0xFFFF
        except ValueError:
            nth = self._hosts[side].setdefault(host, len(self._hosts[side]))
            return ipaddress.ip_address(f"{_MADE_UP[side]}{nth % 254 + 1}"), port & 0xFFFF

    def _close(self, talk: _Talk, note: Note) -> None:
        """End a connection, as its sides did; what the proxy ended the broker did."""
        ends = connection_end(note).ends
        if not ends or ends[0].how == UNSEEN:
            return
        left, side = [0, 1], 0
        for end in ends:
            side = 0 if end.side == "client" else 1
            talk.now = max(talk.now, end.time_ns)
            if end.how == "reset":
                self._send(talk, side, RST | ACK)
                return
            if side in left:
                left.remove(side)
                self._send(talk, side, FIN | ACK)
        talk.now = max(talk.now, note.time_ns)
        for side in left:
            self._send(talk, side, FIN | ACK)
        self._send(talk, 1 - side, ACK)

    # ---- packets

    def _send(
        self, talk: _Talk, side: int, flags: int, data: bytes = b"", comment: str = ""
    ) -> None:
        """Write a packet of a side."""
        other = 1 - side
        options = _SYN_OPTIONS if flags & SYN else b""
        size = 20 + len(options) + len(data)
        acknowledged = talk.next[other] if flags & ACK else 0
        head = struct.pack(
            ">HHIIBBHHH", talk.ports[side], talk.ports[other], talk.next[side], acknowledged,
            (20 + len(options)) << 2, flags, 0xFFFF, 0, 0,
        )  # fmt: skip
        ends = talk.hosts[side] + talk.hosts[other]
        segment = head + options + data
        total = _sum(ends + struct.pack(">HH", 6, size) + segment + bytes(size & 1))
        segment = segment[:16] + total + segment[18:]
        if len(ends) == 8:
            ip = struct.pack(">BBHIBBH", 0x45, 0, 20 + size, 0x4000, 64, 6, 0) + ends
            ip = ip[:10] + _sum(ip) + ip[12:]
        else:
            ip = struct.pack(">IHBB", 6 << 28, size, 6, 64) + ends
        length = len(ip) + size
        block = [
            struct.pack(
                "<5I", 0, talk.now >> 32 & 0xFFFFFFFF, talk.now & 0xFFFFFFFF, length, length
            ),
            ip,
            segment,
            bytes(-length % 4),
        ]
        if comment:
            block += [_option(1, comment), _END]
        self._write(_block(6, b"".join(block)))
        talk.next[side] = (talk.next[side] + len(data) + bool(flags & (SYN | FIN))) & 0xFFFFFFFF


def _told(frame: Frame) -> str:
    told = {INJECTED: "made by kproxy", REDACTED: "secrets blanked out"}
    return "".join(f", {words}" for flag, words in told.items() if frame.flags & flag)


def _sum(data: bytes) -> bytes:
    """Return the checksum of the internet."""
    return (-int.from_bytes(data) % 0xFFFF).to_bytes(2)


def _option(code: int, text: str) -> bytes:
    value = text.encode(errors="replace")[:0xFFFF]
    return struct.pack("<HH", code, len(value)) + value + bytes(-len(value) % 4)


def _block(kind: int, body: bytes) -> bytes:
    size = struct.pack("<I", 12 + len(body))
    return struct.pack("<I", kind) + size + body + size
