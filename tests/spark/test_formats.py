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
def test_all_that_was_recorded_is_in_spark(spark: Any) -> None:
    folders = sorted(FORMATS.iterdir())
    shown = Counter((each.api, each.client_id) for each in recording.read(folders))
    read = spark.read.format("kproxy")
    exchanges = read.load([*map(str, folders)]).select("api", "client_id").collect()
    assert Counter(map(tuple, exchanges)) == shown
    notes = [each.body for each in recording.entries(folders) if isinstance(each, Note)]
    events = read.option("view", "events").load([*map(str, folders)]).where("event = 'fault'")
    hits = Counter(body["rule"] for body in notes if body["event"] == "fault")
    assert Counter(row["fault"] for row in events.collect()) == hits != Counter()
