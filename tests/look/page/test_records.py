"""The records of a topic on the page: how much of them it gets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kproxy.look.page import shown
from kproxy.look.page.records import records_of
from kproxy.recording import read
from kproxy.wire.protocol import records
from kproxy.wire.protocol.record_batch import Record
from tests.exchange.bodies import produce_request
from tests.exchange.making import request
from tests.look.lines.test_scan import recorded


@pytest.fixture
def bloated(tmp_path: Path) -> Path:
    """A small recording of records that are large: they are compressed."""
    headers = [(f"{number:03}" + "n" * 1000, b"v" * 2500) for number in range(400)]
    made = [Record(number, 0, b"k", b"v", headers) for number in range(5)]
    data = records.encode_batch(made, compression="zstd")
    path = recorded(tmp_path, request("Produce", 9, produce_request({0: data}), 7))
    assert path.stat().st_size < 100_000
    return path


def test_a_small_recording_makes_no_large_answer(
    bloated: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = records_of([bloated], None, "orders")
    assert len(found["records"]) == 5 and not found["more"]
    for each in found["records"]:
        name, value = each["headers"][0]
        assert name.startswith("000nnn") and name.endswith("…") and value.endswith("…")
        assert each["headers"][-1] == ["…", "350 more headers: kproxy show --records has them"]
    assert len(json.dumps(found)) < 5 * 140_000
    monkeypatch.setattr("kproxy.look.page.records.CHARACTERS_MAX", 200_000)
    found = records_of([bloated], None, "orders")
    assert found["more"] and 0 < len(found["records"]) < 4


def test_the_fields_of_an_exchange_are_as_many_as_a_browser_can_take(
    bloated: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shown, "FIELD_CHARACTERS_MAX", 30_000)
    (exchange,) = read(bloated)
    asked, _ = shown.whole(exchange)["halves"]
    assert "kproxy show --frame has them all" in asked["fields"][-1]["text"]
    assert len(json.dumps(asked)) < 10_000_000
