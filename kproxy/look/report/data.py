"""The data of a report; its size does not depend on the recordings."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import attrs

from kproxy.exchange.merging import by, kept
from kproxy.look.pictures.drawing import Picture
from kproxy.look.report.slots import Slots
from kproxy.look.why.finding import Finding, Subject
from kproxy.recording.info import Info
from kproxy.recording.paths import distinct

ROWS_MAX = 15
MARKS_MAX = 300
GROUPS_MAX = 50

Row = dict[str, Any]


@attrs.define
class FileSpan:
    """What a file of a recording covers."""

    file: str = attrs.field(metadata=by(kept))
    recording: str = attrs.field(metadata=by(kept))
    start_us: int = attrs.field(metadata=by(min))
    """The arrival of its first request, since 1970."""
    end_us: int = attrs.field(metadata=by(max))
    first: int = attrs.field(metadata=by(min))
    """The least number of its exchanges."""
    last: int = attrs.field(metadata=by(max))

    def add(self, time_us: int, number: int) -> None:
        """Take an exchange."""
        self.start_us, self.end_us = min(self.start_us, time_us), max(self.end_us, time_us)
        self.first, self.last = min(self.first, number), max(self.last, number)


def in_order(files: Iterable[FileSpan]) -> list[FileSpan]:
    """Return files by the first requests of their recordings, those of one recording by its parts,
    as their names have them: what is asked in one part may be answered in a later one."""
    files, began_us = list(files), dict[str, int]()
    for each in files:
        began_us[each.recording] = min(each.start_us, began_us.get(each.recording, each.start_us))

    def place(each: FileSpan) -> tuple[int, str, int, str, str]:
        stem = Path(each.file).stem
        return began_us[each.recording], each.recording, len(stem), stem, each.file

    return sorted(files, key=place)


@attrs.define
class ReportData:
    """The data of a report. Rows about one exchange have its `number` and its `file`."""

    start_us: int
    """The arrival of the first request, since 1970."""
    span_ms: float
    """From the first request to the last, the time between recordings included."""
    slots: Slots
    """What there was over time (`ReportPart.slots`)."""
    totals: Row
    group_totals: Row
    """Numbers of groups: known, rebalanced, behind the ends of their topics."""
    fault_totals: Row
    """Number of all faults, of those after which a request of the same API succeeded, the longest
    time until then, and the number of those whose own exchange succeeded all the same."""
    apis: list[Row]
    histograms: dict[str, Counter[int]]
    """API → histogram of the broker's time."""
    errors: list[Row]
    slowest: list[Row]
    rebalances: list[Row]
    groups: list[Row]
    """The groups that rebalanced most often, and those that are furthest behind."""
    faults: list[Row]
    """All faults, as marks; of more than fit, a sample spread over their time."""
    ended_by: list[Row]
    differences: list[Row]
    """APIs by topic, and of all topics, beside the baseline; routine errors do not count."""
    notices: list[str]
    """Sentences on damage and loss in the recordings."""
    hits: list[Row] = attrs.Factory(list)
    """The first faults, without those whose own exchange succeeded all the same."""
    parts: list[Row] = attrs.Factory(list)
    """APIs by topic, and by client, with histograms: of each kind those with the largest p99."""
    phases: list[Row] = attrs.Factory(list)
    """APIs by topic, with the phases in which they were slowest and quickest."""
    phase_ms: float = 0.0
    stalls: list[tuple[int, int]] = attrs.Factory(list)
    """When kproxy itself stood still, in nanoseconds: from, until."""
    rules: list[Row] = attrs.Factory(list)
    """Fault rules, with their hits, and the requests and times until the same API worked again,
    whatever it was asked."""
    findings: list[Finding] = attrs.Factory(list)
    """What the exchanges of each recording prove, in their order (`kproxy.look.why.findings`)."""
    pictures: dict[tuple[tuple[str, ...], Subject], Picture] = attrs.Factory(dict)
    """Files of a recording, and what is drawn of it → its picture, those of findings first."""
    files: list[FileSpan] = attrs.Factory(list)
    """The files (`in_order`)."""

    names: dict[str, str] = attrs.Factory(dict)
    """The name of each file's recording, where there are several."""
    paths: list[str] = attrs.Factory(list)
    """The recordings, folders and globs that the user gave."""

    def name_exchanges(self) -> None:
        """Add their names to rows that are about exchanges: `#12`, or `shop#12` where the report is
        of several recordings."""
        first = {each.recording: each.file for each in reversed(self.files)}
        given = distinct([Info(Path(file)) for file in first.values()])
        names = dict(zip(first, given, strict=True)) if len(first) > 1 else {}
        by_file = {each.file: names.get(each.recording, "") for each in self.files}
        self.names = by_file if names else {}
        for rows, prefixes in (
            (self.errors, ("",)),
            (self.slowest, ("",)),
            (self.apis, ("unanswered_", "proxy_max_")),
            ((*self.faults, *self.hits), ("", "recovered_")),
        ):
            for row, prefix in itertools.product(rows, prefixes):
                file = str(row.get(f"{prefix}file", row.get("file")))
                found = row[f"{prefix}number"]
                name = None if found is None else f"{by_file.get(file, '')}#{found}"
                row[f"{prefix}name"] = name

    def file_of(self, recording: str, number: int) -> str | None:
        """Return the file that has an exchange of a recording."""
        having = (
            each.file
            for each in self.files
            if each.recording == recording and each.first <= number <= each.last
        )
        return next(having, None)
