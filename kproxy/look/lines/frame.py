"""`kproxy show --frame N`: an exchange in full, each field beside its bytes.

::

    0016  00 07 62 69 6c 6c 69 6e  group_id "billing"
    001e  67
    0000  └ hex, with its offset   └ its value, indented as it is nested

`codec.locate` gives the spans of all fields, in the order of the bytes; the decoded body is walked
in the same order, so each value meets its span.

Invariant: the rows cover each byte of a frame once, in its order: tagged fields that nobody knows,
with their counts and numbers, and what cannot be decoded, with the reason, have rows, too. Of a
long field the first lines are shown, the rest is counted.

Records are read out of their batches, compressed
ones too, with JSON values indented, and what keys and values mean below them; records have no hex.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import attrs

from kproxy.exchange import embedded
from kproxy.exchange.entities import TopicNames, topic_of
from kproxy.exchange.exchange import SASL_TOKEN, Exchange
from kproxy.exchange.words.line import Segment
from kproxy.exchange.words.wording import age, count, milliseconds
from kproxy.look.lines.lines import PLAIN, LineStyle, exchange_line, rendered
from kproxy.units import format_bytes, moment
from kproxy.wire.payloads.decoding import decode
from kproxy.wire.payloads.meaning import Decoded, Undecoded
from kproxy.wire.payloads.plain import shown_json
from kproxy.wire.payloads.schemas import Schemas
from kproxy.wire.protocol import codec, error_name, records, schema, wire
from kproxy.wire.protocol.codec import Span
from kproxy.wire.protocol.compile_locate import UNKNOWN_TAG
from kproxy.wire.protocol.compression import Allowance
from kproxy.wire.protocol.plain import uuid_text
from kproxy.wire.protocol.record_batch import Batch, Record, read_records
from kproxy.wire.protocol.schema import Layout, Message, Slot

_WIDE = 110
"""Columns from which on a terminal gets sixteen bytes per line; narrower ones get eight."""
_LINES_MAX = 8
"""Lines of hex per field; the bytes after that are only counted."""
_ELEMENTS_MAX = 12
"""Numbers or names of a list that are written out; the rest is only counted."""


@attrs.frozen
class FrameRow:
    """A line of the listing: a field, or a part of one, and the bytes that it covers."""

    depth: int
    text: str
    start: int = 0
    end: int = 0
    """Its bytes are frame[start:end]; none, if both are equal."""
    style: str = ""


def lines(exchange: Exchange, style: LineStyle = PLAIN) -> Iterator[str]:
    """Yield an exchange in full: its line, then request and response, field by field."""
    colour, width = style.colour, style.width
    yield exchange_line(exchange, attrs.evolve(style, width=None))
    for title, frame, rows in halves(exchange):
        yield ""
        yield rendered([("bold", title)], colour)
        per_line = 16 if width is None or width >= _WIDE else 8
        for row in rows:
            yield from _row_lines(row, frame, per_line, colour)


def halves(exchange: Exchange) -> Iterator[tuple[str, bytes, Iterator[FrameRow]]]:
    """Yield the request, then the response: a title, the bytes of the frame, and its rows."""
    for direction in (schema.REQUEST, schema.RESPONSE):
        yield _title(exchange, direction), *_rows(exchange, direction)


def _title(exchange: Exchange, direction: str) -> str:
    if direction == schema.REQUEST:
        where = exchange.client_address or "the client"
        size, frame = exchange.request_bytes, exchange.request_frame
        text = f"request from {where}" + (f" as user {exchange.user}" if exchange.user else "")
    else:
        where = "the broker" if exchange.node_id is None else f"broker {exchange.node_id}"
        size, frame = exchange.response_bytes, exchange.response_frame
        where = "kproxy itself" if exchange.injected else where
        text = f"response from {where}" if size else "no response"
        if size and exchange.broker_ms is not None:
            text += f", {milliseconds(exchange.broker_ms)} ms after the request was sent on"
            parts = [
                f"{name} {age(part)}"
                for name, part in (("queued", exchange.queued_ms), ("waiting", exchange.waiting_ms))
                if part
            ]
            text += f" ({', '.join(parts)})" if parts else ""
    text += f", {format_bytes(size)}" if size else ""
    return text if frame or not size else f"{text}, which are not in the recording"


# ---- fields


def _rows(exchange: Exchange, direction: str) -> tuple[bytes, Iterator[FrameRow]]:
    if direction == schema.REQUEST:
        frame, message = exchange.request_frame, exchange.request_message
    else:
        frame, message = exchange.response_frame, exchange.response_message
    if not frame:
        return b"", iter(())
    own = (exchange.request_frame or b"")[4:8]
    if own and own != struct.pack(">hh", exchange.api_key or 0, exchange.api_version or 0):
        message = None  # a forged recording: what its bytes are, and what it says they are, differ
    if message is None or exchange.api_key is None or exchange.api_version is None:
        what = "a SASL token" if exchange.api == SASL_TOKEN else "not decoded"
        why = exchange.undecoded(direction)
        return frame, iter([_size_row(frame), _rest(f"{what}: {why}" if why else what, 4, frame)])
    return frame, _message_rows(exchange, direction, frame, message)


def _size_row(frame: bytes) -> FrameRow:
    size = f"size {int.from_bytes(frame[:4], 'big', signed=True)}"
    return FrameRow(0, size, 0, min(4, len(frame)), "dim")


def _rest(text: str, start: int, frame: bytes) -> FrameRow:
    return FrameRow(0, text, min(start, len(frame)), len(frame), "mark")


def _message_rows(
    exchange: Exchange, direction: str, frame: bytes, message: Any
) -> Iterator[FrameRow]:
    yield _size_row(frame)
    of_header, of_body = layouts(exchange, direction, message)
    header = _Fields(*of_header, frame, 4, exchange)
    yield from header.rows(message.header, "dim")
    fields = _Fields(*of_body, frame, header.end, exchange)
    yield from fields.rows(message.body)
    if fields.end < len(frame):
        yield _rest("bytes behind the body", fields.end, frame)


def layouts(
    exchange: Exchange, direction: str, message: Any
) -> tuple[tuple[Message, int], tuple[Message, int]]:
    """Return the header and the body of a frame that was decoded, each with its version."""
    key, version = exchange.api_key or 0, exchange.api_version or 0
    name, of_header, body_version = "RequestHeader", codec.request_header_version, version
    if direction == schema.RESPONSE:
        name, of_header = "ResponseHeader", codec.response_header_version
        body_version = message.body_version
    body = schema.message(key, direction)
    assert body is not None  # it was decoded
    return (schema.named(name), of_header(key, version)), (body, body_version)


@attrs.define(eq=False)
class _Fields:
    """Walks the fields of a message in the order of their bytes, and matches each with its span."""

    message: Message
    version: int
    frame: bytes
    start: int
    exchange: Exchange
    end: int = attrs.field(default=0, init=False)
    _paths: dict[str, int] = attrs.field(factory=dict, init=False)
    _spans: list[Span] = attrs.field(factory=list, init=False)
    _at: int = attrs.field(default=0, init=False)
    _position: int = attrs.field(default=0, init=False)
    """The end of what has rows."""
    _names: TopicNames = attrs.field(
        default=attrs.Factory(lambda self: self.exchange.topic_names, True), init=False
    )

    def __attrs_post_init__(self) -> None:
        found = codec.layout(self.message, self.version)
        self._paths = {path: number for number, path in enumerate(_paths(self.message.fields))}
        locate = codec.locate(self.message, self.version, tuple(self._paths), unknown_tags=True)
        self._spans, self.end = locate(self.frame, self.start)
        self._position = self.start
        self._layout = found

    _layout: Layout = attrs.field(init=False)
    _within: list[Any] = attrs.field(factory=list, init=False)
    """The elements of arrays around the current field."""

    def rows(self, value: Any, style: str = "") -> Iterator[FrameRow]:
        """Yield the rows of the whole message."""
        for row in self._struct(self._layout, value, "", 0):
            yield attrs.evolve(row, style=row.style or style)

    def _struct(self, layout: Layout, value: Any, prefix: str, depth: int) -> Iterator[FrameRow]:
        for slot in layout.slots:
            yield from self._field(slot, value, prefix, depth)
        if layout.flexible:
            yield from self._tagged(layout, value, prefix, depth)

    def _field(self, slot: Slot, value: Any, prefix: str, depth: int) -> Iterator[FrameRow]:
        _, start, content, end = self._spans[self._at]
        self._at += 1
        found = getattr(value, slot.name)
        if slot.kind == "struct" and found is not None:
            self._position = content
            yield FrameRow(depth, _struct_title(slot, found), start, content)
            yield from self._structs(slot, found, f"{prefix}{slot.name}.", depth + 1)
        else:
            self._position = end
            yield FrameRow(depth, f"{slot.name} {self._field_text(slot, found)}", start, end)
            yield from self._content_rows(slot, found, depth + 1)

    def _tagged(self, layout: Layout, value: Any, prefix: str, depth: int) -> Iterator[FrameRow]:
        """Yield the rows of the tagged fields that end a struct: each of them has its number and
        its size in front."""
        start = self._position
        number, self._position = _varint(self.frame, start)
        yield FrameRow(depth, f"tagged fields: {number or 'none'}", start, self._position, "dim")
        by_path = {self._paths[f"{prefix}{slot.name}"]: slot for slot in layout.tagged}
        for _ in range(number):
            kind, _, content, end = self._spans[self._at]
            self._at += 1
            start = self._position
            tag, _ = _varint(self.frame, start)
            self._position = content
            if kind == UNKNOWN_TAG:
                self._position = end
                size = format_bytes(end - content)
                yield FrameRow(depth, f"tag {tag}, unknown to kproxy: {size}", start, end, "mark")
                continue
            yield FrameRow(depth, f"tag {tag}", start, content, "dim")
            yield from self._field(by_path[self._spans[self._at][0]], value, prefix, depth)

    def _structs(self, slot: Slot, value: Any, prefix: str, depth: int) -> Iterator[FrameRow]:
        assert slot.struct is not None
        if not slot.is_array:
            yield from self._struct(slot.struct, value, prefix, depth)
            return
        for position, each in enumerate(value):
            yield FrameRow(depth, f"{slot.name}[{position}]", style="dim")
            self._within.append(each)
            yield from self._struct(slot.struct, each, prefix, depth + 1)
            self._within.pop()

    def _field_text(self, slot: Slot, value: Any) -> str:
        if not slot.is_array or value is None:
            return self._value_text(slot, value)
        shown = [self._value_text(slot, each) for each in value[:_ELEMENTS_MAX]]
        more = f" +{len(value) - _ELEMENTS_MAX}" if len(value) > _ELEMENTS_MAX else ""
        return f"[{', '.join(shown)}{more}]"

    def _value_text(self, slot: Slot, value: Any) -> str:
        match value:
            case None:
                return "null"
            case UUID():
                name = self._names.name(value) if value.int else None
                return uuid_text(value) + (f" ({name})" if name else "")
            case str():
                return json.dumps(value, ensure_ascii=False)
            case bytes():
                return format_bytes(len(value))
            case bool():
                return str(value).lower()
            case int() if slot.name.endswith("error_code") and value:
                return f"{value} {error_name(value)}"
            case int() if slot.name == "api_key" and value in schema.api_names():
                return f"{value} {schema.api_name(value)}"
            case _:
                return str(value)

    def _content_rows(self, slot: Slot, value: Any, depth: int) -> Iterator[FrameRow]:
        """Yield rows for the content of a bytes field: records, or data embedded by consumers."""
        if not isinstance(value, bytes) or not value:
            return
        if slot.kind == "records":
            topic = topic_of(tuple(self._within), self._names)
            yield from _records_rows(value, depth, topic, self._names.schemas)
        elif self.message.name in embedded.MESSAGES:
            in_assignment = "assignment" in slot.name
            read = embedded.read_assignment if in_assignment else embedded.read_subscription
            found = read(value)
            if found.value is not None:
                yield FrameRow(depth, str(found.value), style="quiet")
            if found.undecoded:
                yield FrameRow(depth, found.undecoded, style="mark")


def _varint(data: bytes, position: int) -> tuple[int, int]:
    first = data[position]
    return (first, position + 1) if first < 128 else wire.varint(data, position + 1, first)


def _struct_title(slot: Slot, value: Any) -> str:
    """Return the text of a field that holds structs."""
    return f"{slot.name}: {len(value) or 'none'}" if slot.is_array else slot.name


def _paths(fields: tuple[schema.Field, ...], prefix: str = "") -> Iterator[str]:
    for field in fields:
        yield f"{prefix}{field.name}"
        yield from _paths(field.fields, f"{prefix}{field.name}.")


# ---- records


def _records_rows(data: bytes, depth: int, topic: str, schemas: Schemas) -> Iterator[FrameRow]:
    allowance = Allowance()
    found = records.batches(data)
    for batch in found:
        yield FrameRow(depth, _batch_text(batch), style="quiet")
        read, damage = read_records(batch, allowance)
        for record in read:
            yield from _record_rows(record, depth + 1, topic, schemas)
        if damage is not None:
            yield FrameRow(depth + 1, str(damage), style="error")
    if found.damage is not None:
        yield FrameRow(depth, str(found.damage), style="error")
    if found.bytes_left:
        left = f"{count(found.bytes_left, 'byte')} of a batch that is cut off"
        yield FrameRow(depth, left, style="dim")


def _batch_text(batch: Batch) -> str:
    found = batch.record_count
    parts = [
        f"batch @{batch.offset}..{batch.last_offset}",
        "records" if found is None else count(found, "record"),
        batch.compression if batch.compression != "none" else "",
        f"producer {batch.producer_id} epoch {batch.producer_epoch} sequence {batch.base_sequence}"
        if batch.producer_id >= 0
        else "",
        "transactional" if batch.transactional else "",
        "control" if batch.control else "",
        "" if batch.crc_ok else "WRONG CHECKSUM",
    ]
    return ", ".join(part for part in parts if part)


def _record_rows(record: Record, depth: int, topic: str, schemas: Schemas) -> Iterator[FrameRow]:
    meanings = {
        part: decode(part, topic, record.key, record.value, record.headers, schemas)
        for part in ("key", "value")
    }
    yield FrameRow(depth, f"@{record.offset} {when(record.timestamp)}", style="api")
    if record.control_type is not None:
        yield FrameRow(depth + 1, record.control_type, style="mark")
        return
    yield FrameRow(depth + 1, f"key {value_text(record.key)}")
    yield from _meaning_rows(meanings["key"], depth + 2)
    for name, value in record.headers:
        yield FrameRow(depth + 1, f"header {name}: {value_text(value)}")
    first, *rest = _pretty(record.value).splitlines() or [""]
    yield FrameRow(depth + 1, f"value {first}")
    yield from (FrameRow(depth + 1, f"      {line}") for line in rest)
    yield from _meaning_rows(meanings["value"], depth + 2)


def _meaning_rows(meaning: Decoded | Undecoded | None, depth: int) -> Iterator[FrameRow]:
    match meaning:
        case Decoded(value, by):
            yield FrameRow(depth, by, style="quiet")
            yield from (FrameRow(depth, line) for line in shown_json(value, indent=2).split("\n"))
        case Undecoded(why):
            yield FrameRow(depth, why, style="mark")
        case None:
            pass


def when(timestamp: int) -> str:
    """Return the timestamp of a record as text; clients may send any 64-bit number."""
    if timestamp == -1:
        return "–"
    try:
        time = moment(timestamp * 1_000_000)
    except OverflowError:
        return f"timestamp {timestamp}"
    return f"{time:%Y-%m-%dT%H:%M:%S}.{timestamp % 1000:03}Z"


def value_text(data: bytes | None) -> str:
    """Return a key or value in one line: text, `null`, or hex where it is not UTF-8."""
    if data is None:
        return "null"
    try:
        return data.decode()
    except UnicodeDecodeError:
        return f"0x{data[:64].hex()}{'…' if len(data) > 64 else ''} ({format_bytes(len(data))})"


def _pretty(data: bytes | None) -> str:
    """Return a value as text, indented if it is a JSON object or array."""
    text = value_text(data)
    if text[:1] not in ("{", "["):
        return text
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return text


# ---- hex


def _row_lines(row: FrameRow, frame: bytes, per_line: int, colour: bool) -> Iterator[str]:
    indent = "  " * row.depth
    hex_width = 3 * per_line
    starts = list(range(row.start, row.end, per_line)) or [-1]
    for position, start in enumerate(starts[:_LINES_MAX]):
        left = " " * (6 + hex_width)
        if start >= 0:
            part = frame[start : min(start + per_line, row.end)]
            left = f"{start:04x}  {part.hex(' '):<{hex_width}}"
        text: list[Segment] = [(row.style, f"{indent}{row.text}")] if not position else []
        yield rendered([("dim", left + " "), *text], colour)
    if len(starts) > _LINES_MAX:
        more = row.end - starts[_LINES_MAX]
        yield rendered([("dim", f"      … {count(more, 'byte')} more")], colour)
