"""Errors of commands in one line, and output that nobody can take."""

from __future__ import annotations

import contextlib
import os
import sys

from kproxy.printable import printable


def fail(text: str, code: int = 1) -> int:
    """Write an error, one line, to stderr, if somebody takes it; return the exit code."""
    if sys.stderr is not None:  # print would take stdout
        with contextlib.suppress(OSError):
            print(printable(text), file=sys.stderr)
    return code


def discard_output() -> None:
    """Redirect stdout to nowhere: otherwise the interpreter reports unwritten output at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
