"""Turns: how the pump waits for its connections, and for how long it goes on without trio.

::

    ╭─▶ trio: until any is ready ─▶ turn ─┬─▶ poll ─▶ handle each that is ready ─┬─╮
    │                                     │   └ what is due: ring                │ │
    │                                     ╰────────── more is ready, or soon ◀───╯ │
    ╰──────────── nothing is ready, or the turn is over ◀─────────────────────────╯

One task waits for all connections (a trio task per socket costs more than the bytes that it moves,
see the benchmark). While clients are busy a turn waits for their next event itself, which costs
half as much as waiting through trio. While other tasks have something to do turns are short and do
not wait; one that has begun is not cut.

Invariants: each ready descriptor is handled once per poll, so a busy one starves no other. What is
due is done between two polls: there is one alarm for all timed events. Nothing is read while `room`
has not been waited for.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Protocol

import trio

from kproxy.net.readiness import Readiness

_LINGER_NS = 5_000_000
"""A turn waits so long for the next event of busy connections: a shorter wait costs more. A timer
that ends before the kernel's next tick (4 ms) has to be set in the processor for each request and
each response, which is a sixth of what small ones cost."""
_SHORT_NS = 1_000_000
"""A wait that took longer held up other tasks, and was in vain, whatever came."""
_VAIN_TURNS = 16
"""After two waits in vain, so many turns have none: clients with time to think are waited for
through trio. Those of a test always are: it asks meanwhile, and would wait for the turn."""
_TURN_NS = 5_000_000
"""After this long, and one wait, other tasks get their turn, however much there is to do …"""
_SHORT_TURN_NS = 500_000
"""… and so soon where they have just had something to do: a client that is accepted, an address
that is dialled and a request to the control port take many turns each."""


NEVER = 1 << 63
"""Later than any time of the clock."""


class Alarm:
    """Calls a function at a time of a clock, to the millisecond.

    Setting it costs a comparison where the time stays, so it can be set after every event.
    """

    def __init__(self, clock: Callable[[], int], ring: Callable[[int], None]) -> None:
        self._clock = clock
        self._ring = ring
        self.at_ns = NEVER
        """The time at which it goes off."""
        self._scope = trio.CancelScope()

    def set(self, at_ns: int) -> None:
        """Set the only time at which it goes off."""
        if at_ns != self.at_ns:
            self.at_ns = at_ns
            self._scope.deadline = self._deadline()

    async def run(self) -> None:
        """Wait, and call the function with the present time, again and again until cancelled."""
        while True:
            with trio.CancelScope(deadline=self._deadline()) as self._scope:
                await trio.sleep_forever()
            self.ring_if_due(self._clock())

    def ring_if_due(self, now: int) -> None:
        """Call the function if its time has come: who is busy need not wait for `run`."""
        if now >= self.at_ns:
            self._ring(now)

    def _deadline(self) -> float:
        """Return the alarm's time on trio's clock."""
        if self.at_ns == NEVER:
            return math.inf
        return trio.current_time() + (self.at_ns - self._clock()) / 1e9


class HasRoom(Protocol):
    """A recorder, as far as turns look at it."""

    def congested(self) -> bool:
        """Return whether nothing more should be read for now."""
        ...


class _Scheduled(trio.abc.Instrument):
    """Counts how often a task of trio had something to do."""

    count = 0

    def task_scheduled(self, task: trio.lowlevel.Task) -> None:
        """See Instrument."""
        self.count += 1


class Turns:
    """Waits for watched descriptors, and has them handled."""

    def __init__(
        self,
        readiness: Readiness,
        alarm: Alarm,
        recorder: HasRoom,
        clock: Callable[[], int],
        handle: Callable[[int, int], None],
        lingers: bool = True,
    ) -> None:
        """`handle` gets a descriptor and its events, as `Readiness.poll` gives them; `lingers` if
        turns may wait."""
        self._readiness = readiness
        self._alarm = alarm
        self._recorder = recorder
        self._clock = clock
        self._handle = handle
        self._lingers = lingers

    async def run(self, room: Callable[[], Awaitable[None]]) -> None:
        """Take turns until cancelled; wait for `room` while the recorder is congested."""
        scheduled = _Scheduled()
        trio.lowlevel.add_instrument(scheduled)
        try:
            seen = vain_waits = 0
            turns_without = 0 if self._lingers else math.inf
            while True:
                await trio.lowlevel.wait_readable(self._readiness.descriptor)
                alone, seen = scheduled.count == seen + 1, scheduled.count
                if not alone:
                    self._turn(_SHORT_TURN_NS, lingers=False)
                elif turns_without:
                    turns_without -= 1
                    self._turn(_TURN_NS, lingers=False)
                else:
                    vain = self._turn(_TURN_NS, lingers=True)
                    vain_waits = vain_waits + 1 if vain else 0
                    turns_without = _VAIN_TURNS if vain_waits > 1 else 0
                if self._recorder.congested():
                    await room()
        finally:
            trio.lowlevel.remove_instrument(scheduled)

    def _turn(self, turn_ns: int, lingers: bool) -> bool:
        """Handle what is ready, and what soon will be; return whether a wait for it was in vain."""
        poll, handle, clock = self._readiness.poll, self._handle, self._clock
        alarm, recorder = self._alarm, self._recorder
        now = clock()
        ends_ns = now + turn_ns
        while True:
            waits = lingers and now < alarm.at_ns - _LINGER_NS
            ready = poll(_LINGER_NS / 1e9 if waits else 0)
            vain = waits and clock() - now > _SHORT_NS
            for descriptor, events in ready:
                handle(descriptor, events)
            now = clock()
            alarm.ring_if_due(now)
            if vain or not ready or recorder.congested() or now > ends_ns:
                return vain
