"""Signals that end a command: what it has begun is cleaned up before it ends.

SIGTERM, SIGHUP ─▶ SystemExit      SIGINT ─▶ KeyboardInterrupt      ─▶ `finally`, `with` …
"""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Generator
from typing import NoReturn

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def raised() -> Generator[None]:
    """Have the signals that end this process raise an exception meanwhile; those that it ignores,
    as with `nohup`, stay ignored."""
    handled = [each for each in _ENDING if signal.getsignal(each) is not signal.SIG_IGN]
    before = {number: signal.signal(number, _raise) for number in handled}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)


def _raise(number: int, frame: object) -> NoReturn:
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    sys.exit(128 + number)
