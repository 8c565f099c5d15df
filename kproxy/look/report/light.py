"""The data of a report of recordings that this machine reads by itself, in one reading.

    paths ─▶ Exchange · ConnectionEnd, Note ─┬─▶ ReportPart ─▶ report_data ─▶ ReportData
                                             └─▶ Findings, Series of each ───┘

One process reads: findings need exchanges in their order, and share with the counts what is found
in the bodies, which takes most of the time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import attrs

from kproxy.exchange.entries import Note
from kproxy.exchange.exchange import Exchange
from kproxy.history.items import Gaps
from kproxy.look.lines.stream import Stream
from kproxy.look.pictures.drawing import Picture
from kproxy.look.pictures.series import Series
from kproxy.look.pictures.subjects import Subject, pictures
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
    named = by_recording(paths)
    recordings = ids(named)
    part = ReportPart()
    findings = {recording: Findings() for recording in recordings.values()}
    series = {recordings[str(each.paths[0])]: Series.of(each.head) for each in named}
    recoveries = {recording: Recoveries(recording) for recording in findings}
    gaps = {recording: Gaps() for recording in findings}

    def on_note(note: Note) -> None:
        part.add_note(note, recordings.get(stream.file, stream.file))
        if stream.file in recordings:  # a copy of a file is not read, but told
            recoveries[recordings[stream.file]].note(note)
            gaps[recordings[stream.file]].note(note)
            series[recordings[stream.file]].note(note)

    stream = Stream(paths, None, on_note, ends=True, on_progress=on_progress)
    for item in stream.shown():
        recording = recordings[stream.file]
        own = findings[recording]
        for gap in gaps[recording].before(item):
            series[recording].add(own.history, gap, own.add(gap))
        found = own.add(item)
        series[recording].add(own.history, item, found)
        if isinstance(item, Exchange) and found is not None:
            part.add(item, found, recording, stream.file)
            recoveries[recording].add(item)
    rows = [row for each in recoveries.values() for _, row in each.rows()]
    rows.sort(key=lambda row: (row["us"], row["number"]))
    proved: list[Finding] = []
    drawn: dict[tuple[tuple[str, ...], Subject], Picture] = {}
    for recording, each in findings.items():
        files = tuple(file for file, name in recordings.items() if name == recording)
        found = each.found()
        proved += (attrs.evolve(finding, files=files) for finding in found)
        for subject, picture in pictures(series[recording], found).items():
            drawn[files, subject] = picture
    data = report_data(part, summarized(rows, len(rows)), [*map(str, paths)], proved=proved)
    data.pictures = drawn
    return data
