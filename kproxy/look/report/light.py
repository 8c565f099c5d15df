"""The data of a report of recordings that this machine reads by itself, in one reading.

    paths ─▶ Exchange · ConnectionEnd, Note ─┬─▶ ReportPart ─▶ report_data ─▶ ReportData
                                             └─▶ Findings, Series of each ───┘

One process reads: findings need exchanges in their order, and share with the counts what is found
in the bodies, which takes most of the time. Whoever reads a recording as it grows may ask for the
data at any time: nothing is read again for it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import attrs

from kproxy.exchange.endings import ConnectionEnd
from kproxy.exchange.entries import Note
from kproxy.exchange.exchange import Exchange
from kproxy.exchange.words.wording import count
from kproxy.history.history import ExchangeRows, History
from kproxy.history.items import Gaps, Item
from kproxy.look.lines.stream import Stream
from kproxy.look.pictures.drawing import Picture
from kproxy.look.pictures.series import Series
from kproxy.look.pictures.subjects import pictures
from kproxy.look.report.data import ReportData
from kproxy.look.report.faults import Recoveries
from kproxy.look.report.part import ReportPart
from kproxy.look.report.summary import clusters_of, report_data, summarized
from kproxy.look.why.finding import NUMBERED, Finding, Subject
from kproxy.look.why.findings import Findings
from kproxy.recording.following import Follow
from kproxy.recording.notices import on_times
from kproxy.recording.paths import ids, names


def light_data(
    paths: Sequence[Path | str],
    on_progress: Callable[[int], None] = lambda done_bytes: None,
    pictured: bool = False,
    charted: bool = True,
) -> ReportData:
    """Return the data of a report of recordings, with pictures of what happened if it is
    `pictured`, and with what findings do not need if it is `charted`. `on_progress` is called with
    the bytes read so far.

    Raises: RecordingError.
    """
    reading = ReportReading(paths, on_progress, pictured, charted)
    for _ in reading.read():
        pass
    return reading.data()


_ALIKE_MAX = 3
"""Recordings of which findings are told that are alike; more are only counted."""


@attrs.frozen(eq=False)
class _RecordingReading:
    """What is followed of one recording."""

    findings: Findings
    recoveries: Recoveries
    series: Series | None
    """What pictures are drawn from."""
    gaps: Gaps = attrs.field(factory=Gaps, init=False)

    def note(self, note: Note) -> None:
        """Take a note of the recording."""
        self.recoveries.note(note)
        self.gaps.note(note)
        self.findings.history.noted.note(note)
        if self.series is not None:
            self.series.note(note)

    def add(self, item: Exchange | ConnectionEnd) -> ExchangeRows | None:
        """Take an item, behind the gaps before it."""
        for gap in self.gaps.before(item):
            self._add(gap)
        return self._add(item)

    def _add(self, item: Item) -> ExchangeRows | None:
        found = self.findings.add(item)
        if self.series is not None:
            self.series.add(self.findings.history, item, found)
        return found


def _goes_on(found: Finding, later: list[History]) -> bool:
    """Return whether one of these histories has what a finding is about, and tells how it ends."""
    if found.group is None:
        return any(found.topic in each.logs.topics for each in later)
    return any(found.group == group.name for each in later for group in each.groups)


def folded(found: list[Finding]) -> list[Finding]:
    """Return findings, in the order of their recordings; of those that many recordings tell alike,
    as excerpts of one run do, the last ones."""
    alike: dict[tuple[object, ...], dict[tuple[str, ...], list[Finding]]] = {}
    for each in found:
        named = each.about.words if each.about and each.about.kind not in NUMBERED else ()
        key = each.kind, named, re.sub(r"[\d.:]+", "", each.text)
        alike.setdefault(key, {}).setdefault(each.files, []).append(each)
    told: dict[int, Finding] = {}
    for by_recording in alike.values():
        *_, last = kept = [*by_recording.values()][-_ALIKE_MAX:]
        told |= {id(each): each for several in kept for each in several}
        if (more := len(by_recording) - len(kept)) > 0:
            likewise = f"Likewise in {count(more, 'earlier recording')}."
            told[id(last[-1])] = attrs.evolve(last[-1], evidence=(*last[-1].evidence, likewise))
    return [told[id(each)] for each in found if id(each) in told]


@attrs.define(eq=False)
class ReportReading:
    """Reads recordings for a report, which may be made of what was read so far."""

    paths: Sequence[Path | str]
    on_progress: Callable[[int], None] = lambda done_bytes: None
    pictured: bool = False
    charted: bool = True
    part: ReportPart = attrs.field(factory=ReportPart, init=False)
    recordings: dict[str, str] = attrs.field(factory=dict, init=False)
    """The id of each file's recording, by path."""
    names: dict[str, str] = attrs.field(factory=dict, init=False)
    """Its name, where there are several."""
    _on_times: list[str] = attrs.field(factory=list, init=False)
    _by_recording: dict[str, _RecordingReading] = attrs.field(factory=dict, init=False)

    def read(self, follow: Follow = Follow.NO) -> Iterator[bool]:
        """Take one item after the other; yield whether there is one: False wherever there is no
        more for now of a recording that is followed.

        Raises: RecordingError.
        """
        stream = Stream(self.paths, ends=True, on_progress=self.on_progress)
        self.recordings, self.names = ids(stream.recordings), names(stream.recordings)
        self._on_times = on_times(each.head for each in stream.recordings)
        for each in stream.recordings:
            name, series = self.recordings[str(each.paths[0])], Series.of(each.head)
            followed = Findings(), Recoveries(name), series if self.pictured else None
            self._by_recording[name] = _RecordingReading(*followed)

        def of_file() -> str:
            """Return the recording of the file that is read: that of the file before, if it
            continues that."""
            if stream.file and stream.file not in self.recordings:
                self.paths = [*self.paths, stream.file]
                self.recordings[stream.file] = next(reversed(self.recordings.values()))
            return self.recordings.get(stream.file, "")

        def on_note(note: Note) -> None:
            recording = of_file()
            self.part.add_note(note, recording)
            if (one := self._by_recording.get(recording)) is not None:  # a file is open by now
                one.note(note)

        stream.on_note = on_note
        for item in stream.growing(follow):
            if item is not None:
                recording = of_file()
                one = self._by_recording[recording]
                found = one.add(item)
                if isinstance(item, Exchange) and found is not None:
                    self.part.add(item, found, recording, stream.file, self.charted)
                    one.recoveries.add(item)
            yield item is not None

    def _later(self, recording: str) -> list[History]:
        """Return the histories of the later recordings of a recording's cluster."""
        clusters, found = clusters_of(self.part), [*self._by_recording]
        return [
            self._by_recording[each].findings.history
            for each in found[found.index(recording) + 1 :]
            if clusters.get(each, each) == clusters.get(recording)
        ]

    def data(self) -> ReportData:
        """Return the data of what was read so far."""
        every = self._by_recording.values()
        rows = [row for each in every for _, row in each.recoveries.rows()]
        rows.sort(key=lambda row: (row["us"], row["number"]))
        faults, paths = summarized(rows, len(rows)), [*map(str, self.paths)]
        proved: list[Finding] = []
        drawn: dict[tuple[tuple[str, ...], Subject], Picture] = {}
        for recording, each in self._by_recording.items():
            files = tuple(file for file, name in self.recordings.items() if name == recording)
            later = self._later(recording)
            found = [
                one for one in each.findings.found() if not (one.at_end and _goes_on(one, later))
            ]
            proved += (attrs.evolve(finding, files=files) for finding in found)
            if each.series is not None:
                for subject, picture in pictures(each.series, found).items():
                    drawn[files, subject] = picture
        data = report_data(self.part, faults, paths, proved=folded(proved))
        data.pictures = drawn
        data.notices += self._on_times
        data.stalls = [span for each in every for span in each.findings.history.noted.stalls]
        return data
