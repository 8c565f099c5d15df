"""Bytes that leave later, in order: those that a rule delays, and all that come behind them.

::

    put ─▶ │ due 12:00:01 │ due at once │ due 12:00:03, 64 KiB/s │ ─▶ take(now) ─▶ what leaves now

Only fault rules delay bytes, so that the time from the arrival of a frame until all that waits
before it is due is time that rules added. It is noted when the frame leaves, with the exchange
behind whose delay it waited. What passes plainly never comes here.

Invariant: no bytes overtake others; bytes behind delayed ones leave after these.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from kproxy.exchange.entries import NO_RESPONSE, Frame, Side
from kproxy.proxy.budget import Share
from kproxy.proxy.output import Departure

_SLICE_NS = 10_000_000
"""Bytes with a limited rate leave in slices at least this far apart."""


class Delays:
    """The delayed bytes of one direction of a connection."""

    def __init__(self, share: Share) -> None:
        self.waiting: deque[Departure] = deque()
        """Departures in order; only this class changes it."""
        self._share = share
        self.held_bytes = 0
        self._due_ns = 0
        """The latest time for which anything that has left so far had to wait …"""
        self._delayed = 0
        """… and the exchange that was delayed until then."""

    def __bool__(self) -> bool:
        return bool(self.waiting)

    @property
    def pressed(self) -> bool:
        """True while all connections together hold so much that each should hold less."""
        return self._share.pressed

    @property
    def next_due_ns(self) -> int | None:
        """The time at which the next departure leaves; None if there is none."""
        return self.waiting[0].due_ns if self.waiting else None

    def put(self, departures: Sequence[Departure]) -> None:
        """Add departures behind all that wait."""
        for departure in departures:
            if departure.pieces or departure.timed or departure.ending is not None:
                self._count(departure.byte_count)
                if not self.waiting or not _merge(self.waiting[-1], departure):
                    self.waiting.append(departure)

    def take(self, now: int) -> list[Departure]:
        """Take the departures that are due now, in order."""
        leaving: list[Departure] = []
        while self.waiting and self.waiting[0].due_ns <= now:
            first = self.waiting[0]
            self._note(first)
            if first.bytes_per_second and first.pieces:
                leaving.append(_slice(first, now))
                self._count(-leaving[-1].byte_count)
                if first.pieces:
                    break
                first.bytes_per_second = 0
                continue
            leaving.append(self.waiting.popleft())
            self._count(-first.byte_count)
        return leaving

    def _note(self, departure: Departure) -> None:
        """Note in the frames of a departure that is due how long they were held, behind whom."""
        if departure.due_ns > self._due_ns:
            self._due_ns, self._delayed = departure.due_ns, departure.number
        own = None
        for timed in departure.timed:
            timed.fault_ns = max(0, self._due_ns - timed.received_ns)
            if isinstance(timed, Frame):
                number = timed.number
                # Behind a request that is to be answered come its times, without a number.
                asks = timed.side is Side.CLIENT and not timed.flags & NO_RESPONSE
                own = number if asks else None
            else:
                number, own = own, None
            if timed.fault_ns and number != self._delayed:
                timed.behind = self._delayed

    def clear(self) -> None:
        """Drop all delayed bytes."""
        self.waiting.clear()
        self._count(-self.held_bytes)

    def _count(self, growth: int) -> None:
        """Count held bytes. The budget cannot refuse them; the sender is paused instead."""
        self.held_bytes += growth
        self._share.hold(self.held_bytes)


def _merge(last: Departure, departure: Departure) -> bool:
    """Merge a departure into the one before it if it leaves no later; return whether it did."""
    if last.ending is not None or last.bytes_per_second or departure.bytes_per_second:
        return False
    if departure.due_ns > last.due_ns:
        return False
    last.pieces += departure.pieces
    last.timed += departure.timed
    last.ending, last.ending_delay_ns = departure.ending, departure.ending_delay_ns
    return True


def _slice(departure: Departure, now: int) -> Departure:
    """Cut off the bytes that leave now at the departure's rate; the rest is due later."""
    rate = departure.bytes_per_second
    size = max(1, rate * _SLICE_NS // 1_000_000_000)
    taken, left = [], size
    while left and departure.pieces:
        piece = memoryview(departure.pieces[0])
        taken.append(piece[:left])
        if len(piece) > left:
            departure.pieces[0] = piece[left:]
        else:
            del departure.pieces[0]
        left -= len(taken[-1])
    timed, departure.timed = ([], departure.timed) if departure.pieces else (departure.timed, [])
    # The slice takes this long, also the last one.
    departure.due_ns = max(departure.due_ns, now) + (size - left) * 1_000_000_000 // rate
    return Departure(pieces=taken, timed=timed, number=departure.number)
