"""`kproxy analyze --append` and `--follow`: what is new in recordings, as runs of a lake.

    offset of the last run ─▶ the source of streams ─▶ stretches ─ making ─▶ a run, with its offset

Invariants: each exchange comes once, also over restarts, and of recordings that are being written;
requests that have no answer yet come when they are answered or given up, as in a stream.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import attrs
from pyspark.sql.types import StructType

from kproxy.analyze import described
from kproxy.analyze.job import Analysis, data_of_report, manifest
from kproxy.analyze.lake import RUNS, Run, Tables, runs
from kproxy.analyze.making import Made, Making, make_tables, rows_of, schemas_of
from kproxy.analyze.place import Place
from kproxy.analyze.publish import new_run, publish
from kproxy.recording.uri import absolute
from kproxy.report.page import page
from kproxy.report.part import ReportPart
from kproxy.spark.source import SparkPartition
from kproxy.spark.stream import StreamReader
from kproxy.tables.splits import PARTITION_BYTES, Stretch

_VIEW = "exchanges"


@attrs.frozen
class New:
    """What is new in recordings, seen from a lake."""

    recordings: Sequence[str]
    after: str
    """The name of the run before; "" if there is none."""
    offset: dict[str, Any]
    """Behind what is new."""
    groups: Sequence[Sequence[Stretch]]
    """Its stretches, those of a task together; none if nothing is new."""

    @property
    def bytes(self) -> int:
        """How much it is."""
        return sum(stretch.bytes for group in self.groups for stretch in group)


def new_in(recordings: Sequence[str], lake: Place, partition_bytes: int = PARTITION_BYTES) -> New:
    """Return what is in recordings and not in a lake. Spark is not needed.

    Raises: SparkError, RecordingError, OSError.
    """
    before = runs(lake)
    after, start = (before[-1].name, before[-1].offset) if before else ("", {})
    paths = tuple(map(absolute, recordings))
    reader = StreamReader(paths, _VIEW, StructType(), partition_bytes)
    try:
        end = reader.latestOffset(start)
        tasks = reader.partitions(start, end) if end != start else []
    finally:
        reader.stop()
    groups = [task.stretches for task in tasks if isinstance(task, SparkPartition)]
    return New(recordings, after, end, groups)


def append(making: Making, new: New, lake: Place) -> Analysis:
    """Add what is new to a lake; `report.html` of the lake is the page of that.

    Raises: SparkError, RecordingError, OSError, and what Spark raises.
    """
    with new_run(lake) as to:
        made = make_tables(making, new.groups, to)
        making.on_status("writing the report")
        faults = rows_of(to.table("faults"))
        data = data_of_report(made, faults, made.rows["faults"], new.recordings)
        text = page(data, new.recordings, (), "analyze").encode()
        about = described.describe(schemas_of(to, made)).encode()
        (lake / RUNS / f"{to.run}.html").write(text)
        where = {"recordings": [*new.recordings], "after": new.after, "offset": new.offset}
        publish(to, manifest(made, where))
    (lake / "tables.md").write(about)
    (lake / "report.html").write(text)
    return Analysis(lake, made, data.notices, data)


def follow(
    making: Making, recordings: Sequence[str], lake: Place, every_seconds: float
) -> Iterator[Analysis | None]:
    """Yield what is new in recordings, each time that it was looked for and added to a lake. The
    page of the lake is of all that was added since the beginning.

    Raises: as `append`.
    """
    total = ReportPart()
    added: list[Run] = []
    while True:
        began = time.monotonic()
        making.on_status("looking for what is new")
        new = new_in(recordings, lake)
        one = append(making, new, lake) if new.groups else None
        if one is not None:
            total.merge(one.made.part)
            added.append(runs(lake)[-1])
            (lake / "report.html").write(_page(lake, added, total, recordings).encode())
        yield one
        time.sleep(max(0.0, began + every_seconds - time.monotonic()))


def _page(lake: Place, added: Sequence[Run], total: ReportPart, recordings: Sequence[str]) -> str:
    faults = (row for run in added for row in rows_of(Tables(lake, run.name).table("faults")))
    count = sum(run.rows["faults"] for run in added)
    data = data_of_report(Made({}, total), faults, count, recordings)
    return page(data, recordings, (), "analyze")
