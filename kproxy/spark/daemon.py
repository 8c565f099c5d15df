"""The process that forks Spark's Python workers, on this machine: those of `session` start quickly.

Spark has it import PySpark from `pyspark.zip`, which has no compiled modules, and has each worker
import what it needs after the fork. Here the PySpark that is installed is taken, which is the same,
and what tasks need is imported once, before they are forked.

Invariant: nothing that starts a thread is imported here, as pyarrow does: a fork has no threads.
"""

from __future__ import annotations

import importlib
import sys

_NEEDED = (
    "pyspark.worker",
    "pyspark.sql.datasource",
    "kproxy.recording.exchanges",
    "kproxy.exchange.body_json",
)


def main() -> None:
    """Fork a worker whenever Spark asks for one."""
    sys.path[:] = [path for path in sys.path if not path.endswith("pyspark.zip")]
    for name in _NEEDED:
        importlib.import_module(name)
    importlib.import_module("pyspark.daemon").manager()


if __name__ == "__main__":
    main()
