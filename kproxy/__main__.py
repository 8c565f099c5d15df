"""The entry point of `kproxy` and `python -m kproxy`.

Ctrl-C may come while modules are imported, which takes some time: that is handled here.
"""

from __future__ import annotations

import gc
import sys

INTERRUPTED = 130
"""The exit code of a process ended by SIGINT, as shells set it."""
YOUNG_OBJECTS = 100_000
"""The number of new objects after which Python looks among them for garbage in cycles. A command
imports fewer, which all stay: looking takes a thirtieth of the start of `show`."""


def main() -> int:
    """Run the command; return its exit code."""
    gc.set_threshold(YOUNG_OBJECTS, *gc.get_threshold()[1:])
    try:
        from kproxy import cli

        return cli.main()
    except KeyboardInterrupt:
        return INTERRUPTED
    finally:
        # Else Python would search all modules once more while it ends, which takes as long.
        gc.freeze()


if __name__ == "__main__":
    sys.exit(main())
