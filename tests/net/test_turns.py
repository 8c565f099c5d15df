"""A connection that is always busy does not hold up what goes on beside it."""

from __future__ import annotations

import itertools

import trio
import trio.testing

from kproxy.net.readiness import READ
from tests.net.pumped import pumped
from tests.proxy.machines import Answerer

STEPS = 10
POLLS = 25
"""How often the pump would look in each step, if it went on for 5 ms."""


async def test_what_takes_many_steps_is_not_held_up_for_long_in_each() -> None:
    async with pumped(Answerer(b"x")) as at, await at.connect() as client:
        await trio.testing.wait_all_tasks_blocked(0.01)
        polls = 0

        def always_ready(seconds: float) -> list[tuple[int, int]]:
            nonlocal polls
            polls += 1
            return [(-1, READ)]

        ticks = itertools.count(at.pump._clock(), 100_000)
        at.pump._clock = lambda: next(ticks)  # a tenth of a millisecond for each look at it
        at.pump._readiness.poll = always_ready
        await client.send_all(b"x")  # nobody takes it: the pump is busy from now on
        while not polls:
            await trio.lowlevel.checkpoint()
        before = polls
        for _ in range(STEPS):
            await trio.lowlevel.checkpoint()
        assert polls - before < STEPS * POLLS * 3 / 4
