"""Files as other versions of kproxy write them: with other columns, or of another format version.

    recording ─▶ its records, rows by pyarrow ─▶ changed ─▶ encoded anew ─▶ a file, sums and all

They are native files: every checksum and the summary are right. Only the encoding of a record batch
is kproxy's own (`Schema.encode`); the rows are taken apart by pyarrow, and put together here.
"""

from __future__ import annotations

import itertools
import struct
import zlib
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import mcap.records
import pyarrow.ipc

from kproxy.recording.arrow import ArrowField, Schema
from kproxy.recording.ending import ChunkInfo
from kproxy.recording.layout import DEFAULTS, EXCHANGES, FRAMES, SMALL_BATCH_BYTES
from kproxy.recording.mcap import (
    CHANNEL,
    CHUNK,
    CHUNK_INDEX,
    DATA_END,
    FOOTER,
    HEADER,
    MAGIC,
    METADATA,
    METADATA_INDEX,
    RECORD,
    SCHEMA,
    STATISTICS,
    SUMMARY_OFFSET,
    channel_record,
    message_head,
    record,
    schema_record,
    string,
    string_map,
)
from tests.recording.making import oracle

CODES = {"int8": "b", "int16": "h", "int32": "i", "int64": "q"}
Row = dict[str, Any]


@attrs.frozen
class Table:
    """What another version's table is like."""

    fields: tuple[ArrowField, ...]
    row: Callable[[Row], Row] = dict
    """Makes its rows of ours."""


PAIR = (ArrowField("offset", "int64"), ArrowField("kind", "int8"))
MORE_FIELDS = (
    ArrowField("rtt_ns", "int64"),
    ArrowField("cipher", "binary"),
    ArrowField("small", "int8"),
    ArrowField("marks", "int32", many=True),
    ArrowField("names", "binary", many=True),
    ArrowField("pairs", PAIR, many=True),
    ArrowField("pair", PAIR),
)
"""Columns of every type that there may be."""


def more(seed: int) -> Row:
    """The values of `MORE_FIELDS` in a row."""
    pairs = [{"offset": seed + each, "kind": -each} for each in range(seed % 3)]
    return {
        "rtt_ns": -seed << 20,
        "cipher": b"c%d" % seed,
        "small": seed % 100,
        "marks": list(range(seed % 4)),
        "names": [b"n" * each for each in range(seed % 5)],
        "pairs": pairs,
        "pair": {"offset": seed, "kind": 7},
    }


NO_MORE: Row = {
    "rtt_ns": 0, "cipher": b"", "small": 0, "marks": [], "names": [], "pairs": [],
    "pair": {"offset": 0, "kind": 0},
}  # fmt: skip
"""The same, in rows of a kproxy that does not know these columns."""
OF_FRAMES, OF_EXCHANGES = FRAMES.fields, EXCHANGES.fields


def seed_of(row: Row) -> int:
    """A number that stays with a row of either table."""
    return row["number"] * 2 + row.get("side", 5)


def _with_more(row: Row) -> Row:
    return row | more(seed_of(row))


def _around(fields: tuple[ArrowField, ...]) -> tuple[ArrowField, ...]:
    """Columns in front of ours, between them, and behind them."""
    return (*MORE_FIELDS[:1], *fields[:3], *MORE_FIELDS[1:5], *fields[3:], *MORE_FIELDS[5:])


ADDED = {
    "/kafka/frames": Table(_around(OF_FRAMES), _with_more),
    "/kafka/exchanges": Table(_around(OF_EXCHANGES), _with_more),
}
REVERSED = {
    "/kafka/frames": Table(OF_FRAMES[::-1]),
    "/kafka/exchanges": Table(OF_EXCHANGES[::-1]),
}


def widened(fields: Iterable[ArrowField], **types: str) -> tuple[ArrowField, ...]:
    """The columns, some of them of another type."""
    return tuple(attrs.evolve(field, type=types.get(field.name, field.type)) for field in fields)


