"""The priority of processes that work beside a proxy: they must not take the processor from it."""

from __future__ import annotations

import contextlib
import os
import sys

_NICE = 10


def stand_behind() -> None:
    """Give way to all other processes, as far as the system allows it."""
    os.nice(_NICE)
    if sys.platform == "linux":  # whoever else wants the processor has it at once
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
