"""The report of a replay stays small, whatever a client does."""

from __future__ import annotations

from kproxy.replay.report import FINDINGS_MAX, ClientDifference, Report


def test_findings_are_told_at_once_and_each_once() -> None:
    told: list[ClientDifference] = []
    report = Report(told.append)
    report.add("not recorded", "a record", "record again")
    report.add("not recorded", "a record", "record again")
    assert report.findings == told
    assert str(told[0]) == "a record; record again"
    assert report.count == 2


def test_of_very_many_only_the_first_are_kept() -> None:
    told: list[ClientDifference] = []
    report = Report(told.append)
    for number in range(3 * FINDINGS_MAX):
        assert report.full == (number >= FINDINGS_MAX)
        report.add("not recorded", f"record {number}")
    assert report.findings == told
    assert len(told) == FINDINGS_MAX
    assert report.count == 3 * FINDINGS_MAX
