"""One report, of all files together or of one after the other."""

from __future__ import annotations

from pathlib import Path

from kproxy.report.part import CountedExchange, ReportPart
from kproxy.view.stream import Stream
from tests.bed import needs

FORMATS = needs.REPOSITORY / "tests" / "recording" / "formats" / "2"


def test_files_one_by_one_give_the_report_of_all(tmp_path: Path) -> None:
    def part(*paths: Path) -> ReportPart:
        found = ReportPart()
        for path in paths:
            counted = map(CountedExchange.of, Stream([path]).exchanges())
            found.add(list(counted), path.stem, str(path))
        return found

    paths = [FORMATS / "java-4.4.0.mcap", FORMATS / "kafkajs.mcap", FORMATS / "faults.mcap"]
    together, backwards = part(*paths), ReportPart()
    for path in reversed(paths):
        backwards.merge(part(path))
    assert backwards.slots.counts == together.slots.counts
    assert backwards.phases.width_ms == together.phases.width_ms
    for name in ("clients", "connections", "records", "log_ends", "files", "ended_by"):
        assert getattr(backwards, name) == getattr(together, name), name
    assert [each[:3] for each in backwards.slowest] == [each[:3] for each in together.slowest]
