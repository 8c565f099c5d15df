"""The work of a task: rows of the tables that come straight from recordings.

::

    Stretch ─┬─▶ Exchange ─▶ exchanges, records              FOLDER/exchanges/part-00003.parquet …
             │          ├──▶ traffic, …, group_events             steps, to make tables of
             │          └──▶ ReportPart
             └─▶ Note ─▶ events

A stretch is read once for all of them. The task itself writes the rows as Parquet, and returns to
the driver only their number and its part of the report. Nothing is grouped by connection, so one
huge connection does no harm.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import pyarrow as pa

from kproxy.analyze.described import comments
from kproxy.analyze.lake import Tables
from kproxy.analyze.sinks import DATE, Sink
from kproxy.exchange.entries import Note
from kproxy.report.bodies import ExchangeBodies, bodies_of
from kproxy.report.part import ReportPart
from kproxy.report.summary import groups_of, lag_of
from kproxy.tables.arrow_types import BOOLEAN, INT32, INT64, TEXT, TEXTS, TIME
from kproxy.tables.batches import getters_of
from kproxy.tables.reading import ITEMS, everything, file_values, names_file
from kproxy.tables.splits import Stretch
from kproxy.tables.views import (
    EVENTS,
    EXCHANGES,
    FILE,
    RECORDING,
    ViewColumn,
    chosen,
    schema_of,
    when,
)
from kproxy.units import moment

_LEFT_OUT = frozenset(
    {"request", "response", "request_frame", "response_frame", "partitions", "file"}
)
EXCHANGE_COLUMNS = chosen("exchanges", [c.name for c in EXCHANGES if c.name not in _LEFT_OUT])
RECORD_COLUMNS = chosen("records")
EVENT_COLUMNS = chosen("events", [c.name for c in EVENTS if c.name not in _LEFT_OUT])


def _step(*columns: tuple[str, pa.DataType], table: str = "") -> tuple[ViewColumn, ...]:
    comment_by_column = comments(table) if table else {}
    return tuple(ViewColumn(name, kind, comment_by_column.get(name, "")) for name, kind in columns)


TABLES: dict[str, tuple[ViewColumn, ...]] = {
    "exchanges": EXCHANGE_COLUMNS,
    "records": RECORD_COLUMNS,
    "events": EVENT_COLUMNS,
    "traffic": _step(
        ("topic", TEXT), ("partition", INT32), ("second", INT64), ("produced", BOOLEAN),
        ("records", INT64), ("bytes", INT64), ("exchanges", INT64),
    ),
    "group_events": _step(
        ("recording", TEXT), ("time", TIME), ("group", TEXT), ("event", TEXT),
        ("client_id", TEXT), ("member_id", TEXT), ("generation", INT32),
        ("topic", TEXT), ("partition", INT32), ("committed", INT64), ("error", TEXT),
        ("number", INT64), table="group_events",
    ),
    "cluster_ids": _step(("recording", TEXT), ("cluster_id", TEXT)),
}  # fmt: skip
"""The tables that tasks write: final ones, and steps from which others are made."""
GROUPS = _step(
    ("group", TEXT), ("cluster", TEXT), ("members", INT64), ("client_ids", TEXTS),
    ("first_generation", INT32), ("last_generation", INT32), ("generations", INT64),
    ("rebalances", INT64), ("joins", INT64), ("leaves", INT64), ("commits", INT64),
    ("errors", INT64), ("first_time", TIME), ("last_time", TIME), ("lag", INT64),
    ("partitions", pa.list_(pa.struct([
        ("topic", TEXT), ("partition", INT32), ("committed", INT64), ("log_end", INT64),
        ("lag", INT64),
    ]))), table="groups",
)  # fmt: skip
"""The table of what all tasks together have counted of groups."""

DIVIDED = {"exchanges": (DATE, "api"), "records": (DATE, "topic")}
"""The columns by which the files of tables in a lake are divided."""
LAST = list(TABLES)[-1]
"""The table that a task completes last; every task has rows of it."""


def write(
    task: int, stretches: Sequence[Stretch], to: Tables, with_records: bool
) -> tuple[dict[str, int], ReportPart]:
    """Write the rows of stretches into tables, the large ones of a run divided (`DIVIDED`); return
    how many there are, by table, and what a report says of them.

    Raises: RecordingError; OSError, when the disk is full.
    """
    divided_by = DIVIDED if to.divided else {}
    sinks = {
        name: Sink(to.table(name), schema_of(columns), task, divided_by.get(name, ()))
        for name, columns in TABLES.items()
    }
    part = ReportPart()
    try:
        for stretch in stretches:
            _write_stretch(stretch, sinks, with_records, part)
        for sink in sinks.values():
            sink.close()
    except BaseException:
        for sink in sinks.values():
            sink.abandon()
        raise
    return {name: sink.count for name, sink in sinks.items()}, part


def _write_stretch(
    stretch: Stretch, sinks: dict[str, Sink], with_records: bool, part: ReportPart
) -> None:
    constants = file_values(stretch)
    views = ("exchanges", "records") if with_records else ("exchanges",)
    getters = {view: getters_of(TABLES[view], constants) for view in (*views, "events")}
    steps = _Steps()
    with names_file(stretch):
        for item in everything(stretch):
            if isinstance(item, Note):
                sinks["events"].add([get(item) for get in getters["events"]])
                part.add_note(item)
                continue
            bodies = bodies_of(item)
            for view in views:
                for each in ITEMS[view](item):
                    sinks[view].add([get(each) for get in getters[view]])
            steps.add(bodies, item.time_ns // 1_000_000_000)
            part.add(item, bodies, constants[RECORDING], constants[FILE])
            for event in bodies.group_events:
                at = moment(item.time_ns)
                sinks["group_events"].add((stretch.recording, at, *event, item.number))
        steps.write(stretch.recording, sinks)
        for sink in sinks.values():
            sink.flush()


def group_rows(part: ReportPart) -> pa.Table:
    """Return the table `GROUPS` of what was counted."""
    rows = [
        {
            "group": group, "cluster": cluster, "members": len(tally.members),
            "client_ids": sorted(tally.client_ids),
            "first_generation": min(tally.generations, default=None),
            "last_generation": max(tally.generations, default=None),
            "generations": len(tally.generations), "rebalances": max(0, len(tally.born) - 1),
            "joins": tally.joins, "leaves": tally.leaves, "commits": tally.commits,
            "errors": tally.errors + tally.routine,
            "first_time": when((tally.first_us or 0) * 1000),
            "last_time": when((tally.last_us or 0) * 1000),
            "lag": lag_of(partitions), "partitions": partitions,
        }
        for (group, cluster), (tally, partitions) in groups_of(part).items()
    ]  # fmt: skip
    return pa.Table.from_pylist(rows, schema_of(GROUPS))


@attrs.define(eq=False)
class _Steps:
    """The sums of a stretch."""

    traffic: dict[tuple[Any, ...], list[int]] = attrs.field(factory=dict)
    """Records, bytes and exchanges, by topic, partition, second and direction."""
    cluster_ids: set[str | None] = attrs.field(factory=lambda: {None})

    def add(self, bodies: ExchangeBodies, second: int) -> None:
        """Add the bodies of an exchange in a second since 1970."""
        for where, produced, records, size, _ in bodies.traffic:
            sums = self.traffic.setdefault((*where, second, produced), [0, 0, 0])
            sums[0] += records
            sums[1] += size
            sums[2] += 1
        self.cluster_ids.add(bodies.cluster_id)

    def write(self, recording: str, sinks: Mapping[str, Sink]) -> None:
        """Write the sums into their tables."""
        for key, sums in self.traffic.items():
            sinks["traffic"].add((*key, *sums))
        for cluster_id in self.cluster_ids:
            sinks["cluster_ids"].add((recording, cluster_id))
