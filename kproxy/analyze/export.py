"""What a task writes of its stretches: rows of the tables that come straight from recordings.

::

    Stretch ─▶ record batches ─▶ exchanges, records          FOLDER/exchanges/part-00003.parquet …
            ├▶ Exchange ─▶ columns of exchanges that only bodies tell
            │          └─▶ traffic, log_ends, …, group_events   steps, from which tables are made
            └▶ Note ─▶ events

Rows are written as Parquet in the task itself: what goes back to the
driver is how many there were. Nothing groups by connection, so one huge connection does no harm.
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
from kproxy.tables.views import EVENTS, EXCHANGES, RECORDS, Column, chosen, schema_of

_LEFT_OUT = frozenset(
    {"request", "response", "request_frame", "response_frame", "partitions", "file"}
)
EXCHANGE_COLUMNS = chosen("exchanges", [c.name for c in EXCHANGES if c.name not in _LEFT_OUT])
_OF_TABLES = tuple(c for c in EXCHANGE_COLUMNS if c.name in FOUND_IN_TABLES)
_OF_BODIES = tuple(c for c in EXCHANGE_COLUMNS if c.name not in FOUND_IN_TABLES)
RECORD_COLUMNS = chosen("records", [c.name for c in RECORDS if c.name not in _LEFT_OUT])
EVENT_COLUMNS = chosen("events", [c.name for c in EVENTS if c.name not in _LEFT_OUT])


def _step(*columns: tuple[str, pa.DataType], table: str = "") -> tuple[Column, ...]:
    said = comments(table) if table else {}
    return tuple(Column(name, kind, said.get(name, "")) for name, kind in columns)


TABLES: dict[str, tuple[Column, ...]] = {
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
"""What tasks write: tables, and steps from which others are made."""

_ROWS = 8192
"""So many rows are made columns together."""


@attrs.define(eq=False)
class TableSink:
    """One Parquet file, which is there once it has a row and is closed.

    Until then it has a name of its own, so that two attempts at one task, of which the later one
    may be killed, do not write into each other's file.
    """

    path: Path
    schema: pa.Schema
    _rows: list[Sequence[Any]] = attrs.field(factory=list)
    _file: ParquetFile | None = None

    @property
    def count(self) -> int:
        """How many rows were written."""
        return 0 if self._file is None else self._file.count

    def add(self, row: Sequence[Any]) -> None:
        """Add a row."""
        self._rows.append(row)
        if len(self._rows) >= _ROWS:
            self._flush()

    def write(self, batch: pa.RecordBatch) -> None:
        """Add rows that are columns already."""
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # Spark, and who looks for *.parquet, passes over it.
            partial = self.path.with_name(f".{self.path.stem}.{secrets.token_hex(4)}")
            self._file = ParquetFile(partial, self.schema)
        self._file.write(batch)

    def _flush(self) -> None:
        rows, self._rows = self._rows, []
        self.write(batch_of(rows, self.schema))

    def close(self) -> None:
        """Write what is left, and give the file its name."""
        if self._rows:
            self._flush()
        if self._file is not None:
            self._file.close()
            self._file.path.replace(self.path)

    def abandon(self) -> None:
        """Leave nothing, after something went wrong."""
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
            _stretch(stretch, sinks, with_records)
        for sink in sinks.values():
            sink.close()
    except BaseException:
        for sink in sinks.values():
            sink.abandon()
        raise
    return {name: sink.count for name, sink in sinks.items()}


def _stretch(stretch: Stretch, sinks: dict[str, TableSink], with_records: bool) -> None:
    traffic: Counter[tuple[Any, ...]] = Counter()
    log_ends: dict[tuple[str, int, int], int] = {}
    cluster_ids: set[str | None] = {None}
    schema, sink = schema_of(_OF_BODIES), sinks["exchanges"]
    items, constants = exchanges(stretch), file_values(stretch)
    of_bodies = getters_of(_OF_BODIES, constants)
    for batch in record_batches(stretch, "exchanges", _OF_TABLES):
        bodies: list[list[Any]] = []
        for exchange in itertools.islice(items, len(batch)):
            bodies.append([get(exchange) for get in of_bodies])
            second = exchange.time_ns // 1_000_000_000
            count_traffic(exchange, second, traffic)
            for topic, partition, offset in ends_of(exchange):
                key = (topic, partition, second)
                log_ends[key] = max(offset, log_ends.get(key, 0))
            if exchange.api in _TELL_CLUSTER:
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
    of_event = getters_of(EVENT_COLUMNS, constants)
    for note in events(stretch):
        sinks["events"].add([get(note) for get in of_event])
    for key in {key[:-1] for key in traffic}:
        sinks["traffic"].add((*key, *(traffic[(*key, what)] for what in range(3))))
    for key, offset in log_ends.items():
        sinks["log_ends"].add((stretch.recording, *key, offset))
    for cluster_id in cluster_ids:
        sinks["cluster_ids"].add((stretch.recording, cluster_id))


# ---------------------------------------------------------------- what bodies tell


def count_traffic(exchange: Exchange, second: int, traffic: Counter[tuple[Any, ...]]) -> None:
    """Add what an exchange carries to the sums by topic, partition, second, and whether it was
    produced: records, bytes, exchanges. What a broker refused to write is left out."""
    produced = exchange.api == "Produce"
    refused = delivered.refused(exchange) if produced else ()
    for each in exchange.facts.records:
        if each.where in refused:
            continue
        key = (*each.where, second, produced)
        traffic[(*key, 0)] += topic_records.heads(each).records or 0
        traffic[(*key, 1)] += each.stop - each.start
        traffic[(*key, 2)] += 1


def ends_of(exchange: Exchange) -> Iterator[tuple[str, int, int]]:
    """Yield what an exchange tells of the ends of logs: topic, partition, offset. What was produced
    ends a log, until more is."""
    if exchange.api == "Produce":
        offsets = topic_records.base_offsets(exchange.facts)
        for each in exchange.facts.records:
            count = topic_records.heads(each).records
            if each.where in offsets and count is not None:
                yield each.where.topic, each.where.partition, offsets[each.where] + count
    elif exchange.api == "Fetch":
        for each in exchange.facts.results:
            if each.error_code == 0 and each.offset >= 0:
                yield each.where.topic, each.where.partition, each.offset
    elif exchange.api == "ListOffsets":
        yield from _latest(exchange)


def _latest(exchange: Exchange) -> Iterator[tuple[str, int, int]]:
    """Yield the ends of logs that were asked for."""
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


_TELL_CLUSTER = frozenset({"Metadata", "DescribeCluster"})
_COMMITS = frozenset({"OffsetCommit", "TxnOffsetCommit"})
_MEMBERS = frozenset({"JoinGroup", "SyncGroup", "Heartbeat", "LeaveGroup"})
_OF_GROUPS = _COMMITS | _MEMBERS | {"ConsumerGroupHeartbeat"}


def group_events(exchange: Exchange) -> Iterator[tuple[Any, ...]]:
    """Yield what an exchange tells of groups: group, event, client id, member, generation, topic,
    partition, committed offset, error. Heartbeats that change nothing are left out."""
    api, client_id = exchange.api, exchange.client_id
    if api not in _OF_GROUPS or (api == "Heartbeat" and not exchange.errors):
        return
    request, response = exchange.request, exchange.response
    if request is None:
        return
    code = getattr(response, "error_code", 0)
    error = error_name(code) if code else None
    if api in _MEMBERS:
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
    elif api in _COMMITS:
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
