"""The work of a task: rows of the tables that come straight from recordings.

::

    Stretch ─▶ record batches ─▶ exchanges, records          FOLDER/exchanges/part-00003.parquet …
            ├▶ Exchange ─▶ columns of exchanges that only bodies have, ReportPart
            │          └─▶ traffic, log_ends, …, group_events   steps, from which tables are made
            └▶ Note ─▶ events

A stretch is read once for all of them. The task itself writes the rows as Parquet, and returns to
the driver only their number and its part of the report. Nothing is grouped by connection, so one
huge connection does no harm.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from kproxy.analyze.described import comments
from kproxy.analyze.lake import Tables
from kproxy.analyze.sinks import DATE, Sink
from kproxy.exchange.entries import Note
from kproxy.exchange.exchange import Exchange
from kproxy.report.bodies import ExchangeBodies, bodies_of
from kproxy.report.part import CountedExchange, ReportPart
from kproxy.tables.arrow_types import BOOLEAN, INT32, INT64, TEXT, TIME
from kproxy.tables.exchange_columns import ExchangeRows
from kproxy.tables.item_columns import batch_of, getters_of
from kproxy.tables.reading import (
    FOUND_IN_TABLES,
    file_values,
    from_columns,
    together,
)
from kproxy.tables.splits import Stretch
from kproxy.tables.views import (
    EVENTS,
    EXCHANGES,
    FILE,
    RECORDING,
    ViewColumn,
    chosen,
    schema_of,
)
from kproxy.units import moment

_LEFT_OUT = frozenset(
    {"request", "response", "request_frame", "response_frame", "partitions", "file"}
)
EXCHANGE_COLUMNS = chosen("exchanges", [c.name for c in EXCHANGES if c.name not in _LEFT_OUT])
_TABLE_SCHEMA = schema_of(c for c in EXCHANGE_COLUMNS if c.name in FOUND_IN_TABLES)
_BODY_SCHEMA = schema_of(c for c in EXCHANGE_COLUMNS if c.name not in FOUND_IN_TABLES)
_EXCHANGE_SCHEMA = schema_of(EXCHANGE_COLUMNS)
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


_Read = Note | pa.RecordBatch | tuple[pa.RecordBatch, list[CountedExchange]]
"""A note, some records, or some exchanges as rows of their table and as they are counted."""


def _write_stretch(
    stretch: Stretch, sinks: dict[str, Sink], with_records: bool, part: ReportPart
) -> None:
    constants = file_values(stretch)
    event_getters = getters_of(EVENT_COLUMNS, constants)
    traffic: dict[tuple[Any, ...], list[int]] = {}
    log_ends: dict[tuple[str, int, int], int] = {}
    cluster_ids: set[str | None] = {None}
    for item in _read(stretch, RECORD_COLUMNS if with_records else ()):
        if isinstance(item, Note):
            sinks["events"].add([get(item) for get in event_getters])
            part.add_note(item)
        elif isinstance(item, pa.RecordBatch):
            sinks["records"].write(item)
        else:
            batch, counted = item
            sinks["exchanges"].write(batch)
            part.add(counted, constants[RECORDING], constants[FILE])
            for row in counted:
                _sum_up(row, traffic, log_ends)
                cluster_ids.add(row.bodies.cluster_id)
                for event in row.bodies.group_events:
                    at = moment(row.time_ns)
                    sinks["group_events"].add((stretch.recording, at, *event, row.number))
    for key, sums in traffic.items():
        sinks["traffic"].add((*key, *sums))
    for key, offset in log_ends.items():
        sinks["log_ends"].add((stretch.recording, *key, offset))
    for cluster_id in cluster_ids:
        sinks["cluster_ids"].add((stretch.recording, cluster_id))


def _sum_up(
    row: CountedExchange,
    traffic: dict[tuple[Any, ...], list[int]],
    log_ends: dict[tuple[str, int, int], int],
) -> None:
    """Add the traffic of an exchange, by topic, partition, second and direction, and the ends of
    logs that it shows, by topic, partition and second."""
    second = row.time_ns // 1_000_000_000
    for where, produced, records, size in row.bodies.traffic:
        sums = traffic.setdefault((*where, second, produced), [0, 0, 0])
        sums[0] += records
        sums[1] += size
        sums[2] += 1
    for topic, partition, offset in row.bodies.log_ends:
        key = topic, partition, second
        log_ends[key] = max(offset, log_ends.get(key, 0))


def _read(stretch: Stretch, record_columns: Sequence[ViewColumn]) -> Iterator[_Read]:
    """Yield all of a stretch in one reading."""
    record_names = [column.name for column in record_columns]
    for item in together(stretch, _look, record_names):
        if not isinstance(item, tuple):
            yield item
            continue
        rows, looked = item
        client_ids, bodies, values = map(list, zip(*looked, strict=True))
        table = from_columns(stretch, rows.column, len(rows), _TABLE_SCHEMA)
        arrays = dict(zip(_TABLE_SCHEMA.names, table.columns, strict=True))
        of_bodies = batch_of(values, _BODY_SCHEMA)
        arrays |= dict(zip(_BODY_SCHEMA.names, of_bodies.columns, strict=True))
        ordered = [arrays[name] for name in _EXCHANGE_SCHEMA.names]
        batch = pa.RecordBatch.from_arrays(ordered, schema=_EXCHANGE_SCHEMA)
        yield batch, _counted(rows, client_ids, bodies)


def _look(exchange: Exchange) -> tuple[str | None, ExchangeBodies, list[Any]]:
    """Return the client id, what the bodies say, and the values of `_BODY_SCHEMA`."""
    bodies, facts = bodies_of(exchange), exchange.facts
    others = {
        "routine": bodies.routine,
        "opaque": exchange.opaque,
        "unreadable": exchange.unreadable,
    }
    values = [
        others[name] if name in others else getattr(facts, name) for name in _BODY_SCHEMA.names
    ]
    return exchange.client_id, bodies, values


def _counted(
    rows: ExchangeRows, client_ids: list[str | None], bodies: list[ExchangeBodies]
) -> list[CountedExchange]:
    """Return what is counted of exchanges: what `CountedExchange.of` gives, from columns."""
    columns: dict[str, list[Any]] = {
        "client_id": client_ids,
        "node_id": rows.column("node_id").to_pylist(),
        "api": rows.column("api").to_pylist(),
        "bytes": (rows.values("request_bytes") + rows.values("response_bytes")).tolist(),
        "unanswered": rows.column("unanswered").is_valid().to_pylist(),
        "touched": [bool(names) for names in rows.column("faults").to_pylist()],
        "bodies": bodies,
    }
    ordered = (
        columns[name] if name in columns else rows.values(name).tolist()
        for name in CountedExchange._fields
    )
    return list(map(CountedExchange._make, zip(*ordered, strict=True)))
