"""Signals that end a command, as exceptions: the command cleans up before it ends.

SIGTERM, SIGHUP ─▶ SystemExit      SIGINT ─▶ KeyboardInterrupt      ─▶ `finally`, `with` …

Only the first signal counts. Later ones are ignored until the end of the process, so that they do
not interrupt the cleaning up.
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
    """Turn signals into exceptions inside of this context; `first` is called before the exception
    is raised. Signals that the process ignores, as with `nohup`, stay ignored."""
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
