"""A cluster of processes: a master, and a worker or two with a JVM each; `spark-submit` on it, and
an executor that is killed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.versions import ALL

_WORKERS = 2 if ALL else 1
_QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.log.level": "OFF",
    "spark.driver.extraJavaOptions": _QUICK,
    "spark.executor.extraJavaOptions": _QUICK,
}


def submit(
    folder: Path, *arguments: str | Path, seconds_max: float = 240
) -> subprocess.CompletedProcess[str]:
    """Submit a program from a folder, and wait for it."""
    command = [str(Path(sys.executable).with_name("spark-submit"))]
    command += ["--master", f"local-cluster[{_WORKERS},1,1024]"]
    command += [part for item in _SETTINGS.items() for part in ("--conf", "=".join(item))]
    python = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    return subprocess.run(
        [*command, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=seconds_max,
        cwd=folder,
        env={**os.environ, **python, "SPARK_LOCAL_IP": "127.0.0.1"},
    )
