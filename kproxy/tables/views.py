"""The views of recordings, and their columns: names, types, descriptions and values.

    exchanges ─ Exchange      records ─ (Exchange, TopicRecord)
    events    ─ Note          frames  ─ (Exchange, "request" or "response")

A column takes its value out of one such item. Names are those of `kproxy show --json` and of
filters. Columns in nanoseconds are exact, timestamps have microseconds.

Invariants: the default columns of `exchanges` come without opening a body;
columns that need bodies are only included if they are named.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

import attrs
import pyarrow as pa

from kproxy.exchange import endings
from kproxy.exchange.body_json import body_text
from kproxy.exchange.entries import OPAQUE, REDACTED, Note
from kproxy.exchange.exchange import FIELDS, Exchange
from kproxy.exchange.fields import ExchangeField, Type
from kproxy.exchange.filter.values import suggestion
from kproxy.tables.arrow_types import BOOLEAN, BYTES, HEADERS, INT32, INT64, OF_FIELDS, TEXT, TIME
from kproxy.units import moment
from kproxy.wire.payloads.meaning import Decoded, Undecoded
from kproxy.wire.payloads.plain import json_text
from kproxy.wire.protocol.record_fields import wrapped

TIMESTAMP_MS_MAX = 253_402_300_799_999
"""The last millisecond of the year 9999: where Python's and Spark's timestamps end."""
_NS_END = 1 << 63


@attrs.frozen
class ViewColumn:
    """One column of a view."""

    name: str
    type: pa.DataType
    comment: str = ""
    value_of: Callable[[Any], Any] | None = None
    """Takes the value out of an item of its view; None if its values do not come from items."""
    default: bool = True
    """True if it is included when no columns are named."""


RECORDING = "recording"
FILE = "file"
"""Columns with one value for a whole file."""


_WHERE = (
    ViewColumn(RECORDING, TEXT, "id of the recording: numbers count within it"),
    ViewColumn(FILE, TEXT, "the file that has the row", default=False),
)


def when(time_ns: int) -> datetime | None:
    """Return a time of a recording; None for 0, and for times out of range."""
    if not 0 < time_ns < _NS_END:
        return None
    return moment(time_ns)


# ---------------------------------------------------------------- exchanges


def _get(field: ExchangeField) -> Callable[[Exchange], Any]:
    """Return the function that makes the value of a field in a form for Arrow. The exchange does
    not keep it: it is asked for once."""
    name, get = field.name, field.make
    if field.type is Type.BODY:
        return lambda exchange: body_text(exchange, name)
    if field.type is Type.WAITED:
        return lambda exchange: (waited := get(exchange)) and attrs.asdict(waited)
    if field.type is Type.PARTITIONS:
        return lambda exchange: [each._asdict() for each in get(exchange)]
    return get


_FIELDS = [
    ViewColumn(each.name, OF_FIELDS[each.type], each.about, _get(each), not each.need.opens_bodies)
    for each in FIELDS.values()
]
EXCHANGES = (*_WHERE, *sorted(_FIELDS, key=lambda column: not column.default))
"""The fields of an exchange; those that need bodies come last."""

# ---------------------------------------------------------------- records


def _timestamp(item: Any) -> datetime | None:
    milliseconds = item[1].timestamp
    if not 0 <= milliseconds <= TIMESTAMP_MS_MAX:
        return None
    return moment(milliseconds * 1_000_000)


def _timestamp_ms(item: Any) -> int:
    return item[1].timestamp


def _offset(item: Any) -> int | None:
    return None if item[1].offset is None else wrapped(item[1].offset)


def _headers(item: Any) -> list[dict[str, Any]]:
    return [{"key": key, "value": value} for key, value in item[1].headers]


def _record(name: str, type_: pa.DataType, comment: str) -> ViewColumn:
    get = operator.attrgetter(name)
    return ViewColumn(name, type_, comment, lambda item: get(item[1]))


DECODED = {"key_json": "key", "value_json": "value"}
"""The columns with JSON of a part of records."""
DECODED_CHARACTERS_MAX = 16 << 20


def decoded_text(meaning: Decoded | Undecoded | None) -> str | None:
    """Return what a part of a record means as the text of a column."""
    text = json_text(meaning.value) if isinstance(meaning, Decoded) else None
    return None if text is None or len(text) > DECODED_CHARACTERS_MAX else text


def _decoded(name: str, comment: str) -> ViewColumn:
    part = DECODED[name]
    return ViewColumn(
        name, TEXT, comment, lambda item: decoded_text(item[1].meaning(part)), default=False
    )


def _carrier(name: str, comment: str = "") -> ViewColumn:
    """Return the column of a field of the exchange."""
    field, get = FIELDS[name], FIELDS[name].make
    return ViewColumn(
        name, OF_FIELDS[field.type], comment or field.about, lambda item: get(item[0])
    )


RECORDS = (
    *_WHERE,
    _record("topic", TEXT, "name of the topic; its id if nothing told the name"),
    _record("partition", INT32, "number of the partition"),
    ViewColumn(
        "offset",
        INT64,
        "offset; null if no Produce response says it: also if it was refused",
        _offset,
    ),
    ViewColumn("timestamp", TIME, "of the record", _timestamp),
    ViewColumn("timestamp_ms", INT64, "of the record, ms since 1970", _timestamp_ms),
    _record("key", BYTES, "key; null where there is none"),
    _record("value", BYTES, "value; null is a tombstone"),
    ViewColumn("headers", HEADERS, "headers, in order", _headers),
    _record("produced", BOOLEAN, "a client sent it; else a broker did, to be consumed"),
    _record("aborted", BOOLEAN, "it is known that its transaction was aborted"),
    _carrier("number", "the exchange that carried it"),
    _carrier("time", "when the request of that exchange arrived"),
    _carrier("connection"),
    _carrier("client_id"),
    _carrier("node_id"),
    _decoded("key_json", "key as JSON text, decoded by its schema; null where it is not"),
    _decoded("value_json", "value as JSON text, decoded by its schema; null where it is not"),
)

# ---------------------------------------------------------------- frames

_SIDES = {"request": "client", "response": "broker"}


def _recorded(name: str) -> Callable[[Any], Any]:
    """Return the function that takes what the row of an exchange has of a frame."""
    gets = {side: operator.attrgetter(f"row.{side}_{name}") for side in _SIDES}
    return lambda item: gets[item[1]](item[0])


def _side(name: str, type_: pa.DataType, comment: str, recorded: str = "") -> ViewColumn:
    return ViewColumn(name, type_, comment, _recorded(recorded or name))


def _flag(name: str, flag: int, comment: str) -> ViewColumn:
    get = _recorded("flags")
    return ViewColumn(name, BOOLEAN, comment, lambda item: bool(get(item) & flag))


_received_ns = _recorded("received_ns")


def _arrived(item: Any) -> datetime | None:
    return when(_received_ns(item))


def _data(item: Any) -> bytes | None:
    exchange, direction = item
    return exchange.request_frame if direction == "request" else exchange.response_frame


FRAMES = (
    *_WHERE,
    _carrier("number", "the exchange that it belongs to"),
    ViewColumn("side", TEXT, "who sent it: client, broker", lambda item: _SIDES[item[1]]),
    ViewColumn("time", TIME, "when it arrived", _arrived),
    _carrier("connection"),
    _carrier("client_id"),
    _carrier("node_id"),
    _carrier("api"),
    _carrier("api_key"),
    _carrier("api_version"),
    _carrier("correlation_id"),
    _side("frame_bytes", INT64, "size with the size prefix", "bytes"),
    _flag("opaque", OPAQUE, "kproxy knows no schema for it"),
    _flag("redacted", REDACTED, "secrets were blanked out of it"),
    _side("flags", INT32, "all flags (kproxy.exchange.entries)"),
    _side("received_ns", INT64, "when it arrived, ns since 1970; 0: unknown"),
    _side("sent_ns", INT64, "when it was sent on; 0: it was not, or unknown"),
    ViewColumn("data", BYTES, "the bytes as their sender sent them", _data, False),
)
"""Requests and responses, in the order of their exchanges: the request of an exchange, then its
response, if that was complete. Frames without an exchange have no row."""

# ---------------------------------------------------------------- events


def _noted(*names: str) -> Callable[[Note], Any]:
    """Return what gives the first of these values that a note has."""

    def get(note: Note) -> Any:
        found = (note.body.get(each) for each in names)
        return next((value for value in found if value is not None), None)

    return get


def _how(note: Note) -> str | None:
    if note.body.get("event") != "closed":
        return None
    first = endings.connection_end(note).first
    return None if first is None else first.how


_EVENT_NAMES = (
    "opened, open, client_id, user, closed; topic_id, schema, fault_rules, fault, session_refused,"
    " outage, slow_peer, lost, stood_still, stopped, clock_step, removed, ignored, learned,"
    " made_by, pending, recovered; of the files: torn, damaged, recording, missing, copied, gone,"
    " all_removed, pause, unread"
)
EVENTS = (
    *_WHERE,
    ViewColumn("time", TIME, "when it happened", lambda note: when(note.time_ns)),
    ViewColumn("time_ns", INT64, "when it happened, ns since 1970", lambda note: note.time_ns),
    ViewColumn("event", TEXT, _EVENT_NAMES, _noted("event")),
    ViewColumn("connection", INT32, "number of the connection", _noted("connection")),
    ViewColumn("client_address", TEXT, "host and port of the client", _noted("client_address")),
    ViewColumn("node_id", INT32, "broker of the connection", _noted("node_id")),
    ViewColumn("number", INT64, "the exchange that it is about", _noted("number")),
    ViewColumn("fault", TEXT, "the fault rule that fired", _noted("rule")),
    ViewColumn("first", TEXT, "who ended the connection first", _noted("first", "side")),
    ViewColumn("how", TEXT, "how they ended it: eof, reset, idle, refused, …", _how),
    ViewColumn("reason", TEXT, "what went wrong, if anything did", _noted("reason", "what")),
    ViewColumn("body", TEXT, "all of it, JSON", lambda note: json.dumps(note.body)),
)

VIEWS = {"exchanges": EXCHANGES, "records": RECORDS, "frames": FRAMES, "events": EVENTS}


def chosen(view: str, names: Iterable[str] | None = None) -> tuple[ViewColumn, ...]:
    """Return the named columns of a view, by a list or a comma-separated text; without names, the
    default ones.

    Raises: ValueError if there is no such view or column.
    """
    if view not in VIEWS:
        what = f"there is no view {view!r}{suggestion(view, VIEWS)}"
        raise ValueError(f"{what}; there are {', '.join(VIEWS)}")
    if names is None:
        return tuple(column for column in VIEWS[view] if column.default)
    by_name = {column.name: column for column in VIEWS[view]}
    found: list[ViewColumn] = []
    for name in map(str.strip, names.split(",")) if isinstance(names, str) else names:
        if name not in by_name:
            what = f"{view} have no column {name!r}{suggestion(name, by_name)}"
            raise ValueError(f"{what}; they have {', '.join(by_name)}")
        found.append(by_name[name])
    return tuple(found)


def schema_of(columns: Iterable[ViewColumn]) -> pa.Schema:
    """Return the schema of the record batches of these columns; its fields have comments."""
    return pa.schema([pa.field(c.name, c.type, metadata={"comment": c.comment}) for c in columns])
