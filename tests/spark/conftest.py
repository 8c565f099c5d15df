"""What the tests of Spark share: one session of Spark, and recordings of real traffic."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.bed import needs
from tests.bed.kafka import Kafka
from tests.spark import traffic


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
def broken(mock_brokers: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a rotated recording of several clients and faults."""
    return traffic.broken(mock_brokers, tmp_path_factory.mktemp("broken"), "spark-")


@pytest.fixture(scope="session")
def redacted(kafka_431: Kafka, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording of a client that logs in."""
    folder = tmp_path_factory.mktemp("redacted")
    return traffic.redacted(kafka_431.sasl_address, folder, "spark-")


@pytest.fixture(scope="session")
def analysis(
    spark: Any, broken: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[dict[str, Any]]]:
    """What the job makes of real traffic, with another recording as its baseline."""
    from kproxy.analyze.job import analyze
    from kproxy.spark import plan

    folder = tmp_path_factory.mktemp("analysis") / "out"
    demo = plan.find([str(needs.REPOSITORY / "recordings" / "demo.mcap")])
    return folder, analyze(spark, plan.find([str(broken)]), folder, demo)[1]
