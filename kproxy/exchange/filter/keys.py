"""The keys of filter terms: the values of each, what it needs, how it is read.

    exchange.FIELDS, and here: readers of values ─▶ KEYS, QUALITIES

The fields of an exchange are keys by themselves: of a list, one of which must match; those that are
true or false are the values of `is:`. Only what is not plain stands here. The tables serve the
parser, the help text, and `matches`, which reads an exchange, or a request that arrives.
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable, Iterable
from typing import Any

import attrs

from kproxy.exchange import meanings
from kproxy.exchange.endings import ConnectionEnd
from kproxy.exchange.entries import SASL_TOKEN
from kproxy.exchange.exchange import FIELDS
from kproxy.exchange.fields import Need, Type
from kproxy.exchange.filter.values import (
    BYTES,
    INTEGER,
    MILLISECONDS,
    Glob,
    Typed,
    Value,
    choice,
    exchange_numbers,
    glob,
    leaf,
    time_range,
)
from kproxy.exchange.topic_records import TopicRecord
from kproxy.wire.payloads import json_paths
from kproxy.wire.protocol import error_name, schema
from kproxy.wire.protocol.errors import CODES

Read = Callable[[Any], Iterable[Any]]
"""A function that reads the values to compare from an exchange, or from an arriving request."""


@attrs.frozen
class Key:
    """One key of the language, or a quality: the value of an `is:`."""

    name: str
    need: Need
    value: Callable[[Typed], Value]
    """Reads a value; raises ValueError if it is none."""
    read: Read
    help: str
    example: str
    meaning: meanings.Meaning | None = None
    """Of body fields: an exchange of an API that has none in its bodies does not match."""
    of_record: Callable[[TopicRecord], Iterable[Any]] | None = None
    """Reads the values of one record, where `read` looks at records."""


# ── reading exchanges ────────────────────────────────────────────────────────────────────────


def _attribute(name: str) -> Read:
    def read(subject: Any) -> Iterable[Any]:
        value = getattr(subject, name)
        return () if value is None else (value,)

    return read


def _list(name: str) -> Read:
    return operator.attrgetter(name)


def _nanoseconds(name: str) -> Callable[[Any], Iterable[int]]:
    def read(subject: Any) -> Iterable[int]:
        value = getattr(subject, name)
        return () if value is None else (round(value * 1_000_000),)

    return read


def _times(subject: Any) -> Iterable[int]:
    return (subject.time_ns // 1000 * 1000,)


def _partition_numbers(subject: Any) -> Iterable[int]:
    return (each.partition for each in subject.partitions)


def _of_records(of_record: Callable[[TopicRecord], Iterable[Any]]) -> Read:
    def read(subject: Any) -> Iterable[Any]:
        found: list[TopicRecord] = subject.records
        return (value for record in found for value in of_record(record))

    return read


def _text(part: str) -> Callable[[TopicRecord], Iterable[str]]:
    def of_record(record: TopicRecord) -> Iterable[str]:
        data: bytes | None = getattr(record, part)
        return () if data is None else (data.decode("utf-8", "surrogateescape"),)

    return of_record


def _parts(part: str, path: json_paths.Path) -> Callable[[TopicRecord], Iterable[Any]]:
    return lambda record: json_paths.parts(record.plain(part), path)


# ── is: ──────────────────────────────────────────────────────────────────────────────────────


def _quality(
    name: str,
    need: Need,
    read: Callable[[Any], Any],
    about: str,
    meaning: meanings.Meaning | None = None,
) -> Key:
    return Key(f"is:{name}", need, glob, read, about, f"is:{name}", meaning)


_QUALITIES = (
    _quality(
        "error",
        Need.RESPONSE,
        lambda exchange: exchange.told_errors and not exchange.routine,
        "its response has an error that is not routine",
        meanings.ERROR,
    ),
    _quality(
        "unanswered",
        Need.ROW,
        lambda exchange: exchange.got_no_response,
        "the response that it should have did not come, or did not reach the client",
    ),
    _quality("faulted", Need.ROW, operator.attrgetter("faults"), "a fault rule touched it"),
    _quality(
        "tls_failed",
        Need.ROW,
        lambda subject: isinstance(subject, ConnectionEnd) and subject.tls_failed,
        "TLS failed on a connection: chooses no exchange, but ends of connections",
    ),
    *(
        _quality(
            name,
            each.need,
            operator.attrgetter(name),
            each.about,
            meanings.ERROR if name == "routine" else None,
        )
        for name, each in FIELDS.items()
        if each.type is Type.BOOL
    ),
)
QUALITIES = {key.name.removeprefix("is:"): key for key in _QUALITIES}
"""The values of `is:`."""


# ── the keys ─────────────────────────────────────────────────────────────────────────────────


def _error_names() -> list[str]:
    return [name for name, code in CODES.items() if code]


_ERROR = choice("error", _error_names)


def _error(typed: Typed) -> Glob:
    """Return the pattern for an error's name or code; codes that Kafka has added since are
    UNKNOWN_ERROR_CODE_<n>."""
    text = typed[0] if len(typed) == 1 else ""
    number = text.removeprefix("UNKNOWN_ERROR_CODE_")
    if number.removeprefix("-").isdecimal() and number.isascii() and len(number) < 7:
        if int(number) == 0:
            raise ValueError("0 is no error; write `not is:error`")
        return Glob((error_name(int(number)),), folded=True)
    return _ERROR(typed)


def _api_names() -> list[str]:
    return [*schema.api_names().values(), SASL_TOKEN]


_TYPED: dict[Type, tuple[Callable[[Typed], Value], Callable[[str], Read], str]] = {
    Type.INT16: (INTEGER, _attribute, "5.."),
    Type.INT32: (INTEGER, _attribute, "5.."),
    Type.INT64: (INTEGER, _attribute, "5.."),
    Type.FLOAT: (MILLISECONDS, _nanoseconds, "50.."),
    Type.TEXT: (glob, _attribute, "*text*"),
    Type.TEXTS: (glob, _list, "*text*"),
    Type.TIME: (time_range, lambda name: _times, "12:03..12:05"),
    Type.PARTITIONS: (INTEGER, lambda name: _partition_numbers, "0..3"),
}
"""The reader of typed values, the reader of fields, and an example, for each type of field."""


def _key(
    name: str,
    example: str = "",
    value: Callable[[Typed], Value] | None = None,
    need: Need | None = None,
    attribute: str = "",
) -> Key:
    """Return the key for a field; arguments that are not given follow from the field's type. Its
    value is also that of an `attribute`, which is read faster."""
    field = FIELDS[name]
    plain, read, shape = _TYPED[field.type]
    return Key(
        field.key,
        need or field.need,
        value or (BYTES if field.unit == "bytes" else plain),
        read(attribute or field.name),
        field.about,
        example or f"{field.key}:{shape}",
        field.meaning,
    )


def _record(
    name: str,
    example: str,
    about: str,
    value: Callable[[Typed], Value],
    of_record: Callable[[TopicRecord], Iterable[Any]],
) -> Key:
    """Return the key for a part of records."""
    read = _of_records(of_record)
    return Key(
        name, Need.REQUEST, value, read, about, example, meanings.RECORDS, of_record
    )  # fmt: skip


def _whole(part: str, example: str) -> Key:
    about = f"the {part} of a record that it carries, as text"
    return _record(part, example, about, glob, _text(part))


def _path(name: str, part: str, path: json_paths.Path, example: str = "") -> Key:
    about = f"a part of the {part} of a record, decoded or JSON by itself"
    return _record(name, example, about, leaf, _parts(part, path))


_WITH_EXAMPLES = (
    _key("api", "api:Fetch api:*Group*", choice("API", _api_names)),
    _key("api_key", "api_key:68.."),
    _key("api_version", "api_version:13.."),
    _key("topics", "topic:orders-*"),
    _key("partitions"),
    _key("groups", "group:billing"),
    _key("transactional_ids", "transactional_id:tx-*"),
    _whole("key", "key:order-17"),
    _whole("value", "value:*refund*"),
    _key(
        "errors",
        "error:NOT_LEADER_OR_FOLLOWER error:*AUTHORIZATION*",
        value=_error,
        attribute="told_errors",
    ),
    _key("error_messages", "error_message:*quota*"),
    _key("unreadable", "unreadable:*"),
    _key("broker_ms", "broker_ms:50.. broker_ms:10ms..1s"),
    # A body may tell how long a poll may wait.
    _key("service_ms", need=Need.RESPONSE),
    _key("waiting_ms", "waiting_ms:100..", need=Need.RESPONSE),
    _key("queued_ms", "queued_ms:10.."),
    _key("proxy_ms", "proxy_ms:1.."),
    _key("fault_ms", "fault_ms:1.."),
    _key("request_bytes", "request_bytes:1MiB.."),
    _key("response_bytes", "response_bytes:..1KiB"),
    _key("time", "time:12:03..12:05 time:2026-05-01T12:03:10Z.. time:..+30s"),
    _key("number", "number:812 number:shop#812", value=exchange_numbers),
    _key("connection", "connection:3"),
    _key("client_id", "client_id:rdkafka"),
    _key("user", "user:billing user:CN=app,*"),
    _key("client_address", "client_address:10.0.0.*"),
    _key("node_id", "node_id:2"),
    _key("correlation_id", "correlation_id:101"),
    _key("faults", "fault:*"),
)
"""The keys with an example of their own, or with values that do not follow from their field; the
help lists them first."""

KEYS = (
    *_WITH_EXAMPLES,
    *(
        _key(name)
        for name, field in FIELDS.items()
        if field.in_json
        and field.type in _TYPED
        and field.key not in {key.name for key in _WITH_EXAMPLES}
    ),
)
"""All keys but `is`, which stands for `QUALITIES`."""

OF_ENDS = frozenset(
    ("connection", "client_address", "node_id", "time", "is:tls_failed"),
)
"""The keys that the ends of connections have, too; no other matches one."""

PATHS = (
    _path("key.PATH", "key", ("PATH",), "key.id:17"),
    _path("value.PATH", "value", ("PATH",), "value.customer:ann value.items[*].price:100.."),
)
"""What stands for the keys of all paths of records."""

BY_NAME = {key.name: key for key in KEYS}
_TERMS = BY_NAME | {key.name: key for key in _QUALITIES}
_OF_PATH = re.compile(r"(key|value)(?=[.\[])(.*)", re.DOTALL)


@functools.lru_cache(maxsize=256)
def key_named(name: str) -> Key | None:
    """Return the key or the quality of a name (`is:error`), or the path of records that it is; None
    if it is neither.

    Raises:
        PathError: what follows `key` or `value` is no path.
    """
    found = _OF_PATH.fullmatch(name)
    if found is None:
        return _TERMS.get(name)
    part, path = found.groups()
    try:
        return _path(name, part, json_paths.parse(path.removeprefix(".")))
    except json_paths.PathError as error:
        error.place += len(name) - len(path.removeprefix("."))
        raise
