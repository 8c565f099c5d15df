"""Recordings of every format (tests/recording/formats) are in Spark as `show` shows them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from kproxy import recording
from kproxy.exchange.entries import Note
from tests.bed import needs

FORMATS = needs.REPOSITORY / "tests" / "recording" / "formats"


@pytest.mark.java
@pytest.mark.parametrize("version", [each.name for each in sorted(FORMATS.iterdir())])
def test_all_that_was_recorded_is_in_spark(spark: Any, version: str) -> None:
    folder = FORMATS / version
    shown = Counter((each.api, each.client_id) for each in recording.read(folder))
    read = spark.read.format("kproxy")
    exchanges = read.load(str(folder)).select("api", "client_id").collect()
    assert Counter(map(tuple, exchanges)) == shown
    notes = [each.body for each in recording.entries(folder) if isinstance(each, Note)]
    events = read.option("view", "events").load(str(folder)).where("event = 'fault'").collect()
    hits = Counter(body["rule"] for body in notes if body["event"] == "fault")
    assert Counter(row["fault"] for row in events) == hits != Counter()
