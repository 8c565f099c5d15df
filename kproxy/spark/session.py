"""Sessions of Spark that know recordings, and what can keep one from starting, in one line.

Spark's own answer to a missing or old Java is a stack trace of the JVM, so Java is looked at first.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_MIN = 17
_JAVA_SECONDS_MAX = 30
SHORT = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_QUIET = Path(__file__).with_name("log4j2.properties")


class SparkError(Exception):
    """Spark cannot be started, or could not do it; the text is one line that says what to do."""


def register(spark: SparkSession) -> None:
    """Tell a session of the format `kproxy`: needed where kproxy was not installed, but sent along
    with `--py-files`. Twice does no harm."""
    from kproxy.spark.source import KproxyDataSource

    spark.dataSource.register(KproxyDataSource)


def session(
    master: str | None = None,
    config: Mapping[str, str] | None = None,
    log: Path | None = None,
    short: bool = False,
) -> SparkSession:
    """Return a session that knows recordings: the one that there is, or a new one on this machine.

    A new one has as many tasks as there are cores, times in UTC, no web page, and logs errors only,
    with `log` into that file instead of stderr. `config` are settings of Spark. A
    `short` one is for a job of less than a minute.

    Raises: SparkError, when Java or PySpark is missing or too old.
    """
    check()
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    if active is None:
        with _stderr_to(log):
            active = _started(master or "local[*]", settings(short) | dict(config or {}))
    register(active)
    return active


def _started(master: str, config: Mapping[str, str]) -> SparkSession:
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    if master.startswith("local"):
        # Workers are the `python3` of the search path otherwise, which may be another.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.Builder().master(master).appName("kproxy")
    for name, value in config.items():
        builder = builder.config(name, value)
    try:
        return builder.getOrCreate()
    except PySparkException as error:
        raise SparkError(f"Spark did not start: {first_line(error)}") from None


def settings(short: bool = False) -> dict[str, str]:
    """Return what a session of kproxy sets unless it is told otherwise.

    In a `short` one the JVM compiles quickly instead of well: it begins in two thirds of the time.
    """
    quiet = f"-Dlog4j2.configurationFile={_QUIET.as_uri()}"
    return {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(max(4, 2 * (os.cpu_count() or 1))),
        "spark.driver.extraJavaOptions": f"{quiet} {SHORT}" if short else quiet,
    }


def check() -> None:
    """Check that Spark can start.

    Raises: SparkError.
    """
    for name in ("pyspark", "pyarrow"):
        try:
            importlib.import_module(name)
        except ImportError:
            raise SparkError(f"{name} is not installed: pip install 'kproxy[spark]'") from None
    java = _java()
    try:
        done = subprocess.run(
            [java, "-version"],
            check=False,
            capture_output=True,
            text=True,
            timeout=_JAVA_SECONDS_MAX,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SparkError(f"{java} does not run ({error}): install Java {JAVA_MIN}") from None
    found = re.search(r'version "(\d+)(?:\.(\d+))?', done.stderr + done.stdout)
    if done.returncode or not found:
        raise SparkError(f"{java} is no Java that runs: install Java {JAVA_MIN}")
    version = int(found[2] or 0) if found[1] == "1" else int(found[1])
    if version < JAVA_MIN:
        what = f"Spark needs Java {JAVA_MIN} or newer, {java} is Java {version}"
        raise SparkError(f"{what}: install it, and let JAVA_HOME name its folder")


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    if home:
        java = Path(home) / "bin" / "java"
        if not java.exists():
            raise SparkError(f"JAVA_HOME is {home}, which has no bin/java: correct or unset it")
        return str(java)
    java = shutil.which("java")
    if java is None:
        what = f"Spark needs Java {JAVA_MIN} or newer, and there is none"
        raise SparkError(
            f"{what}: install it (Debian: apt install openjdk-{JAVA_MIN}-jre-headless)"
        )
    return java


def first_line(error: BaseException) -> str:
    """Return what an error of Spark says that came from a recording or the system, in one line."""
    text = str(error)
    # A task's Python traceback ends with the error itself, behind the name of its class.
    found = re.findall(
        r"^(?:[\w.]+\.)?(RecordingError|ValueError|OSError|\w*Error|\w+Exception): (.+)$",
        text,
        re.MULTILINE,
    )
    known = [line for name, line in found if name == "RecordingError"]
    lines = known or [line for _, line in found] or text.strip().splitlines() or [repr(error)]
    return lines[-1].strip()


@contextlib.contextmanager
def _stderr_to(log: Path | None) -> Iterator[None]:
    """Have the JVM that is started meanwhile write its stderr into a file."""
    if log is None:
        yield
        return
    sys.stderr.flush()
    kept = os.dup(2)
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.dup2(fd, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(fd)
