"""The job: recordings in, a folder of Parquet tables and a report out.

    splits ─▶ making ─▶ tables ─▶ report.html, tables.md, analysis.json

Invariant: all of it becomes visible at once (`publish`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import attrs

import kproxy
from kproxy.analyze import compare, described, publish
from kproxy.analyze.lake import MANIFEST, Tables, encoded
from kproxy.analyze.making import MadeTables, TableMaker, cores, make_tables, rows_of, schemas_of
from kproxy.analyze.place import Place
from kproxy.look.report.data import ReportData, Row
from kproxy.look.report.page import page
from kproxy.look.report.summary import notices_of, report_data, summarized
from kproxy.recording.uri import located
from kproxy.tables.splits import (
    PARTITION_BYTES,
    BatchRange,
    FoundFiles,
    packed,
    stretches,
    task_bytes,
)

_TASKS_PER_CORE = 2
_TASK_BYTES_MIN = 1 << 20
"""Less is read by one task: starting another takes as long."""


@attrs.frozen
class Analysis:
    """The result of a job."""

    folder: Place
    made: MadeTables
    notices: list[str]
    """Sentences on what is missing in the recordings."""
    data: ReportData
    """The data of the report."""
    differences: list[Row] = attrs.field(factory=list)
    """Those from the baseline."""


def analyze(
    maker: TableMaker,
    recordings: FoundFiles,
    out: Place,
    baseline: FoundFiles | None = None,
    partition_bytes: int = PARTITION_BYTES,
) -> Analysis:
    """Make the tables and the report of recordings; with a baseline, compare with that.

    Raises: SparkError, RecordingError, OSError, and what Spark raises.
    """
    notices: list[str] = []
    differences: list[Row] = []
    with publish.new_analysis(out) as folder:
        old = folder / "baseline"
        if baseline is not None:
            of_baseline = attrs.evolve(maker, with_records=False)
            of_old: list[str] = []
            groups = _groups(maker, baseline, partition_bytes, of_old.append)
            of_old += notices_of(make_tables(of_baseline, groups, Tables(old)).part)
            notices += [f"baseline: {each}" for each in of_old]
        groups = _groups(maker, recordings, partition_bytes, notices.append)
        made = make_tables(maker, groups, Tables(folder))
        if baseline is not None:
            differences = compare.differences(maker.spark, folder, old)
            old.remove()
        names, others = (
            [str(located(path)) for path in ([] if each is None else each.paths)]
            for each in (recordings, baseline)
        )
        maker.on_status("writing the report")
        faults = rows_of(folder / "faults")
        data = data_of_report(made, faults, made.rows["faults"], names, differences, notices)
        (folder / "report.html").write(page(data, names, others, "analyze").encode())
        (folder / "tables.md").write(described.describe(schemas_of(Tables(folder), made)).encode())
        about = {"recordings": names, "baseline": others}
        (folder / MANIFEST).write(encoded(manifest(made, about)))
    where = folder if out.local is None else out  # a folder on a disk has been renamed
    return Analysis(where, made, data.notices, data, differences)


def _groups(
    maker: TableMaker,
    recordings: FoundFiles,
    partition_bytes: int,
    on_left_out: Callable[[str], None],
) -> Sequence[Sequence[BatchRange]]:
    """Return the stretches of recordings, those of a task together."""
    maker.on_status("looking at the recordings")
    count = cores(maker.spark)
    size = task_bytes(recordings, _TASKS_PER_CORE * count, partition_bytes)
    tasks = count * math.ceil(recordings.bytes / (size * count))  # so that cores end together
    size = min(size, max(_TASK_BYTES_MIN, math.ceil(recordings.bytes / max(1, tasks))))
    return packed(stretches(recordings, size, on_left_out), size, count)


def data_of_report(
    made: MadeTables,
    faults: Iterable[Row],
    fault_count: int,
    names: Sequence[str],
    differences: Sequence[Row] = (),
    notices: Sequence[str] = (),
) -> ReportData:
    """Return the data of the report of what was made, with the rows of the tables of faults."""
    rows = (row | {"us": _microseconds(row["time"])} for row in faults)
    return report_data(made.part, summarized(rows, fault_count), names, differences, notices)


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _microseconds(time: datetime) -> int:
    return (time.replace(tzinfo=time.tzinfo or UTC) - _EPOCH) // timedelta(microseconds=1)


def manifest(made: MadeTables, about: Mapping[str, Any]) -> dict[str, Any]:
    """Return what an analysis says of itself."""
    return {"kproxy": kproxy.__version__, "rows": made.rows, **about}
