"""The format `kproxy` in sessions whose workers may run another Python than this one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kproxy.analyze.making import cores
from kproxy.spark import SparkError, register
from tests.spark.conftest import DEMO

pytestmark = pytest.mark.java


@pytest.fixture
def context(spark: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The context of the session, which a test may change."""
    with monkeypatch.context() as changed:
        changed.setattr(spark.sparkContext, "pythonExec", "python3")  # what is set back
        yield spark.sparkContext
    register(spark)


def test_workers_run_this_python_where_the_search_path_has_another(
    spark: Any, context: Any
) -> None:
    context.pythonExec = "python3"
    register(spark)
    assert context.pythonExec == sys.executable
    assert spark.read.format("kproxy").load(str(DEMO)).count() == 34


def test_a_python_without_kproxy_is_one_line(spark: Any, context: Any, tmp_path: Path) -> None:
    other = tmp_path / "python3"
    other.write_text(f'#!/bin/sh\ncd /; exec env -u PYTHONPATH {sys.executable} -S "$@"\n')
    other.chmod(0o700)
    assert subprocess.run([other, "-c", "import kproxy"], capture_output=True).returncode == 1
    context.pythonExec = str(other)
    with pytest.raises(SparkError) as raised:
        register(spark)
    what = str(raised.value)
    assert what.startswith("the Python that Spark runs cannot load kproxy (") and "\n" not in what
    assert "let PYSPARK_PYTHON name a Python that has it before Spark starts" in what


def test_the_cores_of_a_session_without_a_context_are_counted(spark: Any) -> None:
    from pyspark.errors import PySparkAttributeError

    class OverConnect:
        @property
        def sparkContext(self) -> Any:
            raise PySparkAttributeError("JVM_ATTRIBUTE_NOT_SUPPORTED")

        def __getattr__(self, name: str) -> Any:
            return getattr(spark, name)

    connected: Any = OverConnect()
    assert cores(connected) == cores(spark) == 2
