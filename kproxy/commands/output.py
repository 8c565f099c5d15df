"""What commands write beside their results: errors in one line, and nothing where nobody reads."""

from __future__ import annotations

import contextlib
import os
import sys


def fail(text: str, code: int = 1) -> int:
    """Write an error, one line, to stderr; return the exit code."""
    print(text, file=sys.stderr)
    return code


def log(text: str) -> None:
    """Write a line of the log; a log that cannot be written is no reason to stop."""
    with contextlib.suppress(OSError):
        print(f"kproxy: {text}", file=sys.stderr, flush=True)


def discard_output() -> None:
    """Keep the interpreter from complaining at its end about output that cannot be written."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
