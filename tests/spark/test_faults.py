"""The table of faults: as the report says, however a recording is cut, and what brokers took."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest

from kproxy import recording
from kproxy.analyze import faults
from kproxy.exchange.exchange import Exchange
from kproxy.history.ref import client_of
from kproxy.look.report.faults import FAULT_SECONDS
from kproxy.look.report.light import light_data
from kproxy.tables import splits
from tests.bed import needs

FAULTED = needs.REPOSITORY / "tests" / "recording" / "formats" / "3" / "faults.mcap"


def rows(cut_bytes: int, path: Path = FAULTED) -> list[dict[str, Any]]:
    return [*faults.rows(splits.stretches(splits.find([str(path)]), cut_bytes))]


def test_rows_are_those_of_the_report_however_a_recording_is_cut() -> None:
    found = rows(1 << 30)
    assert rows(1) == found and len(found) >= 9
    told = light_data([FAULTED]).faults
    assert [{name: row[name] for name in told[0] if name in row} for row in found] == [
        {name: row[name] for name in row if name in found[0]} for row in told
    ]


def mean_ms(exchanges: list[Exchange]) -> Any:
    times = [each.durations.service_us for each in exchanges if each.durations.service_us >= 0]
    return pytest.approx(sum(times) / len(times) / 1000, abs=0.001) if times else None


def test_what_brokers_took_before_and_after_a_hit() -> None:
    exchanges = [*recording.read([FAULTED])]
    found = rows(1 << 30)
    assert sum(row["service_ms_before"] is not None for row in found) > 3
    for row in found:
        (hit,) = (each for each in exchanges if each.number == row["number"])
        place = hit.time_ns, hit.number
        near = [
            each for each in exchanges
            if client_of(each) == client_of(hit)
            and abs(each.time_ns // 1000 - row["us"]) <= FAULT_SECONDS * 1_000_000
        ]  # fmt: skip
        before = [each for each in near if (each.time_ns, each.number) < place]
        after = [each for each in near if (each.time_ns, each.number) > place]
        assert row["service_ms_before"] == mean_ms(before), row["number"]
        assert row["service_ms_after"] == mean_ms(after), row["number"]
    services = faults.Services()
    services.add(attrs.evolve(hit))
    assert services.around(-1, 0) == (None, None), "it is not in the recording"
