"""A connection that is always busy does not hold up what goes on beside it."""

from __future__ import annotations

import itertools
import socket

import attrs
import pytest
import trio
import trio.testing

from kproxy.net.readiness import READ, Readiness
from kproxy.net.turns import Alarm, Turns

STEPS = 10
LOOK_NS = 100_000
"""How long a look at the clock takes here."""
POLLS = 25
"""How often a turn polls if it goes on for 5 ms: two looks at the clock for each."""


@attrs.define
class Recorder:
    """A recorder with room, or without."""

    full: bool = False

    def congested(self) -> bool:
        return self.full


@attrs.define
class Busy:
    """Turns beside a connection on which something always is ready."""

    turns: Turns
    alarm: Alarm
    polls: int = 0
    handled: int = 0
    rung: int = 0


def busy(readiness: Readiness, recorder: Recorder) -> Busy:
    """Turns on a clock that only looking at it moves."""
    clock = itertools.count(1, LOOK_NS).__next__

    def ring(now: int) -> None:
        made.rung += 1
        made.alarm.at_ns = now + 1000 * LOOK_NS

    def handle(descriptor: int, events: int) -> None:
        made.handled += 1

    def always_ready(seconds: float) -> list[tuple[int, int]]:
        made.polls += 1
        return [(-1, READ)]

    readiness.poll = always_ready
    alarm = Alarm(clock, ring)
    made = Busy(Turns(readiness, alarm, recorder, clock, handle), alarm)
    return made


@pytest.fixture
def readiness():
    """A watched socket that can be read."""
    ours, peers = socket.socketpair()
    found = Readiness()
    found.watch(ours.fileno(), 0, READ)
    peers.send(b"x")
    yield found
    found.close()
    ours.close()
    peers.close()


async def test_what_takes_many_steps_is_not_held_up_for_long_in_each(readiness, nursery) -> None:
    made = busy(readiness, Recorder())
    nursery.start_soon(made.turns.run, trio.sleep_forever)
    while not made.polls:
        await trio.lowlevel.checkpoint()
    before = made.polls
    for _ in range(STEPS):
        await trio.lowlevel.checkpoint()
    assert 0 < made.polls - before < STEPS * POLLS * 3 / 4
    assert made.handled == made.polls


async def test_what_is_due_is_done_beside_a_busy_connection(readiness, nursery) -> None:
    made = busy(readiness, Recorder())
    made.alarm.at_ns = 5 * LOOK_NS
    nursery.start_soon(made.turns.run, trio.sleep_forever)
    while not made.rung:
        assert made.polls < 2 * POLLS
        await trio.lowlevel.checkpoint()


async def test_nothing_is_read_until_there_is_room(readiness, nursery) -> None:
    recorder, room = Recorder(full=True), trio.Event()
    made = busy(readiness, recorder)
    nursery.start_soon(made.turns.run, room.wait)
    await trio.testing.wait_all_tasks_blocked(0.01)
    assert made.polls == made.handled == 1
    recorder.full = False
    room.set()
    while made.polls == 1:
        await trio.lowlevel.checkpoint()
