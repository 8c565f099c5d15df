"""`kproxy`, and `python -m kproxy`: the command, from the first import on.

To import it takes so long that somebody may have pressed Ctrl-C already.
"""

from __future__ import annotations

import sys

INTERRUPTED = 130
"""The exit code of what a SIGINT has ended, as shells have it."""


def main() -> int:
    """Run the command; return its exit code."""
    try:
        from kproxy import cli

        return cli.main()
    except KeyboardInterrupt:
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
