"""Processes that work beside a proxy: they must not take the processor from it, and end with it.

A service manager sends its signal to all of them. The proxy alone heeds it, and then ends the
others, for which there is something left to do.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys

_NICE = 10


def stand_behind() -> None:
    """Give way to all other processes, as far as the system allows it; leave signals to the
    proxy."""
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)
    os.nice(_NICE)
    if sys.platform == "linux":  # whoever else wants the processor has it at once
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
