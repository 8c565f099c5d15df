"""What the tests of Spark share: one session of Spark, and an analysis."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.bed import needs


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A session on two cores, as users start it."""
    needs.program("java")
    from kproxy import spark

    folder = tmp_path_factory.mktemp("spark")
    config = {"spark.sql.warehouse.dir": str(folder / "warehouse")}
    session = spark.session("local[2]", config, folder / "spark.log", short=True)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def analysis(
    spark: Any, broken: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[dict[str, Any]]]:
    """What the job makes of real traffic, with another recording as its baseline."""
    from kproxy.analyze.job import analyze
    from kproxy.tables.splits import find

    folder = tmp_path_factory.mktemp("analysis") / "out"
    baseline = find([str(needs.REPOSITORY / "recordings" / "demo.mcap")])
    return folder, analyze(spark, find([str(broken)]), folder, baseline)[1]
