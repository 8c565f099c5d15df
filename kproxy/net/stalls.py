"""Notices when kproxy itself stood still: stopped by a signal or a debugger, starved, or stuck.

::

    clock ─▶ is a tick late? ─▶ note "stood_still" ─▶ recording

What arrives meanwhile waits in the kernel and gets its time only afterwards. So in the recording
the broker looks slow where kproxy was; without this note nobody could tell.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from kproxy.exchange import notes
from kproxy.exchange.entries import Note

TICK_SECONDS = 0.1
STALL_SECONDS_MIN = 0.5
"""Less is what a busy machine does to anybody."""


async def watch(clock: Callable[[], int], note: Callable[[Note], None]) -> None:
    """Tell of each time that this thread did not get its turn for longer, until cancelled.

    `clock` returns nanoseconds.
    """
    while True:
        due_ns = clock() + int(TICK_SECONDS * 1e9)
        await trio.sleep(TICK_SECONDS)
        now = clock()
        if now - due_ns >= STALL_SECONDS_MIN * 1e9:
            note(notes.stood_still(due_ns, now))
