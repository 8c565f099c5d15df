"""The work of a task: rows of the tables that come straight from recordings.

::

    Stretch ─▶ record batches ─▶ exchanges, records          FOLDER/exchanges/part-00003.parquet …
            ├▶ Exchange ─▶ columns of exchanges that only bodies have, ReportPart
            │          └─▶ traffic, log_ends, …, group_events   steps, from which tables are made
            └▶ Note ─▶ events

The task itself writes the rows as Parquet, and returns to the driver only their number and its part
of the report. Nothing is grouped by connection, so one huge connection does no harm.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from kproxy.analyze.described import comments
from kproxy.analyze.lake import Tables
from kproxy.analyze.sinks import DATE, Sink
from kproxy.report.bodies import count_traffic, ends_of, group_events
from kproxy.report.part import CLUSTER_ID_APIS, ReportPart
from kproxy.tables.arrow_types import BOOLEAN, INT32, INT64, TEXT, TIME
from kproxy.tables.item_columns import batch_of, getters_of
from kproxy.tables.reading import (
    FOUND_IN_TABLES,
    events,
    exchanges,
    file_values,
    record_batches,
)
from kproxy.tables.splits import Stretch
from kproxy.tables.views import (
    EVENTS,
    EXCHANGES,
    FILE,
    RECORDING,
    RECORDS,
    ViewColumn,
    chosen,
    schema_of,
)

_LEFT_OUT = frozenset(
    {"request", "response", "request_frame", "response_frame", "partitions", "file"}
)
EXCHANGE_COLUMNS = chosen("exchanges", [c.name for c in EXCHANGES if c.name not in _LEFT_OUT])
_TABLE_COLUMNS = tuple(c for c in EXCHANGE_COLUMNS if c.name in FOUND_IN_TABLES)
_BODY_COLUMNS = tuple(c for c in EXCHANGE_COLUMNS if c.name not in FOUND_IN_TABLES)
RECORD_COLUMNS = chosen("records", [c.name for c in RECORDS if c.name not in _LEFT_OUT])
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
    "log_ends": _step(
        ("recording", TEXT), ("topic", TEXT), ("partition", INT32), ("second", INT64),
        ("log_end", INT64),
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
    traffic: Counter[tuple[Any, ...]] = Counter()
    log_ends: dict[tuple[str, int, int], int] = {}
    cluster_ids: set[str | None] = {None}
    schema, sink = schema_of(_BODY_COLUMNS), sinks["exchanges"]
    left_out = stretch.pending_only and not stretch.last  # the files that follow have its rows
    items = iter(()) if left_out else exchanges(stretch, follows=True)
    constants = file_values(stretch)
    body_getters = getters_of(_BODY_COLUMNS, constants)
    for batch in record_batches(stretch, "exchanges", _TABLE_COLUMNS):
        bodies: list[list[Any]] = []
        for exchange in itertools.islice(items, len(batch)):
            bodies.append([get(exchange) for get in body_getters])
            second = exchange.time_ns // 1_000_000_000
            count_traffic(exchange, second, traffic)
            for topic, partition, offset in ends_of(exchange):
                key = (topic, partition, second)
                log_ends[key] = max(offset, log_ends.get(key, 0))
            if exchange.api in CLUSTER_ID_APIS:
                cluster_ids.add(getattr(exchange.response, "cluster_id", None) or None)
            part.add(exchange, constants[RECORDING], constants[FILE])
            for row in group_events(exchange):
                sinks["group_events"].add((stretch.recording, exchange.time, *row, exchange.number))
        arrays = dict(zip(schema.names, batch_of(bodies, schema).columns, strict=True))
        arrays |= dict(zip(batch.schema.names, batch.columns, strict=True))
        ordered = [arrays[name] for name in sink.schema.names]
        sinks["exchanges"].write(
            pa.RecordBatch.from_arrays(ordered, schema=sinks["exchanges"].schema)
        )
    for _ in zip(items, (), strict=True):  # the columns and the exchanges end together
        pass
    if with_records:
        for batch in record_batches(stretch, "records", RECORD_COLUMNS):
            sinks["records"].write(batch)
    event_getters = getters_of(EVENT_COLUMNS, constants)
    for note in events(stretch):
        sinks["events"].add([get(note) for get in event_getters])
        part.add_note(note)
    for key in {key[:-1] for key in traffic}:
        sinks["traffic"].add((*key, *(traffic[(*key, what)] for what in range(3))))
    for key, offset in log_ends.items():
        sinks["log_ends"].add((stretch.recording, *key, offset))
    for cluster_id in cluster_ids:
        sinks["cluster_ids"].add((stretch.recording, cluster_id))
