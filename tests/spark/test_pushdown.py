"""Queries that share a frame have their own rows, whether or not Spark pushes filters down."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from kproxy import recording
from tests.spark.conftest import DEMO

pytestmark = pytest.mark.java

_SETTING = "spark.sql.python.filterPushdown.enabled"


@pytest.mark.parametrize(
    ("pushed_down", "wanted"),
    [("true", "api:Fetch,Produce"), ("false", None)],
)
def test_queries_that_share_a_frame_have_their_own_rows(
    spark: Any, pushed_down: str, wanted: str | None
) -> None:
    options = {} if wanted is None else {"filter": wanted}
    expected = {
        api: sorted(each.number for each in recording.read(DEMO, f"api:{api}"))
        for api in ("Fetch", "Produce")
    }
    assert all(expected.values())
    spark.conf.set(_SETTING, pushed_down)
    try:
        frame = spark.read.format("kproxy").options(**options).load(str(DEMO))
        each = {api: frame.where(f"api = '{api}'").select("number") for api in expected}
        both = each["Fetch"].union(each["Produce"])
        found = sorted(row.number for row in both.collect())
        assert found == sorted(itertools.chain.from_iterable(expected.values()))
        for api, numbers in expected.items():
            assert sorted(row.number for row in each[api].collect()) == numbers
        every = list(recording.read(DEMO) if wanted is None else recording.read(DEMO, wanted))
        assert frame.count() == len(every)
    finally:
        spark.conf.unset(_SETTING)
