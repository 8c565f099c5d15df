"""The axes of a report: round labels, and no time between recordings."""

from __future__ import annotations

import pytest

from kproxy.look.report.data import FileSpan
from kproxy.look.report.slots import Slots
from kproxy.look.report.timeline import timeline

SECOND_US = 1_000_000
DAY_US = 86_400 * SECOND_US


def span(start_us: int, seconds: int, name: str = "a") -> FileSpan:
    """What a file covers."""
    return FileSpan(f"{name}.mcap", name, start_us, start_us + seconds * SECOND_US, 1, 99)


def test_days_between_recordings_take_no_room() -> None:
    later = 3 * DAY_US
    x = timeline([span(0, 60), span(later, 30, "b")], 0, later / 1000, 1000)
    assert x.at(0) == 0 and x.at(later + 30 * SECOND_US) == pytest.approx(1)
    assert 0.6 < x.at(60 * SECOND_US) < x.at(later) < 0.7, "each has its share"
    assert x.at(DAY_US) == x.at(60 * SECOND_US), "nothing is there"
    ((place, text),) = x.breaks
    assert x.at(60 * SECOND_US) < place < x.at(later) and text == "3 d later"
    assert x.apart(0, later) and not x.apart(0, 59 * SECOND_US)
    assert (later, "04 Jan 00:00:00") in x.ticks


def test_a_short_recording_beside_a_long_one_is_seen() -> None:
    x = timeline([span(0, 86_400), span(5 * DAY_US, 1, "b")], 0, 5 * DAY_US / 1000, 1000)
    assert x.at(5 * DAY_US + SECOND_US) - x.at(5 * DAY_US) > 0.05


def test_slots_widen_until_they_are_few() -> None:
    one, other = Slots(10), Slots(10)
    for second in range(8):
        one.at(second * SECOND_US)["a",] += 1
    assert one.width_ms == 10, "time without counts takes no slots"
    for second in range(8, 40):
        other.at(second * SECOND_US)["a",] += 1
    one.merge(other)
    assert (one.width_ms, one.counts[0]["a",]) == (5000, 5)
    assert sum(counts["a",] for counts in one.counts.values()) == 40
