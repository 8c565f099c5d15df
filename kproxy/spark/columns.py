"""The views of recordings, and their columns: names, Spark's types, what each says, and its value.

    exchanges ─ Exchange      records ─ (Exchange, TopicRecord)      events ─ Note

A column takes its value out of one such item; `table` has faster ways for many exchanges at once,
and `frame_columns` for frames.
Names are those of `kproxy show --json` and of filters. Columns in nanoseconds are exact, Spark's
timestamps have microseconds.

Invariants: the default columns of `exchanges` come from the recording's tables and notes alone, so
that no body is opened for them; those that need bodies come when somebody names them.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

import attrs

from kproxy.exchange import endings
from kproxy.exchange.entries import Note
from kproxy.exchange.exchange import Exchange
from kproxy.units import moment

TEXTS = "ARRAY<STRING>"
PARTITIONS = "ARRAY<STRUCT<topic: STRING, partition: INT>>"
HEADERS = "ARRAY<STRUCT<key: STRING, value: BINARY>>"
WAITED = "STRUCT<waited_for: STRING, behind: BIGINT, waited_ms: DOUBLE>"

TIMESTAMP_MS_MAX = 253_402_300_799_999
"""The last millisecond of the year 9999: where Python's and Spark's timestamps end."""
_NS_END = 1 << 63


@attrs.frozen
class Column:
    """One column of a view."""

    name: str
    type: str
    """As Spark's SQL has it."""
    comment: str
    get: Callable[[Any], Any] | None = None
    """Takes the value out of an item of its view; None where values are not those of items."""
    default: bool = True
    """Whether it is there when nobody names columns."""

    @property
    def ddl(self) -> str:
        """The column as Spark's SQL declares it."""
        comment = self.comment.replace("'", "\\'")
        return f"`{self.name}` {self.type} COMMENT '{comment}'"

    @property
    def simple_type(self) -> str:
        """The type as Spark prints it."""
        return self.type.lower().replace(" ", "")


RECORDING = "recording"
FILE = "file"
"""Columns whose values are those of a whole file."""


_WHERE = (
    Column(RECORDING, "STRING", "id of the recording: numbers count within it"),
    Column(FILE, "STRING", "the file that has the row", default=False),
)


def _of(name: str) -> Callable[[Any], Any]:
    return operator.attrgetter(name)


def _row(name: str) -> Callable[[Exchange], int]:
    return operator.attrgetter(f"row.{name}")


# ---------------------------------------------------------------- exchanges


def _waited(exchange: Exchange) -> dict[str, Any] | None:
    return None if exchange.unanswered is None else attrs.asdict(exchange.unanswered)


def _partitions(exchange: Exchange) -> list[dict[str, Any]]:
    return [each._asdict() for each in exchange.partitions]


def _request(exchange: Exchange) -> str:
    from kproxy.view.jsonl import body

    return body(exchange, "request")


def _response(exchange: Exchange) -> str:
    from kproxy.view.jsonl import body

    return body(exchange, "response")


def _plain(name: str, type_: str, comment: str) -> Column:
    return Column(name, type_, comment, _of(name))


def _body(name: str, type_: str, comment: str) -> Column:
    return Column(name, type_, comment, _of(name), False)


def _raw(name: str, type_: str, comment: str) -> Column:
    return Column(name, type_, comment, _row(name))


