"""The process that forks Spark's Python workers on this machine, for a quick start of `session`.

Spark's own daemon imports PySpark from `pyspark.zip`, which has no compiled modules, and each
worker imports its modules after the fork. This daemon takes the same PySpark as it is installed,
and imports the modules that tasks need once, before it forks.

Invariant: no module that starts threads is imported here, such as pyarrow: a fork loses threads.
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
