"""A connection that is always busy does not hold up what goes on beside it."""

from __future__ import annotations

import itertools
import socket

import trio

from kproxy.net.readiness import READ, Readiness
from kproxy.net.recorder import Recorder
from kproxy.net.turns import Alarm, Turns

STEPS = 10
LOOK_NS = 100_000
"""How long a look at the clock takes here."""
POLLS = 25
"""How often a turn polls if it goes on for 5 ms: two looks at the clock for each."""


async def test_what_takes_many_steps_is_not_held_up_for_long_in_each() -> None:
    polls: list[float] = []
    handled: list[int] = []

    def always_ready(seconds: float) -> list[tuple[int, int]]:
        polls.append(seconds)
        return [(-1, READ)]

    clock = itertools.count(1, LOOK_NS).__next__  # only looking at it moves it
    readiness = Readiness()
    readiness.poll = always_ready
    ours, peers = socket.socketpair()
    with ours, peers:
        readiness.watch(ours.fileno(), 0, READ)
        peers.send(b"x")
        alarm, recorder = Alarm(clock, lambda now: None), Recorder(None, print)
        turns = Turns(readiness, alarm, recorder, clock, lambda *about: handled.append(about[0]))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(turns.run, trio.sleep_forever)
            while not polls:
                await trio.lowlevel.checkpoint()
            before = len(polls)
            for _ in range(STEPS):
                await trio.lowlevel.checkpoint()
            assert 0 < len(polls) - before < STEPS * POLLS * 3 / 4
            assert len(handled) == len(polls)
            nursery.cancel_scope.cancel()
    readiness.close()
