"""The work of a task: rows of the tables that come straight from recordings.

::

    BatchRange ─┬─▶ Exchange ─▶ exchanges, records         FOLDER/exchanges/part-00003.parquet …
                │          ├──▶ traffic, group_events           a step, to make a table of
                │          └──▶ TaskCounts ─ merge ─▶ errors, connections, groups, recordings,
                └─▶ Note ─▶ events                    report

A stretch is read once for all of them. The task itself writes the rows as Parquet, and returns to
the driver only what it counted. Nothing is grouped by connection, so one huge connection does no
harm.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import attrs
import pyarrow as pa

from kproxy.analyze.described import columns
from kproxy.analyze.lake import Tables
from kproxy.analyze.sinks import DATE, TableSink
from kproxy.exchange.counts import ErrorTally, summed
from kproxy.exchange.endings import connection, connection_facts, connection_start
from kproxy.exchange.entries import Note
from kproxy.exchange.exchange import Exchange
from kproxy.exchange.merging import by, merge
from kproxy.history.events import taken
from kproxy.history.rows import Appended
from kproxy.look.report.data import Row
from kproxy.look.report.groups import group_events
from kproxy.look.report.part import ReportPart, ended_by, traffic
from kproxy.look.report.summary import clusters_of, groups_of, lag_of
from kproxy.tables.arrow_types import BOOLEAN, INT32, INT64, TEXT
from kproxy.tables.batches import batch_of, getters_of
from kproxy.tables.reading import ITEMS, everything, file_values, names_file
from kproxy.tables.splits import BatchRange
from kproxy.tables.views import EVENTS, EXCHANGES, FILE, RECORDING, ViewColumn, chosen, schema_of
from kproxy.units import moment

_LEFT_OUT = frozenset(
    {"request", "response", "request_frame", "response_frame", "partitions", "file"}
)
EXCHANGE_COLUMNS = chosen("exchanges", [c.name for c in EXCHANGES if c.name not in _LEFT_OUT])
RECORD_COLUMNS = chosen("records")
EVENT_COLUMNS = chosen("events", [c.name for c in EVENTS if c.name not in _LEFT_OUT])


TABLES: dict[str, tuple[ViewColumn, ...]] = {
    "exchanges": EXCHANGE_COLUMNS,
    "records": RECORD_COLUMNS,
    "events": EVENT_COLUMNS,
    "traffic": (
        ViewColumn("topic", TEXT), ViewColumn("partition", INT32), ViewColumn("second", INT64),
        ViewColumn("produced", BOOLEAN), ViewColumn("records", INT64), ViewColumn("bytes", INT64),
        ViewColumn("exchanges", INT64),
    ),
    "group_events": columns("group_events"),
}  # fmt: skip
"""The tables that tasks write: final ones, and steps from which others are made."""

DIVIDED = {"exchanges": (DATE, "api"), "records": (DATE, "topic")}
"""The columns by which the files of tables in a lake are divided."""
LAST = "events"
"""A table of which every task has rows, completed when the large ones are."""


@attrs.define(eq=False)
class ConnectionTally:
    """The counts of a connection, and what notes tell of it; times are in microseconds."""

    client_id: str | None = attrs.field(default=None, metadata=by(max))
    """The greatest, where it changes its name: which is the first, no task knows."""
    client_address: str | None = attrs.field(default=None, metadata=by(max))
    node_id: int | None = attrs.field(default=None, metadata=by(max))
    opened: int | None = attrs.field(default=None, metadata=by(min))
    closed: int | None = attrs.field(default=None, metadata=by(max))
    ended_by: str | None = attrs.field(default=None, metadata=by(max))
    reason: str | None = attrs.field(default=None, metadata=by(max))
    exchanges: int = 0
    errors: int = 0
    unanswered: int = 0
    request_bytes: int = 0
    response_bytes: int = 0
    first_request: int | None = attrs.field(default=None, metadata=by(min))
    last_request: int | None = attrs.field(default=None, metadata=by(max))

    def add(self, exchange: Exchange) -> None:
        """Count an exchange."""
        time_us = exchange.time_ns // 1000
        if exchange.client_id is not None:
            self.client_id = max(self.client_id or "", exchange.client_id)
        self.exchanges += 1
        self.errors += bool(exchange.errors)
        self.unanswered += exchange.unanswered is not None
        self.request_bytes += exchange.request_bytes or 0
        self.response_bytes += exchange.response_bytes or 0
        self.first_request = min(self.first_request or time_us, time_us)
        self.last_request = max(self.last_request or time_us, time_us)

    def add_note(self, note: Note) -> None:
        """Take a note about it."""
        told, start = ConnectionTally(**dict(connection_facts(note.body))), connection_start(note)
        if start is not None and not start.was_open:
            told.opened = start.time_ns // 1000
        elif note.body.get("event") == "closed":
            told.closed, told.ended_by = note.time_ns // 1000, ended_by(note)
            told.reason = note.body.get("reason")
        merge(self, told)


@attrs.define(eq=False)
class TaskCounts:
    """What tasks have counted."""

    rows: Counter[str] = attrs.field(factory=Counter)
    """The rows of the tables that they wrote."""
    part: ReportPart = attrs.field(factory=ReportPart)
    faults: Counter[str] = attrs.field(factory=Counter)
    """Recording → hits of fault rules."""
    connections: dict[tuple[str, int], ConnectionTally] = attrs.field(factory=dict)

    def connection(self, recording: str, number: int) -> ConnectionTally:
        """Return the counts of a connection."""
        return self.connections.setdefault((recording, number), ConnectionTally())


def write(task: int, stretches: Sequence[BatchRange], to: Tables, with_records: bool) -> TaskCounts:
    """Write the rows of stretches into tables, the large ones of a run divided (`DIVIDED`); return
    what was counted.

    Raises: RecordingError; OSError, when the disk is full.
    """
    divided_by = DIVIDED if to.divided else {}
    sinks = {
        name: TableSink(to.table(name), schema_of(columns), task, divided_by.get(name, ()))
        for name, columns in TABLES.items()
    }
    counted = TaskCounts()
    try:
        for stretch in stretches:
            _write_stretch(stretch, sinks, with_records, counted)
        for sink in sinks.values():
            sink.close()
    except BaseException:
        for sink in sinks.values():
            sink.abandon()
        raise
    counted.rows.update({name: sink.count for name, sink in sinks.items()})
    return counted


def _write_stretch(
    stretch: BatchRange, sinks: dict[str, TableSink], with_records: bool, counted: TaskCounts
) -> None:
    constants = file_values(stretch)
    views = ("exchanges", "records") if with_records else ("exchanges",)
    getters = {view: getters_of(TABLES[view], constants) for view in (*views, "events")}
    carried: dict[tuple[Any, ...], list[int]] = {}  # topic, partition, second, direction
    counted.part.cluster_ids.setdefault(stretch.recording, set())
    with names_file(stretch):
        for item in everything(stretch):
            if isinstance(item, Note):
                sinks["events"].add([get(item) for get in getters["events"]])
                counted.part.add_note(item, constants[RECORDING])
                counted.faults[stretch.recording] += item.body.get("event") == "fault"
                counted.connection(stretch.recording, connection(item.body)).add_note(item)
                continue
            found = taken(item)
            for view in views:
                for each in ITEMS[view](item):
                    sinks[view].add([get(each) for get in getters[view]])
            for row in traffic(found):
                key = *row.where, item.time_ns // 1_000_000_000, isinstance(row, Appended)
                sums = carried.get(key, (0, 0, 0))
                carried[key] = [sums[0] + row.records, sums[1] + row.size_bytes, sums[2] + 1]
            counted.part.add(item, found, constants[RECORDING], constants[FILE])
            counted.connection(stretch.recording, item.connection).add(item)
            for event in group_events(item, found):
                at = moment(item.time_ns)
                sinks["group_events"].add((stretch.recording, at, *event, item.number))
        for key, sums in carried.items():
            sinks["traffic"].add((*key, *sums))
        for sink in sinks.values():
            sink.flush()


def tables_of(counted: TaskCounts) -> dict[str, pa.Table]:
    """Return the tables of what all tasks together have counted."""
    connections = (
        {"recording": recording, "connection": number} | attrs.asdict(tally)
        for (recording, number), tally in sorted(counted.connections.items())
        if number >= 0
    )
    found = {
        "connections": connections,
        "errors": error_rows(counted.part),
        "groups": group_rows(counted.part),
        "recordings": (
            {"recording": each, "cluster": cluster}
            for each, cluster in sorted(clusters_of(counted.part).items())
        ),
    }
    return {name: table_of(name, rows) for name, rows in found.items()}


def table_of(name: str, rows: Iterable[Row]) -> pa.Table:
    """Return rows as a table."""
    schema = schema_of(columns(name))
    found = [[row[each] for each in schema.names] for row in rows]
    return pa.Table.from_batches([batch_of(found, schema)] if found else [], schema)


def error_rows(part: ReportPart) -> list[Row]:
    """Return the rows of the table of errors."""
    failures = part.counts.failures
    rows: list[Row] = []
    for key, tally in summed(
        ((key[:3], each) for key, each in failures.items()), ErrorTally
    ).items():
        routine = failures.get((*key, True))
        time_us, (file, number) = tally.first or (0, ("", 0))
        rows.append({
            **dict(zip(("error", "api", "client_id"), key, strict=True)),
            "count": tally.count, "injected": tally.injected,
            "routine": 0 if routine is None else routine.count,
            "first_time": time_us, "last_time": tally.last_us,
            "first": {"recording": part.files[file].recording, "number": number},
            "topics": sorted(tally.topics), "messages": sorted(tally.messages),
        })  # fmt: skip
    return sorted(rows, key=lambda row: (-row["count"], row["error"], row["api"] or ""))


def group_rows(part: ReportPart) -> list[Row]:
    """Return the rows of the table of groups."""
    return [
        {
            "group": group, "cluster": cluster, "members": len(tally.members),
            "client_ids": sorted(tally.client_ids),
            "first_generation": min(tally.generations, default=None),
            "last_generation": max(tally.generations, default=None),
            "generations": len(tally.generations), "rebalances": tally.rebalances,
            "joins": tally.joins, "leaves": tally.leaves, "commits": tally.commits,
            "errors": tally.errors + tally.routine,
            "first_time": tally.first_us,
            "last_time": tally.last_us,
            "lag": lag_of(partitions), "partitions": partitions,
        }
        for (group, cluster), (tally, partitions) in groups_of(part).items()
    ]  # fmt: skip
