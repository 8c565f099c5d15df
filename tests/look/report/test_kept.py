"""A part of a report is read back as it was, and nothing else is."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from kproxy.exchange.merging import merge
from kproxy.history.events import taken
from kproxy.look.lines.stream import Stream
from kproxy.look.report.kept import from_json, to_json
from kproxy.look.report.page import page
from kproxy.look.report.part import ReportPart
from kproxy.look.report.summary import report_data, summarized
from tests.bed import needs

FORMATS = needs.REPOSITORY / "tests" / "recording" / "formats" / "3"
PATHS = [FORMATS / name for name in ("java-4.4.0.mcap", "faults.mcap", "torn.mcap")]


def part(*paths: Path) -> ReportPart:
    found = ReportPart()
    for path in paths:
        on_note = partial(found.add_note, recording=path.stem)
        for each in Stream([path], None, on_note).exchanges():
            found.add(each, taken(each), path.stem, str(path))
    return found


def shown(found: ReportPart) -> str:
    return page(report_data(found, summarized([], 0), ["a"]), ["a"], (), "analyze")


def test_a_report_goes_on_where_its_part_was_kept() -> None:
    together = part(*PATHS)
    kept = part()
    for path in PATHS:
        merge(kept, part(path))
        kept = from_json(to_json(kept))
    assert (
        kept.counts.clients
        and kept.groups
        and kept.counts.failures
        and kept.slowest
        and kept.commits
    )
    assert shown(kept) == shown(together)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "null",
        "[]",
        '["set", []]',
        '["ReportPart"]',
        '["ReportPart", {"shells": 1}]',
        '["ReportPart", {"apis": ["system", "id"]}]',
        '["Slots", {"slots_max": 1}]',
        '["datetime", "soon"]',
        "[" * 100_000,
    ],
)
def test_what_is_no_part_is_said(text: str) -> None:
    with pytest.raises(ValueError):
        from_json(text)
