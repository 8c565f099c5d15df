"""The keys of filter terms: what each means, what it needs, how it is read and looked up.

One table serves the parser, the help text, `matches` (which reads an exchange, or a request that
arrives) and `rows` (which looks at columns of the table of exchanges). In a row's verdict NO and
YES are certain; MAYBE says that the exchange must be opened.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from typing import Any

import attrs

from kproxy.exchange import meanings
from kproxy.exchange.entries import (
    FAULTED,
    INJECTED,
    NO_RESPONSE,
    REDACTED,
    SASL_TOKEN,
    TRUNCATED,
)
from kproxy.exchange.filter import rows
from kproxy.exchange.filter.values import (
    BYTES,
    INTEGER,
    MILLISECONDS,
    Glob,
    Typed,
    Value,
    choice,
    glob,
    time_range,
)
from kproxy.exchange.topic_records import TopicRecord
from kproxy.protocol import error_name, schema
from kproxy.protocol.errors import CODES


class Need(enum.Enum):
    """What must be known to answer a term."""

    CONNECTION = "connection"
    HEADER = "header"
    """The request's header, its size and its time."""
    REQUEST = "request"
    """The request's body; of a whole exchange both bodies are looked at."""
    ROW = "row"
    """How the exchange ended, but neither body."""
    RESPONSE = "response"
    """The response's body."""


@attrs.frozen
class Key:
    """One key of the language."""

    name: str
    need: Need
    value: Callable[[Typed], Value]
    """Reads a value; ValueError if it is none."""
    read: Callable[[Any], Iterable[Any]]
    """What an exchange (or an arriving request) has of it, in the values' own terms."""
    look: rows.Look
    help: str
    example: str


# ── reading exchanges ────────────────────────────────────────────────────────────────────────


def _attribute(name: str) -> Callable[[Any], Iterable[Any]]:
    def read(subject: Any) -> Iterable[Any]:
        value = getattr(subject, name)
        return () if value is None else (value,)

    return read


def _list(name: str) -> Callable[[Any], Iterable[Any]]:
    def read(subject: Any) -> Iterable[Any]:
        return getattr(subject, name)

    return read


def _nanoseconds(name: str) -> Callable[[Any], Iterable[int]]:
    def read(subject: Any) -> Iterable[int]:
        value = getattr(subject, name)
        return () if value is None else (round(value * 1_000_000),)

    return read


