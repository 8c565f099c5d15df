"""Stalls of kproxy itself: stopped by a signal or a debugger, starved, or stuck.

::

    clock ─▶ is a tick late? ─▶ note "stood_still" ─▶ recording

Bytes that arrive meanwhile wait in the kernel and get their time only afterwards. So in the
recording the broker looks slow where kproxy was slow; this note tells the difference.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from kproxy.exchange import notes
from kproxy.exchange.entries import Note

TICK_SECONDS = 0.1
STALL_SECONDS_MIN = 0.5
"""Shorter stalls are normal on a busy machine."""


async def watch(
    clock: Callable[[], int],
    note: Callable[[Note], None],
    on_tick: Callable[[], None] = lambda: None,
) -> None:
    """Note each stall of this thread of at least `STALL_SECONDS_MIN`, until cancelled.

    `clock` returns nanoseconds; `on_tick` is called ten times a second.
    """
    while True:
        due_ns = clock() + int(TICK_SECONDS * 1e9)
        await trio.sleep(TICK_SECONDS)
        now = clock()
        if now - due_ns >= STALL_SECONDS_MIN * 1e9:
            note(notes.stood_still(due_ns, now))
        on_tick()
