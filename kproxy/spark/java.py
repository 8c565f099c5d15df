"""The Java that Spark runs on: its version, and a quick start.

Spark's own answer to a missing or old Java is a stack trace of the JVM, so Java is checked first.

A JVM spends most of its start on loading Spark's classes. When the first session ends, its JVM
writes an archive of them (AppCDS) to the user's cache, which makes that session a third slower.
Later JVMs map the archive, and start sooner.
In three alternated starts of a session on two busy cores it took 17.7, 14.8 and 17.4 s of CPU
without an archive, and 8.4, 10.1 and 10.5 s with one.
An archive fits one Java and one set of jars. A JVM ignores one that does not fit or is cut off.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import math
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs

from kproxy.recording.files import cache_folder, make_folder

JAVA_MIN = 17
SHORT = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""JVM options for jobs of less than a minute: compile quickly instead of well."""
VERSION_SECONDS_MAX = 30
START_SECONDS_MAX = 120
END_SECONDS_MAX = 10
_ARCHIVES_MAX = 3
"""Archives that are kept; each has 180 MB."""
_ARCHIVE_BYTES_MIN = 64 << 20
"""A smaller archive was cut off."""
_SETTLED_SECONDS = 10
"""Time without a write after which an archive is complete, or was cut off."""
_SILENT = "-Xlog:disable -XX:+DisplayVMOutputToStderr"
"""Without these options a JVM reports on stdout that an archive does not fit it, or the disk."""


class SparkError(Exception):
    """Spark cannot be started, or a job failed; the text is one line that says what to do."""

    exit_code = 1


@attrs.frozen
class Java:
    """A Java that Spark can run on."""

    program: str
    about: str
    """The output of `java -version`."""


def java() -> Java:
    """Return the Java that Spark would start.

    Raises: SparkError, if there is none, or it is too old.
    """
    program = _program()
    code, about = _version(program)
    found = re.search(r'version "(\d+)(?:\.(\d+))?', about)
    if code and about.strip():
        reason = ": ".join(map(str.strip, about.strip().splitlines()[:2]))
        raise SparkError(f"{program} does not start: {reason} (is it too old, or short of memory?)")
    if code or not found:
        raise SparkError(f"{program} is no Java that runs: install Java {JAVA_MIN}")
    version = int(found[2] or 0) if found[1] == "1" else int(found[1])
    if version < JAVA_MIN:
        what = f"Spark needs Java {JAVA_MIN} or newer, {program} is Java {version}"
        raise SparkError(f"{what}: install it, and let JAVA_HOME name its folder")
    return Java(program, about)


def _version(program: str) -> tuple[int, str]:
    """Ask a Java for its version; return its exit code and its output."""
    try:
        process = subprocess.Popen(
            [program, "-version"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, errors="replace", process_group=0,
        )  # fmt: skip
    except OSError as error:
        what = f"{program} does not run ({error.strerror})"
        raise SparkError(f"{what}: install Java {JAVA_MIN}") from None
    about = ""
    try:
        about, _ = process.communicate(timeout=VERSION_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        what = f"{program} hangs: it did not say its version within {VERSION_SECONDS_MAX} s"
        raise SparkError(f"{what}; let JAVA_HOME name the folder of a Java that runs") from None
    finally:
        if process.returncode is None:
            _end(process)
    return process.wait(), about


class JavaHung(SparkError):
    """A JVM did not start in time."""


class _JvmProcess(subprocess.Popen[bytes]):
    """Spark's JVM, with a limit for its start. PySpark waits for the JVM without a limit, but polls
    whether it has ended: so `poll` kills it when its time is up."""

    def __init__(self, started: list[_JvmProcess], *arguments: Any, **options: Any) -> None:
        self.deadline = time.monotonic() + START_SECONDS_MAX
        self.hung = False
        started.append(self)  # first: a signal may come before it has started
        super().__init__(*arguments, **options, process_group=0)

    def poll(self) -> int | None:
        """Return the exit code if the JVM has ended, or None; kill the JVM after its deadline."""
        if super().poll() is None and time.monotonic() > self.deadline:
            self.hung = True
            _end(self)
        return self.returncode


@contextlib.contextmanager
def limited_start() -> Iterator[None]:
    """Limit the time for the start of a JVM that PySpark starts inside of this context; kill the
    JVM if this process is interrupted or ended meanwhile.

    Raises: JavaHung.
    """
    gateway: Any = importlib.import_module("pyspark.java_gateway")
    started: list[_JvmProcess] = []
    usual, gateway.Popen = gateway.Popen, functools.partial(_JvmProcess, started)
    try:
        yield
    except Exception:
        if not any(each.hung for each in started):
            raise
        what = f"{_program()} hangs: it did not start Spark within {START_SECONDS_MAX} s"
        raise JavaHung(f"{what}; let JAVA_HOME name the folder of another Java") from None
    except BaseException:
        # The JVM would stay: it only ends with its connection, and PySpark has none yet.
        for each in started:
            _end(each)
        context: Any = importlib.import_module("pyspark").SparkContext
        if started:
            context._gateway = context._jvm = None  # they belong to the killed JVM
        raise
    finally:
        gateway.Popen = usual
        for each in started:
            each.deadline = math.inf


def stop_spark() -> None:
    """Send SIGTERM to the JVM that PySpark has started in this process, if any; do not wait."""
    process = _process()
    if process is not None and process.returncode is None:
        context: Any = importlib.import_module("pyspark").SparkContext._active_spark_context
        server = getattr(context, "_accumulatorServer", None)
        if server is not None:  # it would print that its connection has ended
            server.handle_error = lambda request, address: None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)


def wait_for_spark() -> None:
    """Wait until the JVM has ended after `stop_spark`; kill it if it hangs."""
    process = _process()
    if process is not None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_SECONDS_MAX)
        _end(process)


