"""The data of a report of recordings that this machine reads by itself, in one reading.

    paths ─▶ Exchange · ConnectionEnd, Note ─┬─▶ ReportPart ─▶ report_data ─▶ ReportData
                                             └─▶ Findings of each recording ─┘

One process reads: findings need exchanges in their order, and share with the counts what is found
in the bodies, which takes most of the time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import attrs

from kproxy.exchange.entries import Note
from kproxy.exchange.exchange import Exchange
from kproxy.history.items import Gaps
from kproxy.look.lines.stream import Stream
from kproxy.look.report.data import ReportData
from kproxy.look.report.faults import Recoveries
from kproxy.look.report.part import ReportPart
from kproxy.look.report.summary import report_data, summarized
from kproxy.look.why.finding import Finding
from kproxy.look.why.findings import Findings
from kproxy.recording.paths import by_recording, ids


def light_data(
    paths: Sequence[Path | str],
    on_progress: Callable[[int], None] = lambda done_bytes: None,
) -> ReportData:
    """Return the data of a report of recordings. `on_progress` is called with the bytes read so
    far.

    Raises: RecordingError.
    """
    recordings = ids(by_recording(paths))
    part = ReportPart()
    findings = {recording: Findings() for recording in recordings.values()}
    recoveries = {recording: Recoveries(recording) for recording in findings}
    gaps = {recording: Gaps() for recording in findings}

    def on_note(note: Note) -> None:
        part.add_note(note, recordings.get(stream.file, stream.file))
        if stream.file in recordings:  # a copy of a file is not read, but told
            recoveries[recordings[stream.file]].note(note)
            gaps[recordings[stream.file]].note(note)

    stream = Stream(paths, None, on_note, ends=True, on_progress=on_progress)
    for item in stream.shown():
        recording = recordings[stream.file]
        for gap in gaps[recording].before(item):
            findings[recording].add(gap)
        found = findings[recording].add(item)
        if isinstance(item, Exchange) and found is not None:
            part.add(item, found, recording, stream.file)
            recoveries[recording].add(item)
    rows = [row for each in recoveries.values() for _, row in each.rows()]
    rows.sort(key=lambda row: (row["us"], row["number"]))
    proved = list(_with_files(findings, recordings))
    return report_data(part, summarized(rows, len(rows)), [*map(str, paths)], proved=proved)


def _with_files(findings: dict[str, Findings], recordings: dict[str, str]) -> Iterator[Finding]:
    for recording, each in findings.items():
        files = tuple(file for file, name in recordings.items() if name == recording)
        yield from (attrs.evolve(finding, files=files) for finding in each.found())