WIDER = {
    "/kafka/frames": Table(
        widened(OF_FRAMES, connection="int64", side="int32", flags="int64", sizes="int64")
    ),
    "/kafka/exchanges": Table(
        widened(OF_EXCHANGES, connection="int64", error_code="int32", fault_ids="int64")
    ),
}
NARROWER = {
    "/kafka/frames": Table(widened(OF_FRAMES, notes="int16", connection="int16", sizes="int32")),
    "/kafka/exchanges": Table(
        widened(OF_EXCHANGES, number="int32", connection="int16", fault_ids="int16")
    ),
}


def without(fields: Iterable[ArrowField], *names: str) -> Table:
    """A table that lacks columns."""
    return Table(tuple(field for field in fields if field.name not in names))


# ---------------------------------------------------------------- writing


def encoded(fields: Sequence[ArrowField], rows: Sequence[Row]) -> bytes:
    """Rows as a record batch."""
    lengths: list[int] = []
    buffers: list[bytes] = []
    for field in fields:
        # The source may be older than some of our columns.
        values = [row.get(field.name, DEFAULTS.get(field.name)) for row in rows]
        _add(field, values, lengths, buffers)
    parts, _ = Schema(*fields).encode(lengths, buffers[:-1], buffers[-1:])
    return b"".join(parts)


def _add(field: ArrowField, values: list[Any], lengths: list[int], buffers: list[bytes]) -> None:
    lengths.append(len(values))
    if field.many or field.type == "binary":
        ends = [0, *itertools.accumulate(map(len, values))]
        buffers.append(array("i", ends).tobytes())
    if field.many:
        items = [item for each in values for item in each]
        _add(attrs.evolve(field, many=False), items, lengths, buffers)
    elif isinstance(field.type, tuple):
        for child in field.type:
            _add(child, [value[child.name] for value in values], lengths, buffers)
    elif field.type == "binary":
        buffers.append(b"".join(values))
    else:
        buffers.append(array(CODES[field.type], values).tobytes())


def rows_of(schema: bytes, message: bytes) -> list[Row]:
    """The rows of a message, as pyarrow reads them."""
    return pyarrow.ipc.open_stream(schema + message).read_all().to_pylist()


def remade(
    source: Path,
    target: Path,
    tables: Mapping[str, Table] | None = None,
    *,
    schemas: Mapping[str, bytes] | None = None,
    about: Mapping[str, str] | None = None,
    library: str = "kproxy 0.9.0",
) -> Path:
    """Write a complete recording as a kproxy does whose tables are different. `schemas` stand in
    its Schema records, whatever its messages are; `about` is set in its metadata."""
    tables, forged, about = tables or {}, schemas or {}, about or {}
    found = list(itertools.takewhile(_of_data, oracle(source)))
    named = {each.id: each for each in found if isinstance(each, mcap.records.Schema)}
    channels = {each.id: each for each in found if isinstance(each, mcap.records.Channel)}
    schema_records = channel_records = b""
    for number, channel in channels.items():
        schema = named[channel.schema_id]
        data = schema.data
        if channel.topic in tables:
            data = Schema(*tables[channel.topic].fields).message
        data = forged.get(channel.topic, data)
        schema_records += schema_record(number, schema.name, schema.encoding, data)
        metadata = {key: value for key, value in {**channel.metadata, **about}.items() if value}
        channel_records += channel_record(
            number, number, channel.topic, channel.message_encoding, metadata
        )
    head = MAGIC + record(HEADER, string("kproxy") + string(library))
    head += schema_records + channel_records
    (metadata,) = [each for each in found if isinstance(each, mcap.records.Metadata)]
    entries = {**metadata.metadata, **about}
    entries = {key: value for key, value in entries.items() if value and key != "head_crc32"}
    own = record(METADATA, string("kproxy") + string_map(entries | {"head_crc32": "0" * 8}))
    place = len(head), len(own)
    head = (head + own)[:-8]
    out = bytearray(head + f"{zlib.crc32(head):08x}".encode())
    chunks: list[ChunkInfo] = []
    for batch in _batches(found):
        parts = [(message, _remade(message, channels, named, tables)) for message in batch]
        for some in _chunked(parts):
            chunks.append(_chunk(out, some))
    _end(out, schema_records, channel_records, chunks, place)
    target.write_bytes(out)
    return target


