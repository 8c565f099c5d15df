"""What the tests of Spark share: a session of Spark, an analysis that it made, and one that the
command made."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import pytest

from tests.bed import needs
from tests.spark import command
from tests.versions import ALL

if TYPE_CHECKING:
    from kproxy.analyze.job import Analysis

DEMO = needs.REPOSITORY / "recordings" / "demo.mcap"
FORMATS = needs.REPOSITORY / "tests" / "recording" / "formats" / "3"
"""Recordings of many clients; two of them are torn."""


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A session on two cores, as users start it, but that its JVM makes no archive of its classes,
    which takes longer than most tests."""
    needs.program("java")
    from kproxy import spark

    folder = tmp_path_factory.mktemp("spark")
    config = {"spark.sql.warehouse.dir": str(folder / "warehouse")}
    config["spark.driver.extraJavaOptions"] = spark.java.SHORT
    # For so few rows compiling a query takes longer than interpreting it.
    config |= {"spark.sql.shuffle.partitions": "1", "spark.sql.codegen.wholeStage": "false"}
    config["spark.sql.adaptive.enabled"] = "false"  # nor does planning it anew pay
    with pytest.MonkeyPatch.context() as patient:
        patient.setattr(spark.java, "START_SECONDS_MAX", 600)
        session = spark.session("local[2]", config, folder / "spark.log", short=True)
    yield session
    session.stop()


@attrs.frozen
class Commanded:
    """What the command made of recordings, with another as its baseline."""

    folder: Path
    recordings: Path
    baseline: Path
    said: subprocess.CompletedProcess[str]


@pytest.fixture(scope="session")
def analysis(
    request: pytest.FixtureRequest, broken: Path, tmp_path_factory: pytest.TempPathFactory
) -> Commanded:
    """What the command makes of real traffic, with a torn recording as its baseline: in the session
    of the tests, or, where all is tested, in a process and a JVM of its own."""
    needs.program("java")
    above = tmp_path_factory.mktemp("analysis")
    above.chmod(0o755)
    baseline = above.with_name("baseline.mcap")
    whole = DEMO.read_bytes()
    baseline.write_bytes(whole[: len(whole) * 2 // 3])
    out = above / "new" / "out"
    given = str(broken), "--baseline", str(baseline), "--out", str(out)
    if ALL:
        said = command.run(*given, umask=0o022)
    else:
        said = command.run_in(request.getfixturevalue("spark"), *given, umask=0o022)
    return Commanded(out, broken, baseline, said)


@attrs.frozen
class Captures:
    """A folder of recordings, some of them torn, empty, or copies; and what the job makes of it."""

    folder: Path
    made: Analysis
    found: Session
    """What the session had before the job, and """
    left: Session
    """what it has afterwards."""


Session = tuple[set[str], dict[str, str], int]
"""The names of its views, its settings, how many rows one of them has."""


@pytest.fixture(scope="session")
def captures(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Captures:
    """What the session makes of recordings of every kind."""
    from kproxy.analyze.job import analyze
    from kproxy.analyze.making import TableMaker
    from kproxy.analyze.place import Place
    from kproxy.tables.splits import find

    above = tmp_path_factory.mktemp("captures")
    folder = above / "captures"
    folder.mkdir()
    for path in FORMATS.glob("*.mcap"):
        shutil.copy(path, folder)
    whole = DEMO.read_bytes()
    (folder / "whole.mcap").write_bytes(whole)
    (folder / "copy.mcap").write_bytes(whole[: len(whole) // 2])
    (folder / "empty.mcap").touch()

    def looked() -> Session:
        views = {each.name for each in spark.catalog.listTables()}
        return views, dict(spark.conf.getAll), spark.table("exchanges").count()

    spark.range(3).createOrReplaceTempView("exchanges")
    found = looked()
    made = analyze(TableMaker(spark), find([str(folder)]), Place(above / "out"))
    left = looked()
    spark.catalog.dropTempView("exchanges")
    return Captures(folder, made, found, left)
