"""One report, whether one machine makes it or tasks of Spark do."""

from __future__ import annotations

import pytest

from kproxy.look.report.light import light_data
from tests.look.report.making import told
from tests.spark.conftest import Captures


@pytest.mark.java
def test_spark_and_one_machine_give_one_report(captures: Captures) -> None:
    ours, sparks = told(light_data([captures.folder])), told(captures.made.data)
    for name, value in ours.items():
        assert value == sparks[name], name
    assert len(ours["faults"]) >= 9 and ours["totals"]["exchanges"] > 500
    assert {row["recovered_ms"] for row in ours["faults"]} > {0.0}
