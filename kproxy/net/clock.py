"""The clock of a run: it never runs backwards, and knows when the system's clock was set.

::

    time.monotonic_ns ─▶ Clock ─▶ now: arrivals, delays, timeouts, durations
    time.time_ns ─ check, ten times a second ─▶ where later times lie on the system's clock
                                                      │
               the recording, live entries, the control API ◀─ wall_ns

The machine's times come from the monotonic clock alone, which began where the system's was. So no
step of the latter, by hand, by NTP or while the machine slept, touches a delay or a latency. What
is recorded or shown is moved to the system's clock, as it was then: the times of an exchange all by
as much as its request's, so that their differences stay.

A step is noticed within a tenth of a second, noted, and logged in one line. What only drifts is
followed without a word. While nothing of this has happened, as nearly always, nothing is moved.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable
from typing import Any

import attrs

from kproxy.exchange.entries import ExchangeRow, Frame, Note, Side

STEP_NS_MIN = 100_000_000
"""A smaller difference is drift."""
_FOLLOW_NS_MIN = 1_000_000
"""Smaller differences come from reading two clocks one after the other."""
_CHANGES_MAX = 100
"""So many changes are remembered, for what came before them and is not written yet."""


@attrs.frozen
class _Changes:
    """From which time of the clock on which offset lies between it and the system's clock."""

    from_ns: tuple[int, ...] = ()
    offsets_ns: tuple[int, ...] = (0,)
    """The first is that before any change."""

    def offset_ns(self, at_ns: int) -> int:
        """Return the offset at a time of the clock."""
        return self.offsets_ns[bisect_right(self.from_ns, at_ns)]

    def then(self, from_ns: int, offset_ns: int) -> _Changes:
        """Return the changes with another one behind them."""
        kept = 1 - _CHANGES_MAX
        return _Changes((*self.from_ns[kept:], from_ns), (*self.offsets_ns[kept - 1 :], offset_ns))


class Clock:
    """Call it for the time: nanoseconds since the Unix epoch that never run backwards.

    Only `check` changes it; the other methods may be called in other threads.
    """

    def __init__(
        self,
        system_ns: Callable[[], int] = time.time_ns,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._system_ns = system_ns
        self._monotonic_ns = monotonic_ns
        self._base = system_ns() - monotonic_ns()
        self._changes = _Changes()

    def __call__(self) -> int:
        return self._base + self._monotonic_ns()

    @property
    def moves(self) -> bool:
        """True if the times of the clock are no longer those of the system's."""
        return bool(self._changes.from_ns)

    def check(self) -> int:
        """Compare both clocks; return by how much the system's was set, 0 if it was not."""
        before = self._monotonic_ns()
        system = self._system_ns()
        now = self._monotonic_ns()
        offset_ns = system - self._base - before
        moved_ns = offset_ns - self._changes.offsets_ns[-1]
        if now - before >= _FOLLOW_NS_MIN or abs(moved_ns) < _FOLLOW_NS_MIN:
            return 0
        self._changes = self._changes.then(self._base + now, offset_ns)
        return moved_ns if abs(moved_ns) >= STEP_NS_MIN else 0

    def offset_ns(self, at_ns: int) -> int:
        """Return what is to be added to this time of the clock."""
        return self._changes.offset_ns(at_ns)

    def wall_ns(self, at_ns: int) -> int:
        """Return what the system's clock showed at a time of this one; 0 stays "not known"."""
        return at_ns and at_ns + self._changes.offset_ns(at_ns)

    def wall_row(self, row: ExchangeRow) -> ExchangeRow:
        """Return the row of an exchange with its times on the system's clock."""
        begun_ns = row.request_received_ns or row.response_received_ns
        offset_ns = self._changes.offset_ns(begun_ns)
        return row._replace(**_moved(row, _ROW_TIMES, offset_ns)) if offset_ns else row

    def wall_note(self, note: Note) -> Note:
        """Return a note with its times on the system's clock."""
        body = dict(note.body)
        for name in ("from_ns", "until_ns"):
            if name in body:
                body[name] = self.wall_ns(body[name])
        if "ends" in body:
            body["ends"] = [end | {"time_ns": self.wall_ns(end["time_ns"])} for end in body["ends"]]
        return attrs.evolve(note, time_ns=self.wall_ns(note.time_ns), body=body)

    def wall_entry(self, entry: Frame | Note) -> Frame | Note:
        """Return a copy of an entry with its times on the system's clock.

        Where that was set between two exchanges of a connection, the time that one queued behind
        the other is unsure.
        """
        if isinstance(entry, Note):
            return self.wall_note(entry)
        begun_ns = entry.request_received_ns if entry.side is Side.BROKER else 0
        offset_ns = self._changes.offset_ns(begun_ns or entry.received_ns)
        return attrs.evolve(entry, **_moved(entry, _FRAME_TIMES, offset_ns))


_ROW_TIMES = ("request_received_ns", "request_sent_ns", "response_received_ns", "response_sent_ns")
_FRAME_TIMES = ("received_ns", "sent_ns", "request_received_ns", "request_sent_ns")


def _moved(item: ExchangeRow | Frame, names: tuple[str, ...], offset_ns: int) -> dict[str, Any]:
    """Return those of its times that are known, so much later."""
    times = {name: getattr(item, name) for name in names}
    return {name: time_ns + offset_ns for name, time_ns in times.items() if time_ns}
