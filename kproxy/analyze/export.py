"""The work of a task: rows of the tables that come straight from recordings.

::

    Stretch ─▶ record batches ─▶ exchanges, records          FOLDER/exchanges/part-00003.parquet …
            ├▶ Exchange ─▶ columns of exchanges that only bodies have
            │          └─▶ traffic, log_ends, …, group_events   steps, from which tables are made
            └▶ Note ─▶ events

The task itself writes the rows as Parquet, and returns only their number to the driver. Nothing is
grouped by connection, so one huge connection does no harm.
"""

from __future__ import annotations

import itertools
import secrets
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import pyarrow as pa

from kproxy.analyze.described import comments
from kproxy.exchange import delivered, entities, topic_records
from kproxy.exchange.exchange import Exchange
from kproxy.protocol import error_name
from kproxy.tables.arrow_types import BOOLEAN, INT32, INT64, TEXT, TIME
from kproxy.tables.item_columns import batch_of, getters_of
from kproxy.tables.parquet import ParquetFile
from kproxy.tables.reading import (
    FOUND_IN_TABLES,
    events,
    exchanges,
    file_values,
    record_batches,
)
from kproxy.tables.splits import Stretch
from kproxy.tables.views import EVENTS, EXCHANGES, RECORDS, ViewColumn, chosen, schema_of

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
    "cluster_ids": _step(("recording", TEXT), ("cluster_id", TEXT)),
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
}  # fmt: skip
"""The tables that tasks write: final ones, and steps from which others are made."""

_BATCH_ROWS = 8192
"""Rows that are converted to columns together."""


@attrs.define(eq=False)
class TableSink:
    """Writes one Parquet file; a file without rows is not created.

    It has a temporary name until it is closed, so that two attempts at one task, of which the later
    one may be killed, do not write into each other's file.
    """

    path: Path
    schema: pa.Schema
    _rows: list[Sequence[Any]] = attrs.field(factory=list)
    _file: ParquetFile | None = None

    @property
    def count(self) -> int:
        """The number of rows written."""
        return 0 if self._file is None else self._file.count

    def add(self, row: Sequence[Any]) -> None:
        """Add a row."""
        self._rows.append(row)
        if len(self._rows) >= _BATCH_ROWS:
            self._flush()

    def write(self, batch: pa.RecordBatch) -> None:
        """Write rows that are columns already."""
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # Spark ignores names with a dot, and no suffix keeps it out of *.parquet.
            partial = self.path.with_name(f".{self.path.stem}.{secrets.token_hex(4)}")
            self._file = ParquetFile(partial, self.schema)
        self._file.write(batch)

    def _flush(self) -> None:
        rows, self._rows = self._rows, []
        self.write(batch_of(rows, self.schema))

    def close(self) -> None:
        """Write the remaining rows, and give the file its final name."""
        if self._rows:
            self._flush()
        if self._file is not None:
            self._file.close()
            self._file.path.replace(self.path)

    def abandon(self) -> None:
        """Remove the unfinished file after an error."""
        if self._file is not None:
            self._file.abandon()


def write(
    task: int, stretches: Sequence[Stretch], folder: str, with_records: bool
) -> dict[str, int]:
    """Write the rows of stretches into `folder`; return how many there are, by table.

    Raises: RecordingError; OSError, when the disk is full.
    """
    sinks = {
        name: TableSink(Path(folder) / name / f"part-{task:05}.parquet", schema_of(columns))
        for name, columns in TABLES.items()
    }
    try:
        for stretch in stretches:
            _write_stretch(stretch, sinks, with_records)
        for sink in sinks.values():
            sink.close()
    except BaseException:
        for sink in sinks.values():
            sink.abandon()
        raise
    return {name: sink.count for name, sink in sinks.items()}


def _write_stretch(stretch: Stretch, sinks: dict[str, TableSink], with_records: bool) -> None:
    traffic: Counter[tuple[Any, ...]] = Counter()
    log_ends: dict[tuple[str, int, int], int] = {}
    cluster_ids: set[str | None] = {None}
    schema, sink = schema_of(_BODY_COLUMNS), sinks["exchanges"]
    items, constants = exchanges(stretch), file_values(stretch)
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
            if exchange.api in _CLUSTER_ID_APIS:
                cluster_ids.add(getattr(exchange.response, "cluster_id", None) or None)
            for row in group_events(exchange):
                sinks["group_events"].add((stretch.recording, exchange.time, *row, exchange.number))
        arrays = dict(zip(schema.names, batch_of(bodies, schema).columns, strict=True))
        arrays |= dict(zip(batch.schema.names, batch.columns, strict=True))
        ordered = [arrays[name] for name in sink.schema.names]
        sinks["exchanges"].write(
            pa.RecordBatch.from_arrays(ordered, schema=sinks["exchanges"].schema)
        )
    if with_records:
        for batch in record_batches(stretch, "records", RECORD_COLUMNS):
            sinks["records"].write(batch)
    event_getters = getters_of(EVENT_COLUMNS, constants)
    for note in events(stretch):
        sinks["events"].add([get(note) for get in event_getters])
    for key in {key[:-1] for key in traffic}:
        sinks["traffic"].add((*key, *(traffic[(*key, what)] for what in range(3))))
    for key, offset in log_ends.items():
        sinks["log_ends"].add((stretch.recording, *key, offset))
    for cluster_id in cluster_ids:
        sinks["cluster_ids"].add((stretch.recording, cluster_id))


