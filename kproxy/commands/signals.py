"""Signals that end a command: what it has begun is cleaned up before it ends.

SIGTERM, SIGHUP ─▶ SystemExit      SIGINT ─▶ KeyboardInterrupt      ─▶ `finally`, `with` …

The first of them counts. Those behind it are ignored, to the end of the process, as what is cleaned
up would stay half done.
"""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Callable, Generator
from typing import NoReturn

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def raised(first: Callable[[], None] = lambda: None) -> Generator[None]:
    """Have the signals that end this process raise an exception meanwhile, after `first` was
    called; those that it ignores, as with `nohup`, stay ignored."""
    handled = [each for each in _ENDING if signal.getsignal(each) is not signal.SIG_IGN]

    def end(number: int, frame: object) -> NoReturn:
        for each in handled:
            signal.signal(each, signal.SIG_IGN)
        first()
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        sys.exit(128 + number)

    before = {number: signal.signal(number, end) for number in handled}
    try:
        yield
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) is end:
                signal.signal(number, handler or signal.SIG_DFL)
