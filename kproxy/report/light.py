"""The data of a report of recordings that this machine reads by itself, in one reading.

    paths ─▶ Exchange · ConnectionEnd, Note ─┬─▶ ReportPart ─▶ report_data ─▶ ReportData
                                             └─▶ Findings of each recording ─┘

Recordings in which faults were injected are read again, for what their clients tried after them.
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
from kproxy.recording.paths import Parts, by_recording, ids
from kproxy.report.bodies import bodies_of
from kproxy.report.data import ReportData
from kproxy.report.faults import FaultNotes, Tried, recoveries
from kproxy.report.part import ReportPart
from kproxy.report.summary import report_data, summarized
from kproxy.view.stream import Stream
from kproxy.why.finding import Finding
from kproxy.why.findings import Findings


def light_data(
    paths: Sequence[Path | str], on_progress: Callable[[int], None] = lambda done_bytes: None
) -> ReportData:
    """Return the data of a report of recordings. `on_progress` is called with the bytes read so
    far.

    Raises: RecordingError.
    """
    found_files = by_recording(paths)
    recordings = ids(found_files)
    part, faults = ReportPart(), FaultNotes()
    findings = {recording: Findings() for recording in recordings.values()}
    gaps = {recording: Gaps() for recording in findings}

    def on_note(note: Note) -> None:
        part.add_note(note)
        if stream.file in recordings:  # a copy of a file is not read, but told
            faults.add(note, recordings[stream.file])
            gaps[recordings[stream.file]].note(note)

    stream = Stream(paths, None, on_note, ends=True, on_progress=on_progress)
    for item in stream.shown():
        recording = recordings[stream.file]
        if isinstance(item, Exchange):
            part.add(item, bodies_of(item), recording, stream.file)
        for gap in gaps[recording].before(item):
            findings[recording].add(gap)
        findings[recording].add(item)
    rows = recoveries(faults, list(_tried(found_files, recordings, faults)))
    proved = list(_with_files(findings, recordings))
    return report_data(part, summarized(rows, len(rows)), [*map(str, paths)], proved=proved)


def _with_files(findings: dict[str, Findings], recordings: dict[str, str]) -> Iterator[Finding]:
    for recording, each in findings.items():
        files = tuple(file for file, name in recordings.items() if name == recording)
        yield from (attrs.evolve(finding, files=files) for finding in each.found())


def _tried(
    found: Sequence[Parts], recordings: dict[str, str], faults: FaultNotes
) -> Iterator[Tried]:
    hit = {each.recording for each in faults.hits}
    for each in found:
        recording = recordings[str(each.paths[0])]
        if recording in hit:
            exchanges = Stream(each.paths, ends=False).exchanges()
            asked = (exchange for exchange in exchanges if not exchange.is_copy)
            yield from (Tried.of(exchange, recording) for exchange in asked)