# ---------------------------------------------------------------- values from bodies


def count_traffic(exchange: Exchange, second: int, traffic: Counter[tuple[Any, ...]]) -> None:
    """Add the records, bytes and exchanges of an exchange to the sums by topic, partition, second
    and direction (True: produced). Batches that the broker refused are left out."""
    produced = exchange.api == "Produce"
    refused = delivered.refused(exchange) if produced else ()
    for each in exchange.facts.records:
        if each.where in refused:
            continue
        key = (*each.where, second, produced)
        traffic[(*key, 0)] += topic_records.batch_heads(each).records or 0
        traffic[(*key, 1)] += each.stop - each.start
        traffic[(*key, 2)] += 1


def ends_of(exchange: Exchange) -> Iterator[tuple[str, int, int]]:
    """Yield the ends of logs that an exchange shows: topic, partition, offset. The offset behind a
    produced batch is the end of its log at that time."""
    if exchange.api == "Produce":
        offsets = topic_records.base_offsets(exchange.facts)
        for each in exchange.facts.records:
            count = topic_records.batch_heads(each).records
            if each.where in offsets and count is not None:
                yield each.where.topic, each.where.partition, offsets[each.where] + count
    elif exchange.api == "Fetch":
        for each in exchange.facts.results:
            if each.error_code == 0 and each.offset >= 0:
                yield each.where.topic, each.where.partition, each.offset
    elif exchange.api == "ListOffsets":
        yield from _latest(exchange)


def _latest(exchange: Exchange) -> Iterator[tuple[str, int, int]]:
    """Yield the ends of logs that a ListOffsets asked for."""
    response = exchange.response
    if response is not None and exchange.request is not None:
        latest = {
            (topic.name, partition.partition_index)
            for topic in exchange.request.topics
            for partition in topic.partitions
            if partition.timestamp == -1
        }
        for topic in response.topics:
            for partition in topic.partitions:
                if (topic.name, partition.partition_index) in latest and partition.offset >= 0:
                    yield topic.name, partition.partition_index, partition.offset


_CLUSTER_ID_APIS = frozenset({"Metadata", "DescribeCluster"})
_COMMIT_APIS = frozenset({"OffsetCommit", "TxnOffsetCommit"})
_MEMBER_APIS = frozenset({"JoinGroup", "SyncGroup", "Heartbeat", "LeaveGroup"})
_GROUP_APIS = _COMMIT_APIS | _MEMBER_APIS | {"ConsumerGroupHeartbeat"}


def group_events(exchange: Exchange) -> Iterator[tuple[Any, ...]]:
    """Yield the events of groups in an exchange: group, event, client id, member, generation,
    topic, partition, committed offset, error. Heartbeats that change nothing are left out."""
    api, client_id = exchange.api, exchange.client_id
    if api not in _GROUP_APIS or (api == "Heartbeat" and not exchange.errors):
        return
    request, response = exchange.request, exchange.response
    if request is None:
        return
    code = getattr(response, "error_code", 0)
    error = error_name(code) if code else None
    if api in _MEMBER_APIS:
        generation = getattr(response, "generation_id", getattr(request, "generation_id", None))
        member = getattr(response, "member_id", "") or request.member_id
        if api != "Heartbeat" or error:
            yield (
                request.group_id, api, client_id, member,
                generation if generation is None or generation >= 0 else None,
                None, None, None, error,
            )  # fmt: skip
    elif api == "ConsumerGroupHeartbeat":
        changes = error or getattr(response, "assignment", None) is not None
        if changes or request.member_epoch <= 0:
            epoch = getattr(response, "member_epoch", None)
            member = request.member_id or getattr(response, "member_id", None)
            yield (
                request.group_id, api, client_id, member,
                epoch if epoch and epoch > 0 else None, None, None, None, error,
            )  # fmt: skip
    elif api in _COMMIT_APIS:
        yield from _commits(exchange)


def _commits(exchange: Exchange) -> Iterator[tuple[Any, ...]]:
    request, names = exchange.request, exchange.topic_names
    errors = {
        (entities.topic_of((topic,), names), partition.partition_index): partition.error_code
        for topic in getattr(exchange.response, "topics", ())
        for partition in topic.partitions
    }
    generation = request.generation_id_or_member_epoch
    for topic in request.topics:
        where = entities.topic_of((topic,), names)
        for partition in topic.partitions:
            code = errors.get((where, partition.partition_index), 0)
            yield (
                request.group_id, exchange.api, exchange.client_id, request.member_id,
                generation if generation >= 0 else None, where, partition.partition_index,
                partition.committed_offset, error_name(code) if code else None,
            )  # fmt: skip