def _of_data(found: object) -> bool:
    return not isinstance(found, mcap.records.DataEnd)


def _batches(found: Iterable[object]) -> list[list[mcap.records.Message]]:
    batches: list[list[mcap.records.Message]] = []
    for each in found:
        if isinstance(each, mcap.records.Message):
            if each.channel_id == 1:
                batches.append([])
            batches[-1].append(each)
    return batches


def _remade(
    message: mcap.records.Message,
    channels: Mapping[int, mcap.records.Channel],
    schemas: Mapping[int, mcap.records.Schema],
    tables: Mapping[str, Table],
) -> bytes:
    channel = channels[message.channel_id]
    table = tables.get(channel.topic)
    data = message.data
    if table is not None:
        rows = rows_of(schemas[channel.schema_id].data, data)
        data = encoded(table.fields, list(map(table.row, rows)))
    times = message.log_time, message.publish_time
    return message_head(message.channel_id, message.sequence, *times, len(data)) + data


Part = tuple[mcap.records.Message, bytes]


def _chunked(parts: list[Part]) -> list[list[Part]]:
    small = sum(len(data) for _, data in parts) < SMALL_BATCH_BYTES
    return [parts] if small else [parts[:1], parts[1:]]


def _chunk(out: bytearray, parts: list[Part]) -> ChunkInfo:
    records = b"".join(data for _, data in parts)
    times = [message.log_time for message, _ in parts]
    fixed = struct.pack("<QQQI", min(times), max(times), len(records), zlib.crc32(records))
    offset, size = len(out), len(records)
    out += record(CHUNK, fixed + string("") + size.to_bytes(8, "little") + records)
    counts = [sum(message.channel_id == each for message, _ in parts) for each in (1, 2, 3, 4)]
    length = len(out) - offset
    return ChunkInfo(min(times), max(times), offset, length, "", size, size, tuple(counts))


def _end(
    out: bytearray,
    schemas: bytes,
    channels: bytes,
    chunks: list[ChunkInfo],
    metadata: tuple[int, int],
) -> None:
    out += record(DATA_END, struct.pack("<I", zlib.crc32(out)))
    counts = [sum(chunk.messages[each] for chunk in chunks) for each in range(4)]
    times = min((c.start_ns for c in chunks), default=0), max((c.end_ns for c in chunks), default=0)
    statistics = struct.pack("<QHIIIIQQI", sum(counts), 4, 4, 0, 1, len(chunks), *times, 40)
    for number, each in enumerate(counts, 1):
        statistics += struct.pack("<HQ", number, each)
    groups = {
        SCHEMA: schemas,
        CHANNEL: channels,
        STATISTICS: record(STATISTICS, statistics),
        CHUNK_INDEX: b"".join(chunk.index_record() for chunk in chunks),
        METADATA_INDEX: record(METADATA_INDEX, struct.pack("<QQ", *metadata) + string("kproxy")),
    }
    start = at = len(out)
    offsets = b""
    for opcode, records in groups.items():
        if records:
            place = struct.pack("<BQQ", opcode, at, len(records))
            offsets += record(SUMMARY_OFFSET, place)
            at += len(records)
    summary = b"".join(groups.values()) + offsets
    summary += RECORD.pack(FOOTER, 20) + struct.pack("<QQ", start, at)
    out += summary + struct.pack("<I", zlib.crc32(summary)) + MAGIC