EXCHANGES = (
    *_WHERE,
    _plain("number", "BIGINT", "counts requests over the whole recording, from 1"),
    _plain("time", "TIMESTAMP", "when the request arrived"),
    _plain("connection", "INT", "number of the connection"),
    _plain("client_address", "STRING", "host and port of the client"),
    _plain("client_id", "STRING", "client.id, as the first request of the connection says"),
    _plain("node_id", "INT", "broker of the connection; null on a bootstrap address"),
    _plain("api", "STRING", "name of the API"),
    _plain("api_key", "SMALLINT", "number of the API; null where the request has none"),
    _plain("api_version", "SMALLINT", "version of the request"),
    _plain("correlation_id", "INT", "of the request"),
    _plain("request_bytes", "INT", "size of the request with its size prefix"),
    _plain("response_bytes", "INT", "size of the response; null if there is none"),
    _plain("broker_ms", "DOUBLE", "what the broker took: queued_ms + waiting_ms + service_ms"),
    _plain("queued_ms", "DOUBLE", "waited behind earlier requests of its connection"),
    _plain("waiting_ms", "DOUBLE", "may be a wait that the request asked for: a long poll, a join"),
    _plain("service_ms", "DOUBLE", "what the broker took for certain"),
    _plain("proxy_ms", "DOUBLE", "what kproxy added, both ways"),
    _plain("redacted", "BOOLEAN", "secrets were blanked out of it"),
    _plain("injected", "BOOLEAN", "one of its frames was made by kproxy"),
    _plain("truncated", "BOOLEAN", "one of its frames stops in the middle"),
    _plain("one_way", "BOOLEAN", "brokers do not answer it: Produce with acks=0"),
    _plain("faults", TEXTS, "names of the fault rules that touched it"),
    Column("unanswered", WAITED, "what a request waited for that was never answered", _waited),
    _raw("request_received_ns", "BIGINT", "when the request arrived, ns since 1970; 0: unknown"),
    _raw("request_sent_ns", "BIGINT", "when it was sent on; 0: it was not, or unknown"),
    _raw("response_received_ns", "BIGINT", "when the response arrived, or the connection ended"),
    _raw("response_sent_ns", "BIGINT", "when the response was sent on"),
    _raw("queued_ns", "BIGINT", "queued_ms, exact"),
    _raw("max_wait_ms", "INT", "how long a Fetch lets the broker wait for records"),
    _body("topics", TEXTS, "topics that it names"),
    Column("partitions", PARTITIONS, "partitions that it names", _partitions, False),
    _body("groups", TEXTS, "groups that it names"),
    _body("transactional_ids", TEXTS, "transactional ids that it names"),
    _body("errors", TEXTS, "names of the errors in the response"),
    _body("error_messages", TEXTS, "what the broker says of them"),
    _body("opaque", "BOOLEAN", "it has a body that could not be decoded"),
    Column("request", "STRING", "body of the request, JSON", _request, False),
    Column("response", "STRING", "body of the response, JSON", _response, False),
)

# ---------------------------------------------------------------- records


def _timestamp(item: Any) -> datetime | None:
    milliseconds = wrapped(item[1].timestamp)
    if not 0 <= milliseconds <= TIMESTAMP_MS_MAX:
        return None
    return moment(milliseconds * 1_000_000)


def _timestamp_ms(item: Any) -> int:
    return wrapped(item[1].timestamp)


def wrapped(number: int) -> int:
    """Return a number as 64 bits hold it: sums of what a batch says need not fit, and Java's wrap
    around."""
    return ((number + _NS_END) & 2 * _NS_END - 1) - _NS_END


def _offset(item: Any) -> int | None:
    return None if item[1].offset is None else wrapped(item[1].offset)


def _headers(item: Any) -> list[dict[str, Any]]:
    return [{"key": key, "value": value} for key, value in item[1].headers]


def _record(name: str, type_: str, comment: str) -> Column:
    get = operator.attrgetter(name)
    return Column(name, type_, comment, lambda item: get(item[1]))


def _carrier(name: str, type_: str, comment: str) -> Column:
    get = operator.attrgetter(name)
    return Column(name, type_, comment, lambda item: get(item[0]))


RECORDS = (
    *_WHERE,
    _record("topic", "STRING", "name of the topic; its id if nothing told the name"),
    _record("partition", "INT", "number of the partition"),
    Column(
        "offset",
        "BIGINT",
        "offset; null if no Produce response says it: also if it was refused",
        _offset,
    ),
    Column("timestamp", "TIMESTAMP", "of the record", _timestamp),
    Column("timestamp_ms", "BIGINT", "of the record, ms since 1970", _timestamp_ms),
    _record("key", "BINARY", "key; null where there is none"),
    _record("value", "BINARY", "value; null is a tombstone"),
    Column("headers", HEADERS, "headers, in order", _headers),
    _record("produced", "BOOLEAN", "a client sent it; else a broker did, to be consumed"),
    _record("aborted", "BOOLEAN", "it is known that its transaction was aborted"),
    _carrier("number", "BIGINT", "the exchange that carried it"),
    _carrier("time", "TIMESTAMP", "when the request of that exchange arrived"),
    _carrier("connection", "INT", "number of the connection"),
    _carrier("client_id", "STRING", "client.id of the connection"),
    _carrier("node_id", "INT", "broker of the connection"),
)

# ---------------------------------------------------------------- frames


def _frame(name: str, type_: str, comment: str, default: bool = True) -> Column:
    return Column(name, type_, comment, default=default)


