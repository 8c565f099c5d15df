"""The entry point of `kproxy` and `python -m kproxy`.

Ctrl-C may come while modules are imported, which takes some time: that is handled here.
"""

from __future__ import annotations

import sys

INTERRUPTED = 130
"""The exit code of a process ended by SIGINT, as shells set it."""


def main() -> int:
    """Run the command; return its exit code."""
    try:
        from kproxy import cli

        return cli.main()
    except KeyboardInterrupt:
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
