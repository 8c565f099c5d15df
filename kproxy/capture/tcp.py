"""TCP segments → what each side of a connection received, in order.

::

    TcpSegment ─▶ TcpStream: in order? ──────────────────────────────▶ Arrival(bytes)
                  │ no: held, sorted                               │
                  ├── what was missing comes ─────────────────────▶│
                  └── it is lost: acknowledged, yet not captured ─▶ Arrival(how many bytes)
    FIN, RST, behind all bytes before them ──────────────────────▶ Arrival("eof", "reset")

* Of what comes twice the first counts, as for Linux; what contradicts it is counted (`conflicts`).
* A segment that acknowledges bytes of the other side stands behind these, however the packets were
  captured: so a response never precedes its request.
* Bytes are lost to the capture when their receiver has acknowledged them, and they do not come
  within `_PATIENCE_NS` or `_PATIENCE_PACKETS`; what nobody acknowledged is waited for longer.
* Positions are sequence numbers that do not wrap.

Invariants: memory is bounded, by `_HELD_BYTES_MAX` and `_HELD_MAX` per stream, by a budget for all,
and by `_CONNECTIONS_MAX`. An arrival of a stream is next to the one before it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict, deque
from collections.abc import Iterator
from operator import itemgetter
from typing import Any, NamedTuple

import attrs

from kproxy.capture.packets import ACK, FIN, RST, SYN, TcpSegment, reverse
from kproxy.proxy.budget import Budget, Share

UNSEEN = "unseen"
"""The end of a connection of which the capture does not have the end."""
_PATIENCE_NS, _PATIENCE_PACKETS = 1_000_000_000, 256
_UNACKNOWLEDGED_NS, _UNACKNOWLEDGED_PACKETS = 60_000_000_000, 4096
_HELD_BYTES_MAX, _HELD_MAX = 4 << 20, 4096
_CONNECTIONS_MAX = 1 << 15
_LATE_BYTES_MAX = 1 << 20
"""A SYN may be captured behind so many bytes of its connection."""
_RECENT = 4
"""So many segments are kept to compare with what comes twice."""
_WRAP = 1 << 32
_LAST = _WRAP - 1
_ENDS = FIN | RST


class Arrival(NamedTuple):
    """What became certain about a stream next."""

    stream: TcpStream
    content: bytes | int | str
    """Bytes; or how many are lost; or how it ended: "eof", "reset", UNSEEN."""
    time_ns: int


class _WaitingSegment(NamedTuple):
    """A segment that waits for its turn."""

    at: int
    order: int
    """Of those at one place the first that came is the first."""
    data: bytes
    missing_bytes: int
    end: str
    needs: int
    """The position in the other stream that it acknowledges."""
    time_ns: int


@attrs.define(eq=False)
class TcpStream:
    """What one side sends."""

    connection: TcpConnection
    share: Share
    other: TcpStream = attrs.field(init=False)
    """What the other side sends."""
    start: int = -1
    """The sequence number of its SYN; -1: not seen."""
    next: int = -1
    """The position of the next byte to arrive; -1: not known."""
    acknowledged: int = -1
    held: list[_WaitingSegment] = attrs.Factory(list)
    held_bytes: int = 0
    waits_ns: int = 0
    """Since when it waits for what is missing; 0: it does not."""
    waited_packets: int = 0
    ended: bool = False
    recent: deque[tuple[int, bytes]] = attrs.Factory(lambda: deque(maxlen=_RECENT))
    """What arrived last."""

    def arrived(self, at: int, data: bytes) -> None:
        """Take note of bytes that are next."""
        self.next = at + len(data)
        self.recent.append((at, data))

    @property
    def waits(self) -> bool:
        """True while something is missing that is known to be sent."""
        return not self.ended and (bool(self.held) or self.acknowledged > self.next >= 0)

    def position(self, sequence: int) -> int:
        """Return the position that a sequence number means: the one nearest to the next byte."""
        return self.next + (sequence - self.next + _WRAP // 2) % _WRAP - _WRAP // 2

    def begin(self, sequence: int) -> None:
        """Begin at a sequence number."""
        self.next = _WRAP + sequence


@attrs.define(eq=False)
class TcpConnection:
    """Two streams."""

    path: bytes
    """The path of the first stream."""
    opened_ns: int
    """The time of its first packet."""
    streams: tuple[TcpStream, TcpStream] = attrs.field(init=False)
    client: TcpStream | None = None
    """The side that opened it; None: its beginning was not seen."""
    over: bool = False
    conflicts: int = 0
    """The number of segments that contradict earlier ones."""
    waits: bool = False
    """One of its streams waits for what is missing."""
    active: bool = True
    encrypted: bool = False
    """What arrives is TLS."""
    user: Any = None
    """What takes its arrivals."""


class Tcp:
    """All connections of a capture."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._streams: OrderedDict[bytes, TcpStream] = OrderedDict()
        """Path → stream, of both directions."""
        self._order = 0
        self._arrivals: list[Arrival] = []

    def take(self, segment: TcpSegment) -> list[Arrival]:
        """Take the next segment, and return what becomes certain by it."""
        time_ns, path, sequence, acknowledged, flags, data, missing = segment
        self._arrivals = arrivals = []
        stream = self._streams.get(path)
        if stream is None or flags & SYN:
            stream = self._opened(segment, stream)
        connection, other = stream.connection, stream.other
        if connection.over:
            return arrivals
        connection.active, needs = True, -1
        if flags & ACK:
            if other.next < 0:
                other.begin(acknowledged)
            same = acknowledged == other.next & _LAST
            needs = other.next if same else other.position(acknowledged)
            if needs > other.acknowledged:
                other.acknowledged = needs
        special = missing or flags & _ENDS
        if data or special:
            if stream.next < 0:
                stream.begin(sequence)
            same = sequence == stream.next & _LAST and not flags & SYN
            at = stream.next if same else stream.position(sequence + bool(flags & SYN))
            if at == stream.next and needs <= other.next and not (special or stream.held):
                stream.arrived(at, data)
                arrivals.append(Arrival(stream, data, time_ns))
            elif not stream.ended:
                self._hold(stream, at, segment, needs)
                self._drain(stream, time_ns)
            if other.held:
                self._drain(other, time_ns)
        if needs > other.next or connection.waits or stream.held:
            connection.waits = False
            for each in connection.streams:
                self._wait(each, time_ns)
                connection.waits |= each.waits_ns > 0
        return arrivals

    def stream(self, segment: TcpSegment) -> TcpStream:
        """Return the stream of a segment that was taken."""
        return self._streams[segment.path]

    def finish(self) -> Iterator[list[Arrival]]:
        """Yield what is held of each connection where the capture ends."""
        for stream in [*self._streams.values()]:
            if not stream.connection.over:
                self._arrivals = []
                both = stream.connection.streams
                while not stream.connection.over and any(each.waits for each in both):
                    for each in both:
                        self._give_up(each)
                yield self._arrivals

    # ---- connections

    def _opened(self, segment: TcpSegment, known: TcpStream | None) -> TcpStream:
        """Return the stream of a segment that begins one, or that is the first seen of it."""
        path, sequence, flags = segment.path, segment.sequence, segment.flags
        first = (sequence + 1) % _WRAP
        if known is not None:
            if known.start == sequence:
                return known  # it came twice
            if not known.connection.over and known.start < 0:
                answers = flags & ACK and known.other.start == (segment.acknowledged - 1) % _WRAP
                if answers or -_LATE_BYTES_MAX <= known.position(first) - known.next <= 0:
                    known.start = sequence  # behind the bytes that it precedes, maybe
                    if known.next < 0:
                        known.begin(first)
                    if known.connection.client is None:
                        known.connection.client = known.other if flags & ACK else known
                    return known
            if not known.connection.over:
                self._arrivals.append(Arrival(known, UNSEEN, segment.time_ns))
                self._end(known.connection)
        connection = TcpConnection(path, segment.time_ns)
        one, other = (TcpStream(connection, Share(self._budget)) for _ in range(2))
        connection.streams, one.other, other.other = (one, other), other, one
        self._streams[path], self._streams[reverse(path)] = one, other
        if flags & SYN:
            one.start, connection.client = sequence, one
            one.begin(first)
            if flags & ACK:
                connection.client = other
                other.start = (segment.acknowledged - 1) % _WRAP
                other.begin(segment.acknowledged)
        self._forget_idle(segment.time_ns)
        return one

    def _forget_idle(self, now: int) -> None:
        """Forget connections that are over, or were not active lately, where there are too many."""
        while len(self._streams) > 2 * _CONNECTIONS_MAX:
            path, stream = self._streams.popitem(last=False)
            connection = stream.connection
            if connection.active and not connection.over:
                connection.active = False
                self._streams[path] = stream  # a second chance
            elif self._streams.pop(reverse(path), None) and not connection.over:
                self._arrivals.append(Arrival(stream, UNSEEN, now))
                self._end(connection)

    def _end(self, connection: TcpConnection) -> None:
        connection.over = True
        for stream in connection.streams:
            stream.held.clear()
            stream.recent.clear()
            stream.share.release()

    # ---- what is not next

    def _hold(self, stream: TcpStream, at: int, segment: TcpSegment, needs: int) -> None:
        """Hold a segment until it is next."""
        data, missing, flags = segment.data, segment.missing_bytes, segment.flags
        if at < stream.next or stream.held:
            stream.connection.conflicts += _contradicts(stream, at, data)
        if at + len(data) + missing > stream.next and (data or missing):
            self._insert(stream, _WaitingSegment(at, 0, data, missing, "", needs, segment.time_ns))
        if flags & _ENDS:
            end, how = at + len(data) + missing, "reset" if flags & RST else "eof"
            self._insert(stream, _WaitingSegment(end, 0, b"", 0, how, needs, segment.time_ns))

    def _insert(self, stream: TcpStream, held: _WaitingSegment) -> None:
        self._order += 1
        insort(stream.held, held._replace(order=self._order))
        stream.held_bytes += len(held.data)
        while not stream.connection.over and (
            stream.held_bytes > _HELD_BYTES_MAX
            or len(stream.held) > _HELD_MAX
            or not stream.share.hold(stream.held_bytes)
        ):
            self._give_up(stream)

    def _drain(self, stream: TcpStream, now: int) -> None:
        """Let all arrive that is next."""
        other = stream.other
        while stream.held and stream.held[0].at <= stream.next:
            if stream.held[0].needs > other.next >= 0:
                break
            self._arrive(stream, now)

    def _arrive(self, stream: TcpStream, time_ns: int) -> None:
        """Let the first that is held arrive."""
        held = stream.held.pop(0)
        stream.held_bytes -= len(held.data)
        stream.share.hold(stream.held_bytes)
        at, data = held.at, held.data
        if at < stream.next:
            at, data = stream.next, data[stream.next - at :]
        if data:
            stream.arrived(at, data)
            self._arrivals.append(Arrival(stream, data, time_ns))
        lost = held.at + len(held.data) + held.missing_bytes - stream.next
        if lost > 0:
            self._arrivals.append(Arrival(stream, lost, time_ns))
            stream.next += lost
        if held.end:
            stream.ended = True
            stream.next += 1
            stream.held.clear()
            self._arrivals.append(Arrival(stream, held.end, time_ns))
            if held.end == "reset" or stream.other.ended:
                self._end(stream.connection)

    def _wait(self, stream: TcpStream, now: int) -> None:
        """Wait for what is missing, or no longer."""
        if not stream.waits:
            stream.waits_ns = stream.waited_packets = 0
            return
        stream.waits_ns = stream.waits_ns or now
        stream.waited_packets += 1
        until = stream.held[0].at if stream.held else stream.next
        patience_ns, packets = _PATIENCE_NS, _PATIENCE_PACKETS
        if until > stream.acknowledged:
            patience_ns, packets = _UNACKNOWLEDGED_NS, _UNACKNOWLEDGED_PACKETS
        if now - stream.waits_ns > patience_ns or stream.waited_packets > packets:
            self._give_up(stream)
            self._drain(stream.other, now)
            stream.waits_ns = stream.waited_packets = 0

    def _give_up(self, stream: TcpStream) -> None:
        """Let what is missing first be lost, and what is held behind it arrive at its own time."""
        until = stream.held[0].at if stream.held else stream.acknowledged
        if until > stream.next >= 0:
            time_ns = stream.held[0].time_ns if stream.held else stream.waits_ns
            self._arrivals.append(Arrival(stream, until - stream.next, time_ns))
            stream.next = until
        other = stream.other
        first = True
        while stream.held and stream.held[0].at <= stream.next:
            if not first and stream.held[0].needs > other.next >= 0:
                break
            first = False
            self._arrive(stream, stream.held[0].time_ns)


def _contradicts(stream: TcpStream, at: int, data: bytes) -> bool:
    """Return whether a segment contradicts one that came before it."""
    place = bisect_left(stream.held, at, key=itemgetter(0))
    near = stream.held[max(0, place - _RECENT) : place + _RECENT]
    for start, known in (*stream.recent, *((each.at, each.data) for each in near)):
        low, high = max(at, start), min(at + len(data), start + len(known))
        if low < high and data[low - at : high - at] != known[low - start : high - start]:
            return True
    return False
