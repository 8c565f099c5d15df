"""Errors of commands in one line, and output that nobody can take."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TextIO

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