def _process() -> _JvmProcess | None:
    context: Any = importlib.import_module("pyspark").SparkContext
    process = getattr(context._gateway, "proc", None)  # spark-submit's is not ours
    return process if isinstance(process, _JvmProcess) else None


def _end(process: subprocess.Popen[Any]) -> None:
    """Kill the process group of a process, which is the first of its group."""
    if getattr(process, "pid", None) is None or process.returncode is not None:
        return  # it was not started, or has ended
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _program() -> str:
    home = os.environ.get("JAVA_HOME")
    if home:
        program = Path(home) / "bin" / "java"
        if not program.exists():
            raise SparkError(f"JAVA_HOME is {home}, which has no bin/java: correct or unset it")
        return str(program)
    program = shutil.which("java")
    if program is None:
        what = f"Spark needs Java {JAVA_MIN} or newer, and there is none"
        raise SparkError(
            f"{what}: install it (Debian: apt install openjdk-{JAVA_MIN}-jre-headless)"
        )
    return program


# ---------------------------------------------------------------- the archive of classes


def archive_options(java: Java, jars: Path, folder: Path | None = None) -> str:
    """Return the options with which a JVM uses the archive of these jars, or writes one when it
    ends; "" if there is no cache folder."""
    folder = cache_folder("spark") if folder is None else folder
    if folder is None or os.pathsep in str(folder):  # to a JVM it is a list of archives then
        return ""
    try:
        make_folder(folder)
        archive = folder / f"{_key(java, jars)}.jsa"
        if not archive.exists():
            _settle(folder)
        if archive.exists():
            os.utime(archive)
            _prune(folder)
            return f"{quoted(f'-XX:SharedArchiveFile={archive}')} {_SILENT}"
    except OSError:
        return ""
    begun = archive.with_suffix(f".{os.getpid()}.part")
    return f"{quoted(f'-XX:ArchiveClassesAtExit={begun}')} {_SILENT}"


def drop_archives(folder: Path | None = None) -> bool:
    """Remove the archives, since a JVM does not start with a damaged one; return whether there was
    any."""
    folder = cache_folder("spark") if folder is None else folder
    archives = [] if folder is None else list(folder.glob("*.jsa"))
    for archive in archives:
        archive.unlink(missing_ok=True)
    return bool(archives)


def quoted(option: str) -> str:
    """Return an option quoted for Spark, which splits a line of options."""
    if not re.search(r"[\s\"'\\]", option):
        return option
    return '"' + re.sub(r'(["\\])', r"\\\1", option) + '"'


def _key(java: Java, jars: Path) -> str:
    names = sorted((each.name, each.stat().st_size) for each in jars.iterdir())
    return hashlib.sha256(f"{java} {jars} {names}".encode()).hexdigest()[:16]


def _settle(folder: Path) -> None:
    """Give the archives of earlier sessions their final names; remove those that were cut off."""
    now = time.time()
    for begun in folder.glob("*.part"):
        with contextlib.suppress(FileNotFoundError):
            about = begun.stat()
            if now - about.st_mtime < _SETTLED_SECONDS:
                continue
            archive = folder / f"{begun.name.partition('.')[0]}.jsa"
            if about.st_size >= _ARCHIVE_BYTES_MIN and not archive.exists():
                begun.rename(archive)
            else:
                begun.unlink()


def _prune(folder: Path) -> None:
    """Remove all archives but those that were used last."""
    with contextlib.suppress(FileNotFoundError):
        last = sorted(folder.glob("*.jsa"), key=lambda each: each.stat().st_mtime, reverse=True)
        for old in last[_ARCHIVES_MAX:]:
            old.unlink(missing_ok=True)