def _time(subject: Any) -> Iterable[int]:
    return (subject.time_ns // 1000 * 1000,)


def _partition_numbers(subject: Any) -> Iterable[int]:
    return (each.partition for each in subject.partitions)


def _faults(subject: Any) -> Iterable[str]:
    return map(str, subject.faults)


def _texts(name: str) -> Callable[[Any], Iterable[str]]:
    def read(subject: Any) -> Iterable[str]:
        found: list[TopicRecord] = subject.records
        datas = (getattr(record, name) for record in found)
        return (data.decode("utf-8", "surrogateescape") for data in datas if data is not None)

    return read


# ── is: ──────────────────────────────────────────────────────────────────────────────────────


@attrs.frozen
class Quality:
    """Something that an exchange is or is not."""

    need: Need
    read: Callable[[Any], bool]
    look: Callable[[rows.Columns], bytes | None]
    help: str


QUALITIES = {
    "error": Quality(
        Need.RESPONSE,
        lambda exchange: bool(exchange.errors),
        lambda columns: rows.errors(columns, ()),
        "its response has an error code",
    ),
    "unanswered": Quality(
        Need.ROW,
        lambda exchange: exchange.response_bytes is None and not exchange.one_way,
        rows.unanswered,
        "it never got the response that it should have",
    ),
    "one_way": Quality(
        Need.ROW,
        lambda exchange: exchange.one_way,
        rows.flag(NO_RESPONSE),
        "it wants no response (Produce with acks=0)",
    ),
    "injected": Quality(
        Need.ROW,
        lambda exchange: exchange.injected,
        rows.flag(INJECTED),
        "kproxy itself made the request or the response",
    ),
    "faulted": Quality(
        Need.ROW,
        lambda exchange: bool(exchange.faults),
        rows.flag(FAULTED),
        "a fault rule touched it",
    ),
    "redacted": Quality(
        Need.ROW,
        lambda exchange: exchange.redacted,
        rows.flag(REDACTED),
        "secrets in it were blanked out",
    ),
    "truncated": Quality(
        Need.ROW,
        lambda exchange: exchange.truncated,
        rows.flag(TRUNCATED, rows.MAYBE),
        "a frame of it stops in the middle",
    ),
    "opaque": Quality(
        Need.RESPONSE,
        lambda exchange: exchange.opaque,
        rows.never,
        "a body of it could not be decoded",
    ),
}
"""The values of `is:`."""


# ── the keys ─────────────────────────────────────────────────────────────────────────────────


def _error_names() -> list[str]:
    return [name for name, code in CODES.items() if code]


_ERROR = choice("error", _error_names)


def _error(typed: Typed) -> Glob:
    """An error's name or code; codes that Kafka has added since are UNKNOWN_ERROR_CODE_<n>."""
    text = typed[0] if len(typed) == 1 else ""
    number = text.removeprefix("UNKNOWN_ERROR_CODE_")
    if number.removeprefix("-").isdecimal() and number.isascii() and len(number) < 7:
        if int(number) == 0:
            raise ValueError("0 is no error; write `not is:error`")
        return Glob((error_name(int(number)),), folded=True)
    return _ERROR(typed)


def _api_names() -> list[str]:
    return [*schema.api_names().values(), SASL_TOKEN]


KEYS = (
    Key(
        "api",
        Need.HEADER,
        choice("API", _api_names),
        _attribute("api"),
        rows.apis,
        "name of the API",
        "api:Fetch api:*Group*",
    ),
    Key(
        "api_key",
        Need.HEADER,
        INTEGER,
        _attribute("api_key"),
        rows.numbers("api_key", -1),
        "number of the API",
        "api_key:68..",
    ),
    Key(
        "api_version",
        Need.HEADER,
        INTEGER,
        _attribute("api_version"),
        rows.numbers("api_version", -1),
        "version of the request",
        "api_version:13..",
    ),
    Key(
        "topic",
        Need.REQUEST,
        glob,
        _list("topics"),
        rows.only_with(meanings.TOPIC),
        "a topic that request or response names, or its id",
        "topic:orders-*",
    ),
    Key(
        "partition",
        Need.REQUEST,
        INTEGER,
        _partition_numbers,
        rows.only_with(meanings.TOPIC),
        "a partition that it names",
        "partition:0..3",
    ),
    Key(
        "group",
        Need.REQUEST,
        glob,
        _list("groups"),
        rows.only_with(meanings.GROUP),
        "a group that it names",
        "group:billing",
    ),
    Key(
        "transactional_id",
        Need.REQUEST,
        glob,
        _list("transactional_ids"),
        rows.only_with(meanings.TRANSACTIONAL_ID),
        "a transactional id that it names",
        "transactional_id:tx-*",
    ),
    Key(
        "key",
        Need.REQUEST,
        glob,
        _texts("key"),
        rows.only_with(meanings.RECORDS),
        "the key of a record that it carries, as text",
        "key:order-17",
    ),
    Key(
        "value",
        Need.REQUEST,
        glob,
        _texts("value"),
        rows.only_with(meanings.RECORDS),
        "the value of a record that it carries, as text",
        "value:*refund*",
    ),
    Key(
        "error",
        Need.RESPONSE,
        _error,
        _list("errors"),
        rows.errors,
        "Kafka's name of an error in the response, or its code",
        "error:NOT_LEADER_OR_FOLLOWER error:*AUTHORIZATION*",
    ),
    Key(
        "broker_ms",
        Need.ROW,
        MILLISECONDS,
        _nanoseconds("broker_ms"),
        rows.durations("broker_ns"),
        "how long the broker took, in milliseconds or with a unit",
        "broker_ms:50.. broker_ms:10ms..1s",
    ),
    Key(
        "service_ms",
        Need.RESPONSE,
        MILLISECONDS,
        _nanoseconds("service_ms"),
        rows.parts("broker_ns"),
        "that time without queues and waits that were asked for",
        "service_ms:50..",
    ),
    Key(
        "queued_ms",
        Need.ROW,
        MILLISECONDS,
        _nanoseconds("queued_ms"),
        rows.parts("broker_ns"),
        "how much of it was a queue behind earlier requests",
        "queued_ms:10..",
    ),
    Key(
        "proxy_ms",
        Need.ROW,
        MILLISECONDS,
        _nanoseconds("proxy_ms"),
        rows.durations("proxy_ns"),
        "how long kproxy kept it",
        "proxy_ms:1..",
    ),
    Key(
        "request_bytes",
        Need.HEADER,
        BYTES,
        _attribute("request_bytes"),
        rows.numbers("request_bytes", 0),
        "size of the request",
        "request_bytes:1MiB..",
    ),
    Key(
        "response_bytes",
        Need.ROW,
        BYTES,
        _attribute("response_bytes"),
        rows.numbers("response_bytes", 0),
        "size of the response",
        "response_bytes:..1KiB",
    ),
    Key(
        "time",
        Need.HEADER,
        time_range,
        _time,
        rows.times,
        "when the request arrived, UTC; of a day, or since the recording began",
        "time:12:03..12:05 time:2026-05-01T12:03:10Z.. time:..+30s",
    ),
    Key(
        "number",
        Need.HEADER,
        INTEGER,
        _attribute("number"),
        rows.numbers("number"),
        "number of the exchange",
        "number:812",
    ),
    Key(
        "connection",
        Need.CONNECTION,
        INTEGER,
        _attribute("connection"),
        rows.numbers("connection"),
        "number of the connection",
        "connection:3",
    ),
    Key(
        "client_id",
        Need.HEADER,
        glob,
        _attribute("client_id"),
        rows.column_texts("client_id"),
        "what the client calls itself",
        "client_id:rdkafka",
    ),
    Key(
        "client_address",
        Need.CONNECTION,
        glob,
        _attribute("client_address"),
        rows.column_texts("client_address"),
        "where the client connected from",
        "client_address:10.0.0.*",
    ),
    Key(
        "node_id",
        Need.CONNECTION,
        INTEGER,
        _attribute("node_id"),
        rows.numbers("node_id", -1),
        "the broker that the connection leads to",
        "node_id:2",
    ),
    Key(
        "correlation_id",
        Need.HEADER,
        INTEGER,
        _attribute("correlation_id"),
        rows.correlation_ids,
        "as in the request's header",
        "correlation_id:101",
    ),
    Key("fault", Need.ROW, glob, _faults, rows.faulted, "a fault rule that touched it", "fault:*"),
)
"""All keys but `is`, which stands for `QUALITIES`."""

BY_NAME = {key.name: key for key in KEYS}
