"""Errors of commands in one line, and output that nobody can take."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Generator
from typing import NoReturn, TextIO

from kproxy.printable import printable, without_credentials


def fail(text: str, code: int = 1) -> int:
    """Write an error, one line, to stderr, if somebody takes it; return the exit code.

    It may quote what was typed: credentials in URLs are left out.
    """
    if sys.stderr is not None:  # print would take stdout
        with contextlib.suppress(OSError):
            print(printable(without_credentials(text)), file=sys.stderr)
    return code


def code_of(error: Exception) -> int:
    """Return the exit code for an error that ends a command."""
    return getattr(error, "exit_code", 1)


def discard_output() -> None:
    """Redirect stdout to nowhere: otherwise the interpreter reports unwritten output at its end."""
    _discard(sys.stdout)


def end_errors() -> None:
    """Write what stderr still has; where nobody takes it, redirect it to nowhere: otherwise the
    interpreter would end with an exit code of its own, 120."""
    try:
        sys.stderr.flush()
    except OSError:
        _discard(sys.stderr)


def _discard(stream: TextIO) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


# ---- signals
#
# SIGTERM, SIGHUP ─▶ SystemExit      SIGINT ─▶ KeyboardInterrupt      ─▶ `finally`, `with` …
#
# Only the first signal counts. Later ones are ignored until the end of the process, so that they do
# not interrupt the cleaning up.


_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def signals_raised(first: Callable[[], None] = lambda: None) -> Generator[None]:
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
