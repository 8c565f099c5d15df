"""Spark sessions with the format `kproxy`, started as quickly as possible."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import re
import signal
import socket
import sys
import tempfile
import types
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kproxy.recording.files import reason
from kproxy.spark.java import (
    SHORT,
    Java,
    JavaHung,
    SparkError,
    archive_options,
    drop_archives,
    java,
    limited_start,
    quoted,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_QUIET = Path(__file__).with_name("log4j2.properties")
_DAEMON = "kproxy.spark.daemon"
_SHUFFLES = "spark.sql.shuffle.partitions"
_VERSION = re.compile(r"^spark-core_[\d.]+-(\d+\.\d+)")
_CONNECT_SECONDS_MAX = 10
_SERVERS = {"spark": ("master of Spark", 7077), "sc": ("server of Spark Connect", 15002)}
"""By the scheme of their URLs: what they are, and their usual port."""
_UNSET_PYTHON = "python3"
"""What workers run unless PYSPARK_PYTHON is set."""
_ALWAYS = {
    "spark.sql.session.timeZone": "UTC",
    # By default Spark writes times into Parquet as INT96: without a zone, and polars reads none.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}


def register(spark: SparkSession) -> None:
    """Register the format `kproxy` in a session. Needed only where kproxy is not installed, but
    sent with `--py-files`, and where the `python3` of the search path is another Python;
    registering again does no harm.

    Raises: SparkError, if the Python that Spark runs has no kproxy.
    """
    from kproxy.spark.source import KproxyDataSource

    runs_this_python = _use_this_python(spark)
    spark.dataSource.register(KproxyDataSource)
    if not runs_this_python:
        _check_python(spark)


def _use_this_python(spark: SparkSession) -> bool:
    """Let workers on this machine run this Python: the `python3` of the search path is another one
    if the virtual environment is not activated. Return whether they do."""
    from pyspark.errors import PySparkAttributeError

    try:
        context = spark.sparkContext
    except PySparkAttributeError:  # of Spark Connect: the server has workers
        return False
    if (context.master or "").startswith("local") and context.pythonExec == _UNSET_PYTHON:
        context.pythonExec = sys.executable
    return context.pythonExec == sys.executable


def _check_python(spark: SparkSession) -> None:
    """Check that the Python that Spark runs has kproxy: a query would fail with a stack trace.

    Raises: SparkError.
    """
    try:
        _ = spark.read.format("kproxy").load().schema
    except failures() as error:
        what = f"the Python that Spark runs cannot load kproxy ({first_line(error)})"
        how = "install it there, or let PYSPARK_PYTHON name a Python that has it"
        raise SparkError(f"{what}: {how} before Spark starts") from None


def session(
    master: str | None = None,
    config: Mapping[str, str] | None = None,
    log: Path | None = None,
    short: bool = False,
) -> SparkSession:
    """Return a session with the format `kproxy`: the active one, that of `spark-submit`, one on the
    server of Spark Connect that `master` or SPARK_REMOTE names (`sc://host:15002`), or a new one,
    by default on this machine.

    A new session has as many tasks as there are cores, times in UTC, no web page, and logs only
    errors, to the file `log` or to stderr. `config` are settings of Spark. With `short`, it is
    tuned for a job of less than a minute.

    Raises: SparkError, if Java or PySpark is missing or too old.
    """
    active = session_without_format(master, config or {}, log, short)
    register(active)
    return active


def session_without_format(
    master: str | None, config: Mapping[str, str], log: Path | None, short: bool
) -> SparkSession:
    """Return the session of `session`, sooner: registering a format starts a Python that looks for
    all of them.

    Raises: SparkError, if Java or PySpark is missing or too old.
    """
    _check_installed()
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    server = os.environ.get("SPARK_REMOTE") if master is None else master
    if server is not None and server.startswith("sc://"):
        _check_reachable(server)
        return _connected(server, _ALWAYS | dict(config))
    found = check()
    _check_reachable(master)
    with _stderr_to(log):
        if found is not None:
            return _start_retrying(found, master or "local[*]", short, config)
        active = _start(master, _ALWAYS | dict(config))
        context = active.sparkContext
        if not context.getConf().contains(_SHUFFLES):  # Spark's default is 200
            active.conf.set(_SHUFFLES, max(4, 2 * context.defaultParallelism))
        return active


def _start_retrying(
    found: Java, master: str, short: bool, config: Mapping[str, str]
) -> SparkSession:
    """Start a session; if the JVM does not start with the archives of classes, retry without."""
    try:
        return _start(master, settings(found, master, short) | dict(config))
    except SparkError as error:
        if isinstance(error, JavaHung) or not drop_archives():
            raise
        return _start(master, settings(found, master, short) | dict(config))


def _start(master: str | None, config: Mapping[str, str]) -> SparkSession:
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    builder = SparkSession.Builder().appName("kproxy")
    if master is not None:
        builder = builder.master(master)
        if master.startswith("local"):
            # Otherwise workers run the `python3` of the search path, which may be another.
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
            os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    for name, value in config.items():
        builder = builder.config(name, value)
    try:
        with limited_start():
            return builder.getOrCreate()
    except PySparkException as error:
        what = f"Spark did not start: {first_line(error)}"
        if "JAVA_GATEWAY_EXITED" in what:
            what += " It may lack memory, or files that it may open: see ulimit -a"
        raise SparkError(what) from None


def _connected(server: str, config: Mapping[str, str]) -> SparkSession:
    """Return a session on a server of Spark Connect."""
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    try:
        with warnings.catch_warnings(action="ignore"):  # of settings that only a new server takes
            builder: Any = SparkSession.Builder()
            return builder.remote(server).config(map=dict(config)).getOrCreate()
    except PySparkException as error:
        raise SparkError(f"{_without_settings(server)}: {first_line(error)}") from None


@contextlib.contextmanager
def signals_kept() -> Iterator[None]:
    """Keep PySpark from replacing the SIGINT handler when it starts a session: its handler calls
    the JVM while another call may be in progress. Also hide py4j's log of a connection that ends.
    """
    from pyspark import SparkContext

    module: Any = sys.modules[SparkContext.__module__]
    usual, level = module.signal, logging.root.manager.disable
    kept = types.SimpleNamespace(**vars(signal))
    kept.signal = lambda number, handler: signal.getsignal(number)
    module.signal = kept
    logging.disable()
    try:
        yield
    finally:
        module.signal = usual
        logging.disable(level)


def settings(java: Java, master: str, short: bool = False) -> dict[str, str]:
    """Return the default settings of a session.

    In a `short` one the JVM compiles quickly instead of well: it starts in two thirds of the time.
    """
    crash = f"{tempfile.gettempdir()}/kproxy-java-%p.log"  # not where the user happens to be
    options = [
        f"-Dlog4j2.configurationFile={_QUIET.as_uri()}",
        SHORT if short else "",
        quoted(f"-XX:ErrorFile={crash}"),
    ]
    found = _ALWAYS | {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        _SHUFFLES: str(max(4, 2 * (os.cpu_count() or 1))),
    }
    if "SPARK_HOME" not in os.environ:  # else it is another Spark than the one that is imported
        import pyspark

        options.append(archive_options(java, Path(pyspark.__file__).with_name("jars")))
        if master.startswith("local"):
            found["spark.python.daemon.module"] = _DAEMON
    return found | {"spark.driver.extraJavaOptions": " ".join(filter(None, options))}


def check() -> Java | None:
    """Check that Spark can start; return its Java, or None if `spark-submit` has started Spark
    already.

    Raises: SparkError.
    """
    _check_installed()
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        return None
    _check_home()
    return java()


def _check_installed() -> None:
    """Check that the packages of the extra `spark` are installed.

    Raises: SparkError.
    """
    for name in ("pyspark", "pyarrow"):
        try:
            importlib.import_module(name)
        except ImportError:
            raise SparkError(
                f"{name} is not installed: pip install 'kproxy-kafka[spark]'"
            ) from None


def _check_home() -> None:
    """Check that SPARK_HOME, if set, has the version of Spark that is imported."""
    home = os.environ.get("SPARK_HOME")
    if home is None:
        return
    if not Path(home, "bin", "spark-submit").exists():
        raise SparkError(f"SPARK_HOME is {home}, which has no bin/spark-submit: unset it")
    import pyspark

    names = (each.name for each in Path(home, "jars").glob("spark-core_*.jar"))
    version = next((found[1] for each in names if (found := _VERSION.search(each))), None)
    if version is not None and version != ".".join(pyspark.__version__.split(".")[:2]):
        what = f"SPARK_HOME is {home}, Spark {version}, but pyspark is {pyspark.__version__}"
        raise SparkError(f"{what}: unset it, or pip install 'pyspark=={version}.*'")


def _check_reachable(master: str | None) -> None:
    """Check that a standalone master, or a server of Spark Connect, can be reached: Spark would try
    for minutes."""
    shown = _without_settings(master or "")
    scheme, _, addresses = shown.partition("://")
    if scheme not in _SERVERS:
        return
    what, usual_port = _SERVERS[scheme]
    failed = ""
    for address in addresses.split(","):
        if scheme == "sc" and ":" not in address:
            address += f":{usual_port}"
        host, _, port = address.rpartition(":")
        try:
            with socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS_MAX):
                return
        except ValueError:
            example = f"{scheme}://host:{usual_port}"
            raise SparkError(f"{shown} is no URL of a {what}, as {example}") from None
        except OSError as error:
            failed = reason(error)
    raise SparkError(f"{shown}: no {what} can be reached there ({failed})")


def _without_settings(url: str) -> str:
    """Return the URL of a server without what follows its address, such as a token."""
    return "/".join(url.split("/")[:3])


def failures() -> tuple[type[Exception], ...]:
    """Return the exceptions that a failed Spark job raises."""
    from pyspark.errors import PySparkException

    try:
        from py4j.protocol import Py4JError
    except ImportError:  # a client of Spark Connect has no JVM
        return PySparkException, OSError
    return PySparkException, Py4JError, OSError


def first_line(error: BaseException) -> str:
    """Return the line of a Spark error that names the cause in a recording or the system."""
    text = str(error)
    # A traceback of Python ends with the error, one of Java with its cause.
    found = re.findall(
        r"^(?:Caused by: |: )?(?:[\w.]+\.)?(\w*Error|\w+Exception): (.+)$",
        text,
        re.MULTILINE,
    )
    of_recordings = [line for name, line in found if name == "RecordingError"]
    lines = (
        of_recordings or [line for _, line in found] or text.strip().splitlines() or [repr(error)]
    )
    return lines[-1].strip()


@contextlib.contextmanager
def _stderr_to(log: Path | None) -> Iterator[None]:
    """Redirect stderr to a file for a JVM that is started inside of this context."""
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
