"""`kproxy analyze --append` and `--follow`: what is new in recordings, as runs of a lake.

    offset of the last run ─▶ the source of streams ─▶ stretches ─ making ─▶ a run, with its offset

Invariants: each exchange comes once, also over restarts, and of recordings that are being written;
requests that have no answer yet come when they are answered or given up, as in a stream.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import attrs
from pyspark.sql.types import StructType

from kproxy.analyze.job import Analysis, data_of_report, write_about
from kproxy.analyze.lake import Run, runs
from kproxy.analyze.making import Made, Making, make_tables, rows_of
from kproxy.analyze.place import Place
from kproxy.analyze.publish import new_run
from kproxy.recording.uri import absolute
from kproxy.report.page import page
from kproxy.report.part import ReportPart
from kproxy.spark.source import SparkPartition
from kproxy.spark.stream import StreamReader
from kproxy.tables.splits import PARTITION_BYTES, Stretch

if TYPE_CHECKING:
    pass

_VIEW = "exchanges"


def append(
    making: Making, recordings: Sequence[str], lake: Place, partition_bytes: int = PARTITION_BYTES
) -> Analysis | None:
    """Add what is new in recordings to a lake; return None if nothing is.

    Raises: SparkError, RecordingError, OSError, and what Spark raises.
    """
    making.on_status("looking for what is new")
    before = runs(lake)
    offset, groups = _new(recordings, before[-1].offset if before else {}, partition_bytes)
    if not groups:
        return None
    with new_run(lake) as folder:
        made = make_tables(attrs.evolve(making, divided=True), groups, folder)
        making.on_status("writing the report")
        data = data_of_report(made, rows_of(folder / "faults"), made.rows["faults"], recordings)
        write_about(folder, page(data, recordings, (), "analyze"), made, {
            "recordings": list(recordings),
            "after": before[-1].name if before else "",
            "offset": offset,
        })  # fmt: skip
    return Analysis(lake / runs(lake)[-1].name, made, data.notices, data)


def _new(
    recordings: Sequence[str], start: dict[str, Any], partition_bytes: int
) -> tuple[dict[str, Any], list[Sequence[Stretch]]]:
    """Return the offset behind what is new, and its stretches, those of a task together."""
    paths = tuple(map(absolute, recordings))
    reader = StreamReader(paths, _VIEW, StructType(), partition_bytes)
    try:
        end = reader.latestOffset(start)
        tasks = reader.partitions(start, end) if end != start else []
        return end, [task.stretches for task in tasks if isinstance(task, SparkPartition)]
    finally:
        reader.stop()


def follow(
    making: Making,
    recordings: Sequence[str],
    lake: Place,
    every_seconds: float,
) -> Iterator[Analysis | None]:
    """Yield what is new in recordings, each time that it was looked for and added to a lake. A page
    of all of it is kept up to date: `report.html` of the lake.

    Raises: as `append`.
    """
    total = ReportPart()
    added: list[Run] = []
    while True:
        began = time.monotonic()
        one = append(making, recordings, lake)
        if one is not None:
            total.merge(one.made.part)
            added.append(runs(lake)[-1])
            (lake / "report.html").write(_page(lake, added, total, recordings).encode())
        yield one
        time.sleep(max(0.0, began + every_seconds - time.monotonic()))


def _page(lake: Place, added: Sequence[Run], total: ReportPart, recordings: Sequence[str]) -> str:
    faults = (row for run in added for row in rows_of(lake / run.name / "faults"))
    count = sum(run.rows["faults"] for run in added)
    data = data_of_report(Made({}, total), faults, count, recordings)
    return page(data, recordings, (), "analyze")
