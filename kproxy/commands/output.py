"""What commands write beside their results: errors in one line, and nothing where nobody reads."""

from __future__ import annotations

import os
import sys

from kproxy.printable import printable


def fail(text: str, code: int = 1) -> int:
    """Write an error, one line, to stderr; return the exit code."""
    print(printable(text), file=sys.stderr)
    return code


def discard_output() -> None:
    """Keep the interpreter from complaining at its end about output that cannot be written."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