FRAMES = (
    *_WHERE,
    _frame("number", "BIGINT", "the exchange that it belongs to"),
    _frame("side", "STRING", "who sent it: client, broker"),
    _frame("time", "TIMESTAMP", "when it arrived"),
    _frame("connection", "INT", "number of the connection"),
    _frame("client_id", "STRING", "client.id of the connection"),
    _frame("node_id", "INT", "broker of the connection"),
    _frame("api", "STRING", "name of the API"),
    _frame("api_key", "SMALLINT", "number of the API"),
    _frame("api_version", "SMALLINT", "version of the request"),
    _frame("correlation_id", "INT", "of the request"),
    _frame("frame_bytes", "BIGINT", "size with the size prefix"),
    _frame("opaque", "BOOLEAN", "kproxy knows no schema for it"),
    _frame("redacted", "BOOLEAN", "secrets were blanked out of it"),
    _frame("flags", "INT", "all flags (kproxy.exchange.entries)"),
    _frame("received_ns", "BIGINT", "when it arrived, ns since 1970"),
    _frame("sent_ns", "BIGINT", "when it was sent on; 0: unknown"),
    _frame("data", "BINARY", "the bytes as their sender sent them", False),
)

# ---------------------------------------------------------------- events


def when(time_ns: int) -> datetime | None:
    """Return a time of a recording; None for 0, and for what no clock says."""
    if not 0 < time_ns < _NS_END:
        return None
    return moment(time_ns)


def _text(name: str, *names: str) -> Callable[[Note], str | None]:
    def get(note: Note) -> str | None:
        found = (endings.text(note.body.get(each)) for each in (name, *names))
        return next((text for text in found if text is not None), None)

    return get


def _integer(name: str, bits: int) -> Callable[[Note], int | None]:
    def get(note: Note) -> int | None:
        value = endings.integer(note.body.get(name))
        return value if value is not None and -(1 << bits) <= value < 1 << bits else None

    return get


def _how(note: Note) -> str | None:
    if note.body.get("event") != "closed":
        return None
    first = endings.connection_end(note).first
    return None if first is None else first.how


_EVENT_NAMES = (
    "opened, open, client_id, closed; topic_id, fault_rules, fault, session_refused, lost,"
    " stood_still, ignored, pending, recovered; of the files: torn, damaged, recording"
)
EVENTS = (
    *_WHERE,
    Column("time", "TIMESTAMP", "when it happened", lambda note: when(note.time_ns)),
    Column("time_ns", "BIGINT", "when it happened, ns since 1970", lambda note: note.time_ns),
    Column("event", "STRING", _EVENT_NAMES, _text("event")),
    Column("connection", "INT", "number of the connection", _integer("connection", 31)),
    Column("client_address", "STRING", "host and port of the client", _text("client_address")),
    Column("node_id", "INT", "broker of the connection", _integer("node_id", 31)),
    Column("number", "BIGINT", "the exchange that it is about", _integer("number", 63)),
    Column("fault", "STRING", "the fault rule that fired", _text("rule")),
    Column("first", "STRING", "who ended the connection first", _text("first", "side")),
    Column("how", "STRING", "how they ended it: eof, reset, idle, refused, …", _how),
    Column("reason", "STRING", "what went wrong, if anything did", _text("reason", "what")),
    Column("body", "STRING", "all of it, JSON", lambda note: json.dumps(note.body)),
)

VIEWS = {"exchanges": EXCHANGES, "records": RECORDS, "frames": FRAMES, "events": EVENTS}


def chosen(view: str, names: Iterable[str] | None = None) -> tuple[Column, ...]:
    """Return the columns of a view that are named; the default ones, if none are.

    Raises: ValueError, when there is no such view or column.
    """
    if view not in VIEWS:
        raise ValueError(f"there is no view {view!r}; there are {', '.join(VIEWS)}")
    if names is None:
        return tuple(column for column in VIEWS[view] if column.default)
    by_name = {column.name: column for column in VIEWS[view]}
    found: list[Column] = []
    for name in names:
        if name not in by_name:
            raise ValueError(f"{view} have no column {name!r}; they have {', '.join(by_name)}")
        found.append(by_name[name])
    return tuple(found)


def ddl(columns: Iterable[Column]) -> str:
    """Return columns as a schema of Spark's SQL."""
    return ", ".join(column.ddl for column in columns)
